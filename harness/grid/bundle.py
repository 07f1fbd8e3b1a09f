"""``run.py bundle``: one archive of a grid for artifact evaluation, and a check that runs some of its cells again.

    bundle.json                          data, environments, commands; names of the cells
    grid.yaml                            the resolved experiment
    runs/CELL/config.yaml, env.json, events.jsonl, DONE
    traces/DIGEST/NAME.csv               the traces of the cells
    data/DIGEST/meta.json                what the data are; their records are left out
    plugins/NAME.py                      plugins that are files, to be read

The archive is a tar in xz. Its bytes follow from the records: members in order, no times, no owners.
"""

import json
import lzma
import shlex
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import xxhash

from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, scaled_cardinalities
from harness.core.errors import DataError, HarnessError, StoreError
from harness.core.seeds import generator
from harness.data.records import META_NAME, Meta, read_meta
from harness.files import os_errors, read_file, read_json
from harness.record.event_log import EventLog
from harness.record.rundir import SEALED, RunDir, find_runs, read_config, read_env, read_whole_config, verify

if TYPE_CHECKING:
    from harness.run.verify import OnRunStatus

_VERSION = 1
_MEMBERS = (*SEALED, "DONE")
_FACTS = ("python", "torch", "numpy", "numba", "system", "cpu", "num_cores", "git")
"""Keys of env.json that describe where a cell was run."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A cell that was run again. ``differences``: of the two records, one line each; empty: they are equal to the bit.

    ``auc``: of the record in the archive.
    """

    cell: str
    auc: float | None
    differences: Sequence[str]


