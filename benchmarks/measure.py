"""What fault tolerance costs on this machine, as a file that the key ``profile`` takes.

    benchmarks/measure.py experiments/one.yaml --out here.yaml                 every part that some strategy has
    benchmarks/measure.py experiments/one.yaml --out here.yaml --strategies cpr_mfu,cpr_ssu,parity
    benchmarks/measure.py experiments/one.yaml profile=here.yaml trainer.optimizer=rowwise_adagrad \\
        --out all.yaml --strategies cpr_state                                 adds a part to the prices of here.yaml
    run.py plan here.yaml                                                     what strategies cost with these prices

Measured are, with the data, the model, the batches and the PS ranks of CONFIG.yaml: what trackers, replicas, parities
and the mirror add to each step (touching); what choosing rows for a save adds, spread over the steps between two saves
of the job; the fixed part of a save, and how long a load takes by a save; on engine rpc, from SIGKILL of a PS rank to
the moment at which its death is known. A second run of `none` is the control, whose difference should be 0: a part has
no price unless its interval lies above the median of that difference. More --sets narrow the interval; each has up to
four runs in memory. Method and arithmetic: docs/CPR.md, "Measured prices".
"""

import argparse
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from harness.api import load_plugins
from harness.cli import console
from harness.config.plugins import requested
from harness.core.errors import ConfigError, HarnessError

if __name__ == "__main__":
    try:  # before the models of configurations are imported, to which plugins add
        load_plugins(requested([Path(word) for word in sys.argv if word.endswith((".yaml", ".yml"))], sys.argv))
    except ConfigError as error:
        sys.exit(f"error: {error}")

import numpy as np
import torch
from torch import Tensor

from benchmarks import recovery
from benchmarks._common import Spread, count, parser, report, table, write_trace
from benchmarks._sets import TURN_STEPS, WARM_UP_TURNS, Price, Run, Subject, measure_sets, quiet, subjects_of
from harness.cli.progress import amount_progress
from harness.cli.trace_commands import refuse_to_overwrite
from harness.config.combinations import refuse_combinations
from harness.config.experiment import load_each
from harness.config.model import Config, TraceConfig
from harness.config.profiles import PROFILES
from harness.config.yaml_file import to_yaml
from harness.core.plans import CHIEF, Rank, ps_rank
from harness.core.strategies import STRATEGIES, options_of
from harness.files import write_text
from harness.run.spec import RunSpec
from harness.store import FileStore, Manifest, RowSource

COUNTS = {
    "sets": (20, "sets of runs, each of three or four that take turns"),
    "steps": (5_000, "steps of each run, in all sets"),
    "job-samples": (39_291_904, "samples of the job that the profile describes, by which choosing is spread"),
    "rounds": (6, "rounds of saves and loads"),
    "kills": (10, "deaths to be detected"),
}
"""Options that are numbers: default and help. Fewer than six sets, rounds or kills have no interval."""
_SAVE_FRACS = (1, 1 / 2, 1 / 4, 1 / 8)  # of the largest save that is timed
_MOST_SAVE_BYTES = 500_000_000
_STEPS_PER_KILL = 5


# --- steps ------------------------------------------------------------------------------------------------------------


def chosen_subjects(configs: Mapping[str, Config], named: Sequence[str]) -> list[Subject]:
    """What is measured for the strategies ``named``, or for all that the config allows; a note names the others.

    Raises ConfigError if one of ``named`` is not allowed.
    """
    parts: dict[str, frozenset[str]] = {}
    for name, config in configs.items():
        spec = RunSpec(config)
        try:
            refuse_combinations(spec.config, spec.strategy)
            parts[name] = frozenset(spec.strategy.step_parts)
        except ConfigError as error:
            if name in named:
                raise
            if not named:
                console.note(f"note: {name} is left out: {error}")
    return subjects_of(parts, named or parts)


