"""Every table, comparison and report of 390 finished, damaged and old runs, as files to compare across commits.

    python tests/soak/outputs.py make CORPUS            data, 392 run folders; three minutes
    python tests/soak/outputs.py show CORPUS BEFORE     by the code of this checkout; two minutes
    diff -r BEFORE AFTER                                a change of the analysis shows here, to the letter

Times, and ids in figures that matplotlib draws at random, are left out. `make` on one commit, `show` on two.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import run  # noqa: E402

EIGHT = ["none", "never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu"]
OTHERS = ["cpr_mass", "cpr_scar", "cpr_mirror", "buddy"]
BUSY: dict[str, Any] = {"profile": "busy", "trace": {"path": "failure_traces/busy.csv"}, "cluster": {"num_ps": 4}}
TEN: dict[str, Any] = {"trace": {"law": {"model": "fixed", "number": 10}}}


def _settings(profile: Any, *traces: str) -> dict[str, Any]:
    paths = [f"failure_traces/{name}.csv" for name in traces]
    names = ["none", "full", "cpr_vanilla", "cpr_mfu"]
    return {"profile": [profile], "trace.path": paths, "seed": [0, 1], "strategy.name": names}


EXPERIMENTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "quick": (
        {"profile": "busy", "cluster": {"num_ps": 4}},
        [
            {"seed": [0, 1, 2, 3, 4], "trace.path": ["failure_traces/poisson-{seed}.csv"], "strategy.name": EIGHT},
            {"seed": [0, 1, 2], "strategy.name": ["none"], "trainer.backend": ["torch"]},
            {
                "engine": ["rpc"],
                "seed": [0],
                "trace.path": ["failure_traces/poisson-0.csv"],
                "strategy.name": EIGHT[2:],
            },
        ],
    ),
    "target": (
        {"profile": "cpr56", **TEN},
        [
            {"seed": [0, 1, 2], "strategy.name": ["none", "full"]},
            {"seed": [0, 1, 2], "strategy.name": ["cpr_mfu", "cpr_ssu"], "strategy.pls_target": [0.02, 0.1, 0.2]},
        ],
    ),
    "settings": (
        {},
        [
            _settings("cpr56", "preset-cpr56", "two_in_56h"),
            _settings("poster50", "poster50"),
            _settings({"base": "cpr56", "name": "llama3", "mtbf_h": 3.09}, "preset-llama3"),
        ],
    ),
    "caches": (
        {"profile": "cpr56", "strategy": {"name": "none"}, "cache": {"mode": "stale", "workers": 8}},
        [{"seed": [0, 1], "cache.staleness": [0, 10, 100]}],
    ),
    "priced": (
        {"profile": {"base": "cpr56_priced", "name": "ten failures", "mtbf_h": 5.6}, "eval": {"points": 0}, **TEN},
        [
            {"seed": [0, 1, 2], "strategy.name": EIGHT + OTHERS},
            {"seed": [0, 1, 2], "strategy.name": ["differential"], "strategy.recovery": ["partial", "full"]},
            {"seed": [0, 1, 2], "strategy.name": ["differential"], "strategy.bits": [8]},
        ],
    ),
    "trainers": (
        BUSY | {"engine": "rpc", "cluster": {"num_ps": 4, "num_trainers": 2}},
        [{"seed": [0], "strategy.name": ["none", "full", "cpr_mfu", "buddy"]}],
    ),
    **{
        f"one-{name}": (
            BUSY,
            [{"seed": [0, 1, 2, 3], "strategy.name": ["none", name], "trainer.optimizer": ["sgd", "adagrad"]}],
        )
        for name in [*EIGHT[1:], *OTHERS, "differential"]
    },
}
"""Experiments by name: keys of all cells, and grids."""


def make(corpus: Path) -> None:
    """Run all experiments, and damage a copy of some of their runs."""
    for words in (
        ["data", "synth", "--rows", "24000", "--seed", "0", "--out", f"{corpus}/log.tsv"],
        ["data", "prepare", f"{corpus}/log.tsv", "--out", f"{corpus}/data", "--max-ind-range", "500"],
    ):
        run.main(words)
    every = {"data": {"path": f"{corpus}/data", "max_train_samples": 6400}, "model": {"size": "tiny"}}
    every["wandb"] = {"mode": "disabled"}
    for name, (keys, grids) in EXPERIMENTS.items():
        file = corpus / f"{name}.yaml"  # JSON is YAML
        file.write_text(json.dumps({"name": name, "out": f"{corpus}/runs/{name}", **every, **keys, "grids": grids}))
        run.main(["grid", str(file)])
    _damage(corpus / "runs" / "quick", corpus / "runs" / "damaged")


def _damage(source: Path, target: Path) -> None:
    """Copies of 30 runs: nine damaged, each otherwise, three also as results of other code."""
    cells = sorted(path for path in source.glob("local-*") if (path / "config.yaml").exists())[:30]
    for cell in cells:
        shutil.copytree(cell, target / cell.name)
    copies = [target / cell.name for cell in cells]
    changes: list[Callable[[Path], Any]] = [
        lambda cell: os.truncate(cell / "events.jsonl", (cell / "events.jsonl").stat().st_size // 2),
        lambda cell: _edit(cell / "events.jsonl", lambda text: text.replace("1", "2", 1)),
        lambda cell: (cell / "env.json").unlink(),
        lambda cell: (cell / "config.yaml").write_text("strategy: [\n"),
        lambda cell: (cell / "DONE").unlink(),
        lambda cell: (cell / "events.jsonl").unlink(),
        lambda cell: (cell / "DONE").write_text("{}"),
        _interrupted,
        _contradicting,
    ]
    for change, cell in zip(changes, copies, strict=False):
        change(cell)
    for cell in copies[9:12]:
        shutil.copytree(cell, cell.with_name(re.sub(r"-[0-9a-f]{8}$", "-00c0ffee", cell.name)))


def _edit(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text()))


def _interrupted(cell: Path) -> None:
    """A record of 20 events and a part of one, without a DONE file."""
    (cell / "DONE").unlink()
    _edit(cell / "events.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:20]) + '{"event": "tr')


def _contradicting(cell: Path) -> None:
    """A record of a run without a seal, whose hours do not add up."""
    lines = [json.loads(line) for line in (cell / "events.jsonl").read_text().splitlines()]
    lines[-1]["save_h"] += 0.5
    (cell / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    seal = json.loads((cell / "DONE").read_text())
    (cell / "DONE").write_text(json.dumps({key: seal[key] for key in ("time", "num_events")}))


def show(corpus: Path, out: Path) -> None:
    """Write all outputs below ``out``, and say what the slowest commands took."""
    seconds: dict[str, float] = {}

    def say(file: Path, *words: str) -> None:
        streams = io.StringIO(), io.StringIO()
        began = time.perf_counter()
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = run.main([*words])
        seconds[" ".join(words[:2])] = time.perf_counter() - began
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "\n".join([f"exit code {code}", *(each.getvalue() for each in streams)]).replace(str(out), "OUT")
        )

    for grid in sorted((corpus / "runs").iterdir()):
        folder, name = out / grid.name, str(grid)
        say(folder / "table.txt", "table", name)
        for kind in ("csv", "latex", "markdown"):
            say(folder / f"table.{kind}", "table", name, "--format", kind)
        for other in ("none", "full", "cpr_mfu"):
            say(folder / f"compare-{other}.csv", "compare", name, "--to", other, "--format", "csv")
        say(folder / "compare.txt", "compare", name, "--to", "full")
        say(folder / "report.txt", "report", name, "--files", str(folder / "files"))
        shutil.copy(grid / "report.html", folder)
        cells = [cell for cell in sorted(grid.iterdir()) if (cell / "config.yaml").exists()]
        for cell in cells if grid.name == "damaged" else cells[:3]:
            say(folder / "show" / f"{cell.name}.txt", "show", str(cell))
    say(out / "compare.csv", "compare", f"{corpus}/runs/quick", f"{corpus}/runs/one-full", "--format", "csv")
    say(out / "all.csv", "table", f"{corpus}/runs", "--format", "csv")
    for file in out.rglob("*.*"):
        if file.suffix in (".html", ".svg", ".txt", ".csv"):
            text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00)?( UTC)?", "TIME", file.read_text())
            file.write_text(re.sub(r'(id="|#|url\(#|href="#)[A-Za-z]{0,3}[0-9a-f]{10}', r"\1ID", text))
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:5]
    sys.stdout.write(f"{sum(seconds.values()):.0f} s; slowest: {slowest}\n")


def main() -> None:
    """Entry point."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=("make", "show"))
    made.add_argument("corpus", type=Path)
    made.add_argument("out", type=Path, nargs="?")
    options = made.parse_args()
    corpus = options.corpus.resolve()
    corpus.mkdir(parents=True, exist_ok=True)
    os.environ.update(COLUMNS="220", NO_COLOR="1", TERM="dumb", MPLBACKEND="agg")
    if options.command == "show" and options.out is None:
        made.error("show: expected a folder for the outputs")
    out = options.out and options.out.resolve()
    os.chdir(ROOT)
    if out is None:
        make(corpus)
    else:
        show(corpus, out)


if __name__ == "__main__":
    main()
