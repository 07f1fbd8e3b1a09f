"""Shared parts of the benchmarks: options, synthetic clicks, run configs, medians with spread, tables and JSON."""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from harness.cli.arguments import Parser
from harness.config.model import Config
from harness.core.criteo_sizes import scaled_cardinalities
from harness.core.seeds import generator
from harness.data.records import (
    FORMAT_VERSION,
    NUM_COLUMNS,
    NUM_DENSE,
    NUM_TABLES,
    RECORDS_NAME,
    Meta,
    digest_of,
    write_meta,
)
from harness.processes.spawn import fork_own_server
from harness.record.code import environment, script_code

ROW_BYTES = 16 * 4
"""A row of Kaggle's tables: 16 float32."""

_CHUNK_ROWS = 1 << 16
_LOAD_AVERAGE = os.getloadavg()  # before anything is measured
_OPTIONS: dict[str, tuple[type, str]] = {
    "rounds": (int, "rounds, in each of which all variants have a turn"),
    "steps": (int, "steps that are timed, of each variant in each round, between as many"),
    "rows_scale": (float, "size of the tables, relative to Kaggle's"),
    "batch_size": (int, "samples a step"),
    "ps": (int, "number of PS ranks"),
    "folder": (Path, "folder for what is written (default: the system's temporary folder)"),
}


# --- options and output -----------------------------------------------------------------------------------------------


def parser(doc: str | None, **defaults: Any) -> Parser:
    """A parser with ``--json`` and the shared options named in ``defaults``.

    A script that has imported torch gets a fork server that knows the functions of the script.
    """
    fork_own_server()
    made = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        kind, text = _OPTIONS[name]
        made.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=text)
    made.add_argument("--json", type=new_file, metavar="FILE", help="also write the figures to this file")
    return made


def count(text: str) -> int:
    """The type of an option: a whole number of at least 1."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def new_file(text: str) -> Path:
    """The type of an option: a file to write, in a folder that exists. Raises ArgumentTypeError."""
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, got {text}")
    return Path(text)


def numbers_of(text: str) -> list[float]:
    """The type of an option: comma-separated numbers."""
    return [float(number) for number in text.split(",")]


def report(
    options: argparse.Namespace, lines: Iterable[str], figures: Mapping[str, Any], *, threads: int = 1
) -> list[str]:
    """Print ``lines`` and one about the machine; write figures and options as JSON if ``--json`` is given.

    Returns the lines that are printed.
    """
    facts: dict[str, Any] = environment(num_threads=threads, code=script_code())
    facts["load_average"] = _LOAD_AVERAGE
    loads = " ".join(f"{load:.2f}" for load in _LOAD_AVERAGE)
    git = facts["git"] or {"commit": "unknown", "dirty": False}
    heading = (
        f"{facts['time']}, {facts['cpu']}, {facts['num_cores']} cores, load average {loads}, "
        f"torch {facts['torch']}, commit {git['commit'][:7]}{'+' if git['dirty'] else ''}"
    )
    shown = [*lines, "", heading]
    sys.stdout.write("\n".join([*shown, ""]))
    if options.json is not None:
        values = {"machine": facts, "setting": vars(options), **figures}
        options.json.write_text(json.dumps(values, indent=1, default=_plain) + "\n")
    return shown


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


@dataclass(frozen=True)
class Spread:
    """The median of some values with bounds.

    ``of``: least and greatest, for the few rounds of most benchmarks; up to eight values have no narrower interval.
    ``interval``: a 95 % interval of the median, which narrows with more values, where their range widens.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    @classmethod
    def interval(cls, values: Iterable[float]) -> "Spread":
        """The narrowest interval by order statistics of at least 95 %; fewer than six values are without bounds."""
        ordered = sorted(values)
        num = len(ordered)
        outside = accumulate(math.comb(num, number) for number in range(num))  # of 2**num, on one side
        cut = sum(40 * each <= 2**num for each in outside) - 1
        low, high = (-math.inf, math.inf) if cut < 0 else (ordered[cut], ordered[-1 - cut])
        return cls(statistics.median(ordered), low, high)

    @classmethod
    def ratio(cls, upper: Iterable[float], lower: Iterable[float]) -> "Spread":
        """One figure over another one of the same round."""
        return cls.of(one / other for one, other in zip(upper, lower, strict=True))

    def show(self, digits: int = 2) -> str:
        if math.isinf(self.low):
            return f"**{self.median:,.{digits}f}** (too few for an interval)"
        return f"**{self.median:,.{digits}f}** ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return [first, "|---" * len(head) + "|", *others]