# --- saves, loads and detection ---------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Seconds of a save or a load of the whole model, and the fraction of them that is fixed.

    By a line through measured ones (least squares of relative errors), one for each round.
    """

    full_s: Spread
    fixed_frac: Spread

    @classmethod
    def of(cls, rounds: Iterable[np.ndarray], bytes_full: int) -> "Line":
        """``rounds``: bytes and seconds, a pair a row."""
        fits: list[tuple[float, float]] = []
        for num_bytes, seconds in (each.T for each in rounds):
            slope, fixed_s = np.polyfit(num_bytes, seconds, 1, w=1 / seconds).tolist()
            full_s = fixed_s + slope * bytes_full
            fits.append((full_s, fixed_s / full_s))
        return cls(*map(Spread.interval, zip(*fits, strict=True)))


def measure_saves(config: Config, num_rounds: int, folder: Path, done: Callable[[int, int], None]) -> tuple[Line, Line]:
    """Lines of full saves and loads of several sizes in turn, in the new ``folder``."""
    spec, num = RunSpec(config), len(_SAVE_FRACS)
    store, width = FileStore(folder, keep=1, fsync=config.store.fsync), spec.footprint.row_width
    store.open()
    most, dense = min(1.0, _MOST_SAVE_BYTES / spec.bytes_full), torch.ones(spec.footprint.num_bytes(0) // 4)
    shards = {ps_rank(k): torch.ones(math.ceil(most * rows), width) for k, rows in enumerate(spec.rank_rows)}
    found: list[tuple[float, ...]] = []
    for number in range(num_rounds * num):
        frac = _SAVE_FRACS[(number + number // num) % num]  # each round begins with another one
        parts = {rank: rows_MD[: math.ceil(frac * len(rows_MD))] for rank, rows_MD in shards.items()}
        found.append(_save_and_load(store, number, parts, dense))
        done(number + 1, num_rounds * num)
    store.close()
    rounds = np.array(found).reshape(num_rounds, num, -1)
    return Line.of(rounds[..., :2], spec.bytes_full), Line.of(rounds[..., 2:], spec.bytes_full)


def _save_and_load(
    store: FileStore, number: int, shards: Mapping[Rank, Tensor], dense: Tensor
) -> tuple[int, float, int, float]:
    """Bytes and seconds of a save, and those of its load. All ranks write at once, and then read, each in a thread.

    A save has the dense network and the manifest too. Files are dropped from the page cache before they are read, which
    needs ``store.fsync``.
    """
    read = {rank: torch.empty_like(rows_MD) for rank, rows_MD in shards.items()}
    with ThreadPoolExecutor(len(shards)) as threads:
        began_s = time.perf_counter()
        written = [*threads.map(lambda rank: store.write_base(rank, number, 0, RowSource(shards[rank])), shards)]
        trainer = store.write_dense(CHIEF, number, 0, {"all": dense}, {})
        files = {rank: (record,) for rank, record in zip(shards, written, strict=True)}
        manifest = {"sequence": number, "step": 0, "samples": 0, "kind": "full", "config_hash": ""}
        store.commit(Manifest(**manifest, shards=files, trainer=trainer))
        saved_s = time.perf_counter() - began_s
        for record in written:
            with (store.root / record.path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began_s = time.perf_counter()
        _ = [*threads.map(lambda rank: store.read_rows(files[rank], read[rank]), shards)]
        loaded_s = time.perf_counter() - began_s
    num_bytes = sum(record.payload_bytes for record in written)
    return num_bytes + trainer.payload_bytes, saved_s, num_bytes, loaded_s


def measure_detection(config: Config, num_kills: int, folder: Path) -> Spread:
    """Seconds from SIGKILL of a PS rank until its loss is known, in a run on engine ``rpc`` in ``folder``."""
    hours = [config.profile.job_h * number / (num_kills + 1) for number in range(1, num_kills + 1)]
    write_trace(folder / "kills.csv", ((hour, ps_rank(i % config.num_ps)) for i, hour in enumerate(hours)))
    one = quiet(config)
    num_samples = _STEPS_PER_KILL * (num_kills + 1) * config.trainer.batch_size
    keys = {
        "engine": "rpc",
        "data": one.data.model_copy(update={"max_train_samples": num_samples}),
        "metrics": one.metrics.model_copy(update={"log_every_steps": 1}),
        "strategy": options_of("never_save"),
        "trace": TraceConfig(path=str(folder / "kills.csv")),
    }
    kills = recovery.measure(one.model_copy(update=keys), folder / "run")
    return Spread.interval(each["detect"] for each in kills)


# --- the file ---------------------------------------------------------------------------------------------------------


def constants(
    name: str, config: Config, *, prices: Sequence[Price], save: Line, load: Line, detection: Spread
) -> dict[str, Any]:
    """The keys of the profile to write: the profile of ``config`` with what was measured.

    A part of a step that noise hides is left out; parts that were not measured stay. A full save costs as many hours as
    before, of which the measured fraction is fixed, if its interval lies between 0 and 1. A load costs the hours of a
    full save times the measured ratio of a load to a save, if those of both lie above 0. Detection takes the seconds of
    this machine, if they have an interval. Else the hours stay.
    """
    given, base = config.profile, config.profile.name.rstrip("*")
    base = base if base in PROFILES else next(iter(PROFILES))
    changed = {key: value for key, value in given if value != getattr(PROFILES[base], key)}
    save_h = given.o_save_h + given.o_save_fixed_h
    fracs = {**(given.step_frac or {}), **{price.subject.part: price.frac for price in prices}}
    measured: dict[str, Any] = {
        "name": name,
        "step_frac": {part: round(frac, 5) for part, frac in fracs.items() if frac is not None},
    }
    if math.isfinite(detection.low):
        measured["detect_death_h"] = round(detection.median / 3600, 8)
    if save.full_s.low > 0 and 0 < save.fixed_frac.low <= save.fixed_frac.high < 1:
        fixed_h = save.fixed_frac.median * save_h
        measured |= {"o_save_fixed_h": round(fixed_h, 6), "o_save_h": round(save_h - fixed_h, 6)}
    if save.full_s.low > 0 and load.full_s.low > 0:
        measured["o_load_h"] = round(save_h * load.full_s.median / save.full_s.median, 6)
    return {"base": base, **changed, **measured}


def lines_of(prices: Sequence[Price], save: Line, load: Line, detection: Spread) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for price in prices:
        part, strategy, base = price.subject
        spreads = map(Spread.interval, (price.touching, price.choosing, price.control))
        shown = "unknown" if price.frac is None else f"{price.frac:.2%}"
        rows.append((part, f"{strategy} less {base}", *(each.show() for each in (price.total, *spreads)), shown))
    yield from (*table(("% of a step", "of", "all", "touching", "choosing", "control", "price"), rows), "")
    for name, line in (("save", save), ("load", load)):
        fixed = Spread(*(100 * each for each in astuple(line.fixed_frac)))
        yield f"a full {name}: {line.full_s.show(3)} s, of which {fixed.show(1)} % are fixed"
    yield f"detection of a death: {detection.show(3)} s"


def measure(options: argparse.Namespace) -> None:
    """Measure the prices with the data, the model and the batches of a configuration, and write them."""
    refuse_to_overwrite(options.out, options.config, force=options.force)
    if options.out.suffix != ".yaml":
        raise ConfigError(f"--out: expected FILE.yaml, as the key profile takes it, got {options.out}")
    configs = load_each(options.config, options.overrides, STRATEGIES)
    subjects = chosen_subjects(configs, options.strategies)
    spec = RunSpec(configs["partial"])
    config, num_threads = spec.config, spec.config.trainer.num_threads
    if config.trainer.device != "cpu":
        raise ConfigError(f"trainer.device: expected cpu, got {config.trainer.device}; processor time is measured")
    num_turns, most = max(1, options.steps // options.sets // TURN_STEPS), spec.num_steps // TURN_STEPS - WARM_UP_TURNS
    if num_turns > most:
        least = (WARM_UP_TURNS + num_turns) * TURN_STEPS * config.trainer.batch_size
        why = f"{options.steps} steps in {options.sets} sets; fewer --steps or more --sets take fewer"
        raise ConfigError(f"data: expected at least {least:,} training samples for {why}, got {spec.total_samples:,}")

    def make_run(strategy: str) -> Run:
        return Run(configs[strategy], options.job_samples)

    spec.dataset.verify()
    torch.set_num_threads(num_threads)
    with tempfile.TemporaryDirectory(prefix="measure-") as folder:
        with amount_progress("detection"):
            detection = measure_detection(config, options.kills, Path(folder))
        prices = list[Price]()
        for subject in subjects:
            with amount_progress(subject.part) as done:
                prices.append(measure_sets(subject, make_run, options.sets, num_turns, done))
        with amount_progress("saves") as done:
            save, load = measure_saves(config, options.rounds, Path(folder) / "saves", done)
    setting = (
        f"{spec.num_rows:,} rows of {spec.footprint.row_width} values, batches of {config.trainer.batch_size}, "
        f"{config.num_ps} PS ranks, {num_threads} threads; {options.sets} sets of {num_turns * TURN_STEPS} steps of "
        f"each run; rows are chosen for a job of {options.job_samples:,} samples; medians and 95 % intervals"
    )
    figures = {"prices": prices, "save": save, "load": load, "detection": detection}
    lines = report(options, [setting, "", *lines_of(prices, save, load, detection)], figures, threads=num_threads)
    values = constants(options.out.stem, config, prices=prices, save=save, load=load, detection=detection)
    comments = "".join(f"# {line}".rstrip() + "\n" for line in (shlex.join(sys.argv), *lines))
    write_text(options.out.resolve(), comments + to_yaml(values))
    console.say(f"wrote {options.out}: a profile, for run.py plan {options.out}, or profile={options.out} in a run")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("config", type=Path, metavar="CONFIG.yaml")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="config changes")
    made.add_argument("--out", type=Path, required=True, metavar="FILE.yaml", help="file to write")
    made.add_argument("--force", action="store_true", help="overwrite it if it exists")
    made.add_argument(
        "--strategies", nargs="+", default=[], metavar="NAME", choices=[*STRATEGIES], help="whose parts (all)"
    )
    for name, (default, text) in COUNTS.items():
        made.add_argument(f"--{name}", type=count, default=default, metavar="N", help=f"{text} ({default})")
    try:
        measure(made.parse_intermixed_args())
    except HarnessError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
