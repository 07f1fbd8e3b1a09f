#!/usr/bin/env python3
"""The command line: parse, run, exit code. What a command does is in harness/commands.py.

Exit codes: 0 well; 1 a run, a cell or a comparison failed; 2 bad input, one line on stderr; 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_OVERRIDES = """\
key=value sets one configuration key, dotted, the value as YAML:
  seed=3  strategy.name=cpr_mfu  trainer.learning_rate=1e-2  trace.path=  (empty: null)
`run.py schema` lists every key with what it takes."""


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        """One line on stderr, exit code 2."""
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def _parser() -> _Parser:
    parser = _command(
        None,
        "run.py",
        "When a parameter server dies in the middle of training, what is the cheapest thing to do that does not hurt "
        "the model?",
        """\
from nothing to a table of strategies:
  run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0
  run.py data prepare demo/criteo.tsv --out demo/data
  run.py grid experiments/quickstart.yaml
then look closer:
  run.py show demo/quickstart/rpc-cpr_mfu-seed0-*      what happened in one run
  run.py compare runs/strategies runs/rpc_kills        paired differences of two grids

`run.py COMMAND --help` explains each command.""",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_runs(commands)
    _add_records(commands)
    _add_data(commands)
    _add_plan(commands)
    _add_traces(commands)
    _command(commands, "schema", "print the JSON schema of a configuration", "run.py schema > config.schema.json")
    return parser


def _add_runs(commands: argparse._SubParsersAction) -> None:
    train = _command(
        commands,
        "train",
        "train once, with failures and recoveries as configured",
        f"""\
  run.py train experiments/one.yaml
  run.py train experiments/one.yaml engine=rpc strategy.name=full out=runs/full

The run is written to the folder that the key `out` names. A finished run there is shown, not repeated; an
unfinished one starts afresh; a run of another config is left alone.

{_OVERRIDES}""",
    )
    _add_config(train)
    grid = _command(
        commands,
        "grid",
        "run every cell of an experiment; rerun to resume",
        f"""\
  run.py grid experiments/quickstart.yaml
  run.py grid experiments/quickstart.yaml 'seed=[0,1,2,3,4]' 'strategy.name=[none,full]'  sweep other values
  run.py grid experiments/quickstart.yaml engine=local out=runs/local                     fix a key in all cells
  run.py grid experiments/quickstart.yaml --dry-run                                       list cells, run nothing

Each cell has a folder <out>/<slug>-<hash>/. Cells that are done are not touched again, unfinished ones start
afresh, a changed config is a new cell. A failed cell does not stop the others; it is named at the end.

{_OVERRIDES}
A list makes a sweep axis in every grid of the file, or replaces the one there.""",
    )
    _add_config(grid, metavar="EXPERIMENT.yaml")
    grid.add_argument(
        "--jobs", type=_count, metavar="N", help="cells at once (default: one per core; rpc cells run alone)"
    )
    grid.add_argument("--dry-run", action="store_true", help="list the cells and what is done, run nothing")
    replay = _command(
        commands,
        "replay",
        "train once under a failure trace",
        f"""\
  run.py replay failure_traces/busy.csv experiments/one.yaml strategy.name=cpr_mfu

The same as `train` with trace.path=TRACE.csv, written to <out>-<trace> unless out=... says otherwise.

{_OVERRIDES}""",
    )
    replay.add_argument("trace", type=Path, metavar="TRACE.csv", help="a failure trace (failure_traces/README.md)")
    _add_config(replay)
    verify = _command(
        commands,
        "verify",
        "check that both engines agree to the bit, for every strategy",
        f"""\
  run.py verify experiments/one.yaml

Runs every strategy on `local` and on `rpc`, with kills right before and right after a save besides those of the
trace, and compares losses, parameters, AUC, PLS and every event. Exit code 1 on any difference.