def bundle(grid: Path, archive: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write all finished runs of the folder ``grid`` to the new file ``archive``; returns the content of bundle.json.

    ``archive`` appears when it is whole. ``progress(done, total)``: in members.

    Raises:
        StoreError: ``grid`` is no grid's folder or has no finished run, a record or a trace is not as the run wrote or
            read it, ``archive`` exists or cannot be written.
        DataError: the data of a run are missing or differ.
    """
    if archive.exists():
        raise StoreError(f"--out: {archive}: exists; remove it or choose another name")
    if not (grid / "grid.yaml").exists():
        raise StoreError(f"{grid}: expected the folder of a grid (with grid.yaml)")
    members = {"grid.yaml": read_file(grid / "grid.yaml")}
    data: dict[str, Any] = {}
    runs = [RunDir(path) for path in find_runs(grid)]
    done = [run for run in runs if run.status == "done"]
    if not done:
        raise StoreError(f"{grid}: expected finished runs, got {len(runs)} that are not")
    for run in done:
        verify(run)
        members |= {f"runs/{run.name}/{name}": read_file(run.path / name) for name in _MEMBERS}
        members |= _inputs(run, data)
    envs = [read_env(run.path) for run in done]
    machines = {json.dumps({key: env.get(key) for key in _FACTS}) for env in envs}
    about = {
        "version": _VERSION,
        "cells": [run.name for run in done],
        "left_out": [run.name for run in runs if run not in done],
        "commands": sorted({env["command"] for env in envs}),
        "environments": [json.loads(machine) for machine in sorted(machines)],
        "data": data,
    }
    members["bundle.json"] = (json.dumps(about, indent=1) + "\n").encode()
    _write(archive, members, progress)
    return about


def _inputs(run: RunDir, data: dict[str, Any]) -> dict[str, bytes]:
    """The inputs of a run, by name in the archive. Adds its data to ``data``, by digest, unless they are there."""
    config, env = read_config(run.path), read_env(run.path)
    members: dict[str, bytes] = {}
    if (path := config["trace"]["path"]) is not None:
        content, expected = read_file(Path(path)), env["trace"]["digest"]
        if (found := xxhash.xxh3_64_hexdigest(content)) != expected:
            raise StoreError(f"{path}: expected the trace of {run.path} (xxh3 {expected}), got {found}")
        members[f"traces/{expected}/{Path(path).name}"] = content
    for plugin in (name for name in config.get("plugins", ()) if name.endswith(".py")):
        members[f"plugins/{Path(plugin).name}"] = read_file(Path(plugin))
    if (digest := env["data"]["digest"]) not in data:
        folder = Path(config["data"]["path"])
        meta = read_meta(folder, "data.path: ")
        _refuse_other(folder, meta, digest, "run it where its data are")
        data[digest] = {"path": str(folder), "command": _command_of(meta, folder)}
        members[f"data/{digest}/{META_NAME}"] = read_file(folder / META_NAME)
    return members


def _refuse_other(folder: Path, meta: Meta, digest: str, cure: str) -> None:
    if meta.digest != digest:
        raise DataError(f"data.path: {folder}: expected data of digest {digest}, got {meta.digest}; {cure}")


def _command_of(meta: Meta, folder: Path) -> str:
    """The commands that make synthetic data again; of a real log, the names of its files."""
    made = meta.synthetic
    prepare = ["run.py", "data", "prepare", "--out", str(folder), "--categories", meta.categories]
    if meta.max_ind_range is not None:
        prepare += ["--max-ind-range", str(meta.max_ind_range)]
    elif factor := _factor_of(meta.cardinalities if meta.categories == "hash" else meta.table_rows):
        prepare += ["--table-rows", factor]
    held_out = meta.split.options() if meta.split else []
    if made is None:
        return shlex.join([*prepare, *(source.name for source in meta.sources), *held_out])
    log = str(folder.with_suffix(".tsv"))
    synth = ["run.py", "data", "synth", "--rows", str(made.rows), "--seed", str(made.seed), "--like", made.like]
    synth += ["--taper", repr(made.taper), *(["--flat"] if made.flat else []), "--out", log]
    return f"{shlex.join(synth)} && {shlex.join([*prepare, log, *held_out])}"


def _factor_of(sizes: tuple[int, ...] | None) -> str | None:
    """The value of ``--table-rows`` with which tables have these ``sizes``, in the fewest digits; None: no value."""
    if sizes is None or len(sizes) != len(KAGGLE_CARDINALITIES):
        return None
    factor = max(sizes) / max(KAGGLE_CARDINALITIES)
    texts = (f"{factor:.{digits}g}" for digits in range(1, 17))
    return next((text for text in texts if scaled_cardinalities(float(text)) == sizes), None)


def _write(archive: Path, members: Mapping[str, bytes], progress: Callable[[int, int], None]) -> None:
    temporary = archive.with_name(f".{archive.name}.tmp")
    with os_errors(f"{archive}: cannot be written"):
        try:
            with lzma.open(temporary, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
                for number, (name, content) in enumerate(sorted(members.items()), start=1):
                    member = tarfile.TarInfo(name)  # its time and owner are 0
                    member.size = len(content)
                    tar.addfile(member, BytesIO(content))
                    progress(number, len(members))
            temporary.replace(archive)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def opened(archive: Path) -> Iterator[Path]:
    """The folder with the members of an archive, for the time of the block.

    Raises StoreError for a file that is no such archive, or has a member that is a link, a device, or outside.
    """
    with TemporaryDirectory(prefix="bundle-") as name:
        folder = Path(name)
        try:
            with lzma.open(archive) as file, tarfile.open(fileobj=file, mode="r|") as tar:
                for member in tar:
                    path, content = PurePosixPath(member.name), tar.extractfile(member) if member.isreg() else None
                    if content is None or path.is_absolute() or ".." in path.parts:
                        raise StoreError(f"{archive}: {member.name}: expected a file within the archive")
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(content.read())
        except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
            raise StoreError(f"{archive}: expected an archive of `run.py bundle`: {error}") from error
        except OSError as error:
            raise StoreError(f"{archive}: cannot be read: {error.strerror}") from error
        if not (folder / "bundle.json").exists() or read_json(folder / "bundle.json").get("version") != _VERSION:
            raise StoreError(f"{archive}: expected an archive of `run.py bundle`, version {_VERSION}")
        yield folder


def sample(folder: Path, num_cells: int, seed: int) -> tuple[list[RunDir], int]:
    """``num_cells`` cells of an opened archive, or all, drawn by ``seed``; and how many cannot be repeated to the bit.

    These are those with ``trace.inject: wall``. Raises StoreError for a record that was changed.
    """
    runs = [RunDir(folder / "runs" / name) for name in read_json(folder / "bundle.json")["cells"]]
    exact = [run for run in runs if read_config(run.path)["trace"].get("inject") != "wall"]
    order = generator(seed, "bundle").permutation(len(exact))
    chosen = [exact[number] for number in order[:num_cells]]
    for run in chosen:
        verify(run)
    return chosen, len(runs) - len(exact)


def check(
    folder: Path, chosen: Sequence[RunDir], *, data: Path | None = None, on_status: "OnRunStatus | None" = None
) -> Iterator[Checked]:
    """Run cells of an opened archive again, on the engine that they ran on, and compare the records to the bit.

    ``data``: the folder of the data; None: the one that the cell read. A run that fails is a difference. Raises
    DataError, before the first run, if data are missing or differ; the line says how they are made.
    """
    from harness.run import assemble  # noqa: PLC0415 - torch takes a second to import
    from harness.run.verify import compare_records  # noqa: PLC0415

    about = read_json(folder / "bundle.json")["data"]
    configs = [_config_of(folder, run, data, about) for run in chosen]
    assemble.prepare_fork_server()
    for number, (run, config) in enumerate(zip(chosen, configs, strict=True), start=1):
        again = folder / "again" / run.name
        try:
            assemble.run(config, again, on_status=on_status and partial(on_status, number, len(chosen)))
            differences = compare_records(run.path, again)
        except HarnessError as error:
            differences = [str(error)]
        finished = EventLog.of(run).finished
        yield Checked(cell=run.name, auc=finished and finished.auc, differences=differences)


def _config_of(folder: Path, run: RunDir, data: Path | None, about: Mapping[str, Any]) -> Any:
    """The config of a cell, which reads the trace of the archive and the data at hand."""
    env, values = read_env(run.path), read_config(run.path)
    digest, path = env["data"]["digest"], data or Path(values["data"]["path"])
    cure = f"made by: {about[digest]['command']}; data.path= names another folder"
    try:
        meta = read_meta(path, "data.path: ")
    except DataError as error:
        raise DataError(f"{error}; expected data of digest {digest}, {cure}") from error
    _refuse_other(path, meta, digest, cure)
    changes: dict[str, Any] = {"data": {"path": str(path)}, "wandb": {"mode": "disabled"}}
    changes |= {"store": {"keep_finished": False}, "cluster": {"launcher": "fork"}}  # no command of the archive's
    if (trace := values["trace"]["path"]) is not None:
        changes["trace"] = {"path": str(folder / "traces" / env["trace"]["digest"] / Path(trace).name)}
    return read_whole_config(run.path, changes)