# --- data and configs -------------------------------------------------------------------------------------------------


def make_data(folder: Path, cardinalities: Sequence[int], num_train: int) -> None:
    """Write a prepared folder of random clicks with ``num_train`` training samples and as many more as a split takes.

    Ids are log-uniform (Zipf's law with exponent 1, the low ids most often), and a quarter of the labels is positive.
    Nothing can be learned from them.
    """
    folder.mkdir(parents=True)
    rng, sizes_F = generator(1, "clicks"), np.array(cardinalities)
    num_rows, num_positives, records = num_train * 7 // 6 + 14, 0, xxhash.xxh3_128()
    with (folder / RECORDS_NAME).open("wb") as file:
        for first in range(0, num_rows, _CHUNK_ROWS):
            words_BC = np.empty((min(_CHUNK_ROWS, num_rows - first), NUM_COLUMNS), dtype="<i4")
            floats_BC = words_BC.view("<f4")
            floats_BC[:, 0] = rng.random(len(words_BC)) < 0.25
            floats_BC[:, 1 : 1 + NUM_DENSE] = rng.exponential(2.0, (len(words_BC), NUM_DENSE))
            ids_BF = sizes_F ** rng.random((len(words_BC), NUM_TABLES)) - 1
            words_BC[:, 1 + NUM_DENSE :] = np.minimum(ids_BF, sizes_F - 1)
            num_positives += int(floats_BC[:, 0].sum())
            file.write(words_BC.data)
            records.update(words_BC.data)
    meta = Meta(
        format_version=FORMAT_VERSION,
        num_rows=num_rows,
        num_positives=num_positives,
        cardinalities=tuple(cardinalities),
        num_dense=NUM_DENSE,
        columns=None,
        categories="number",
        max_ind_range=None,
        table_rows=None,
        digest=digest_of(records, NUM_DENSE, cardinalities),
        sources=(),
        synthetic=None,
    )
    write_meta(folder, meta)


def write_trace(path: Path, kills: Iterable[tuple[float, str]]) -> None:
    """Write a failure trace of ``kills``, ordered pairs (hour, ``ps3`` or a number of ranks)."""
    lines = [f"{hour!r},{who}" for hour, who in kills]
    path.write_text("\n".join(["# title: made by a benchmark", "hour,rank", *lines, ""]))


def settings_of(
    folder: Path, tables: Sequence[int] | float, num_steps: int, *, batch_size: int = 128, threads: int = 1
) -> dict[str, Any]:
    """Make clicks for ``num_steps`` steps in ``folder``; settings: Kaggle's dense network on them, nothing saved.

    ``tables``: the rows of each table, or Kaggle's times a number.
    """
    cardinalities = tables if isinstance(tables, Sequence) else scaled_cardinalities(tables)
    make_data(folder / "data", cardinalities, num_steps * batch_size)
    return {
        "data": {"path": str(folder / "data"), "max_train_samples": num_steps * batch_size},
        "model": {"size": "kaggle"},
        "trainer": {"batch_size": batch_size, "num_threads": threads},
        "eval": {"max_samples": 256, "points": 0},
        "strategy": {"name": "none"},
        "wandb": {"mode": "disabled"},
    }


def config_of(settings: Mapping[str, Any], *changes: Mapping[str, Any]) -> Config:
    """The config of ``settings`` with ``changes``; groups are merged, ``strategy`` is replaced."""
    values = dict(settings)
    for key, value in (item for change in changes for item in change.items()):
        is_merged = isinstance(value, Mapping) and key != "strategy"
        values[key] = {**values.get(key, {}), **value} if is_merged else value
    return Config.model_validate(values)