{_OVERRIDES}""",
    )
    _add_config(verify)


def _add_records(commands: argparse._SubParsersAction) -> None:
    show = _command(commands, "show", "tell the story of one run", "run.py show runs/one")
    show.add_argument("dir", type=Path, metavar="DIR", help="a run folder")
    compare = _command(
        commands,
        "compare",
        "paired differences between runs",
        """\
  run.py compare runs/strategies runs/rpc_kills     cells of equal strategy and seed, in pairs
  run.py compare runs/one runs/other                two runs
  run.py compare runs/updates --to cpr_mfu          the strategies of one grid against one of them""",
    )
    compare.add_argument("dirs", type=Path, nargs="+", metavar="DIR", help="run or grid folders, the first is the base")
    compare.add_argument("--to", metavar="STRATEGY", help="with one folder: compare its other strategies with this one")
    report = _command(
        commands, "report", "write one self-contained HTML file: table and figures", "run.py report demo/quickstart"
    )
    report.add_argument("dir", type=Path, metavar="DIR", help="a run or grid folder")


def _add_data(commands: argparse._SubParsersAction) -> None:
    data = _command(
        commands,
        "data",
        "make, prepare and look at click logs",
        """\
  run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0
  run.py data prepare demo/criteo.tsv --out demo/data
  run.py data info demo/data""",
    )
    kinds = data.add_subparsers(dest="data_command", metavar="COMMAND", required=True)
    prepare = _command(
        kinds,
        "prepare",
        "pack Criteo's text format into a folder that runs read",
        """\
  run.py data prepare train.txt --out data/kaggle                                      Kaggle
  run.py data prepare day_*.gz --out data/terabyte --max-ind-range 10000000            Terabyte
  run.py data prepare day_0.gz --out data/hashed --categories hash --max-ind-range 1000000""",
    )
    prepare.add_argument("sources", type=Path, nargs="+", metavar="SRC", help="TSV files, plain or .gz, in order")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make (the key data.path)")
    prepare.add_argument(
        "--categories",
        choices=("number", "hash"),
        default="number",
        help="number ids in order of first appearance, or hash them to --max-ind-range (default: number)",
    )
    prepare.add_argument("--max-ind-range", type=_count, metavar="N", help="take every category modulo N")
    synth = _command(
        kinds,
        "synth",
        "write a synthetic Criteo, in the same text format",
        "run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0",
    )
    synth.add_argument("--rows", type=_count, required=True, metavar="N", help="how many; 6 of 7 are trained on")
    synth.add_argument("--out", type=Path, required=True, metavar="FILE.tsv", help="file to write; .gz compresses")
    synth.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    synth.add_argument("--scale", type=float, metavar="F", help="size of the tables as a fraction of Kaggle's")
    info = _command(
        kinds, "info", "verify prepared data; rows, positives, table sizes and skew of it", "run.py data info demo/data"
    )
    info.add_argument("dir", type=Path, metavar="DIR", help="folder written by `data prepare`")


def _add_plan(commands: argparse._SubParsersAction) -> None:
    plan = _command(
        commands,
        "plan",
        "advise how often to save and how to recover, for a profile or a trace, before anything is trained",
        f"""\
  run.py plan cpr56                                               CPR's emulated cluster
  run.py plan cpr56 strategy.pls_target=0.01 cluster.num_ps=32    another target, more ranks
  run.py plan failure_traces/preset-llama3.csv                    MTBF and ranks of a trace
  run.py plan poster50 --simulate 10000 --figure plan.svg         what chance does, and a picture

{_OVERRIDES}
Those that matter here: profile.job_h, profile.mtbf_h, profile.o_save_h, profile.o_load_h, profile.o_res_h,
profile.ranks_per_failure, cluster.num_ps, strategy.pls_target, strategy.r, model.size.""",
    )
    plan.add_argument("subject", metavar="PROFILE|TRACE.csv", help="a profile's name or a failure trace")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="changes, see below")
    plan.add_argument("--simulate", type=_count, metavar="K", help="replay K generated traces through the ledgers")
    plan.add_argument("--model", default="exponential", help="law of the gaps between failures (default: exponential)")
    plan.add_argument("--shape", type=float, help="of gamma and weibull, sigma of lognormal")
    plan.add_argument("--seed", type=int, default=0, help="of the generated traces (default: 0)")
    plan.add_argument("--figure", type=Path, metavar="FILE.svg", help="overhead against interval")
def _add_traces(commands: argparse._SubParsersAction) -> None:
    trace = _command(
        commands,
        "trace",
        "make failure traces of cluster logs, look at them, generate them",
        """\
  run.py trace import fault_trace.json --format infinitehbd --out llm.csv \\
      --window densest --length 56 --ranks 8                 a window of a real log on a job's 8 ranks
  run.py trace show llm.csv                                  MTBF, gaps, fits
  run.py trace generate --model weibull --shape 0.7 --mtbf-h 28 --ranks 8 --length 56 --out made.csv
  run.py replay llm.csv experiments/one.yaml                 train under it""",
    )
    kinds = trace.add_subparsers(dest="trace_command", metavar="COMMAND", required=True)
    _add_import(kinds)


def _add_import(kinds: argparse._SubParsersAction) -> None:
    parser = _command(
        kinds,
        "import",
        "turn a public failure log, in its original form, into a trace",
        """\
  run.py trace import fault_trace.json --format infinitehbd --out all.csv         every node a rank, all hours
  run.py trace import LA-UR-05-7318-system20.csv --format lanl --out lanl.csv \\
      --from 2003-01-01 --to 2004-01-01 --stretch 56 --keep-rate 8   a year squeezed into 56 h, thinned to 8 ranks
  run.py trace import p3-trace.csv --format bamboo --out spot.csv --ranks 8       all nodes' failures on 8 ranks
  run.py trace import jobs.csv --format intervals --unit s --out jobs-trace.csv   node,start,end

What a rule of the format drops or mends is counted and told, and stands in the trace's header; --strict refuses the
file instead. Formats and rules: docs/TRACES.md.""",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the log")
    parser.add_argument(
        "--format", required=True, metavar="FORMAT", help="infinitehbd, lanl, bamboo, skypilot, fta, philly, intervals"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file to write")
    parser.add_argument("--force", action="store_true", help="write it even if it is there")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a file with any record that a rule would drop or mend"
    )
    parser.add_argument(
        "--unit", choices=("ms", "s", "m", "h", "d"), help="of the times in an `intervals` file (default: h)"
    )
    window = parser.add_argument_group("which hours (default: all)")
    window.add_argument("--from", dest="first", metavar="WHEN", help="hours since the log begins, or an ISO date")
    window.add_argument("--to", dest="last", metavar="WHEN", help="the same")
    window.add_argument("--window", choices=("densest", "median", "quietest"), help="that of all windows of --length")
    window.add_argument("--length", type=_positive, metavar="H", help="hours of the window")
    window.add_argument(
        "--stretch", type=_positive, metavar="H", help="hours of the job that the window becomes; repairs in proportion"
    )
    nodes = parser.add_argument_group("which nodes, onto which ranks (default: a rank for every node)")
    nodes.add_argument("--nodes", metavar="REGEX", help="only nodes whose whole name matches")
    nodes.add_argument(
        "--ranks", type=_count, metavar="N", help="ranks of the job; they share the failures of all nodes"
    )
    nodes.add_argument(
        "--keep-rate",
        type=_count,
        metavar="N",
        help="ranks of the job; failures are thinned so that a rank fails as often as a node",
    )
    nodes.add_argument(
        "--num-nodes", type=_count, metavar="M", help="nodes that were watched, if the log names only those that failed"
    )
    nodes.add_argument(
        "--map",
        choices=("by-node", "round-robin", "seeded"),
        help="node to rank (default: by-node, round-robin where there are fewer ranks)",
    )
    nodes.add_argument(
        "--no-repairs", action="store_true", help="leave repair times out: rescheduling takes the profile's O_res"
    )
    nodes.add_argument("--seed", type=int, default=0, help="of --keep-rate and --map seeded (default: 0)")


def _command(commands: argparse._SubParsersAction | None, name: str, summary: str, examples: str) -> _Parser:
    texts = {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if examples.startswith((" ", "from")) else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
    return _Parser(prog=name, **texts) if commands is None else commands.add_parser(name, help=summary, **texts)


def _add_config(parser: argparse.ArgumentParser, metavar: str = "CONFIG.yaml") -> None:
    parser.add_argument("config", type=Path, metavar=metavar, help="a YAML file (experiments/)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to it, see below")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


_positive.__name__ = "number > 0"
_count.__name__ = "whole number >= 1"  # argparse: "invalid whole number >= 1 value: '0'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if "overrides" in options and not any(word.startswith("-") for word in rest):
        options.overrides += rest  # those that stand after an option
    elif rest:
        parser.error(f"{rest[0]} is not understood")
    from harness import commands  # noqa: PLC0415 - `--help` must not wait for pydantic and torch

    return commands.run(options, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
