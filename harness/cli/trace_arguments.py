"""Arguments of `run.py trace` and `run.py plan`."""

import argparse
from pathlib import Path

from harness.cli.parsing import OVERRIDES, WINDOWS, add_mapping, command, count, positive

_MODEL = (
    "law of the gaps: exponential, gamma, weibull, lognormal, empirical:TRACE.csv, fit:TRACE.csv (default: exponential)"
)
_SHAPE = "shape of gamma and weibull, sigma of lognormal"


def add_plan(commands: argparse._SubParsersAction) -> None:
    plan = command(
        commands,
        "plan",
        "choose how often to save and how to recover, for a profile or a trace, without training",
        f"""\
  run.py plan cpr56                                               CPR's emulated cluster
  run.py plan cpr56 strategy.pls_target=0.01 cluster.num_ps=32    another target, more ranks
  run.py plan failure_traces/preset-llama3.csv                    MTBF and ranks of a trace
  run.py plan poster50 --simulate 10000 --figure plan.svg         spread over generated traces, and a figure

{OVERRIDES}
Keys that matter here: profile.job_h, profile.mtbf_h, profile.o_save_h, profile.o_load_h, profile.o_res_h,
profile.ranks_per_failure, cluster.num_ps, strategy.pls_target, strategy.r, model.size.""",
    )
    plan.add_argument("subject", metavar="PROFILE|TRACE.csv", help="a profile's name or a failure trace")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="config changes, see below")
    add_mapping(plan)
    plan.add_argument("--simulate", type=count, metavar="K", help="account for K generated traces")
    plan.add_argument("--model", default="exponential", help=_MODEL)
    plan.add_argument("--shape", type=float, help=_SHAPE)
    plan.add_argument("--seed", type=int, default=0, help="of the generated traces (default: 0)")
    plan.add_argument("--figure", type=Path, metavar="FILE.svg", help="file for a figure of overhead against interval")


def add_traces(commands: argparse._SubParsersAction) -> None:
    trace = command(
        commands,
        "trace",
        "import, describe and generate failure traces",
        """\
  run.py trace import fault_trace.json --format infinitehbd --out llm.csv \\
      --window densest --length 56 --ranks 8                 a window of a real log on a job's 8 ranks
  run.py trace show llm.csv                                  MTBF, gaps, fits
  run.py trace generate --model weibull --shape 0.7 --mtbf-h 28 --ranks 8 --length-h 56 --out made.csv
  run.py replay llm.csv experiments/one.yaml                 train under it""",
    )
    kinds = trace.add_subparsers(dest="trace_command", metavar="COMMAND", required=True)
    _add_import(kinds)
    _add_show(kinds)
    _add_generate(kinds)


def _add_import(kinds: argparse._SubParsersAction) -> None:
    parser = command(
        kinds,
        "import",
        "convert a public failure log, in its original form, into a trace",
        """\
  run.py trace import fault_trace.json --format infinitehbd --out all.csv         every node a rank, all hours
  run.py trace import LA-UR-05-7318-system20.csv --format lanl --out lanl.csv \\
      --from 2003-01-01 --to 2004-01-01 --stretch 56 --keep-rate 8   a year scaled to 56 h, thinned to 8 ranks
  run.py trace import p3-trace.csv --format bamboo --out spot.csv --ranks 8       all nodes' failures on 8 ranks
  run.py trace import jobs.csv --format intervals --unit s --out jobs-trace.csv   node,start,end

Records that a rule of the format drops or mends are counted, here and in the trace's header; --strict refuses such a
file instead. Formats and rules: docs/TRACES.md.""",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the log")
    formats = "infinitehbd, lanl, bamboo, skypilot, fta, philly, intervals"
    parser.add_argument("--format", required=True, metavar="FORMAT", help=formats)
    _add_out(parser)
    parser.add_argument("--strict", action="store_true", help="refuse a file with a record that a rule drops or mends")
    parser.add_argument("--unit", metavar="UNIT", help="unit of the times in an `intervals` file: ms, s, m, h or d")
    parser.add_argument("--system", metavar="NUMBER", help="system of a `lanl` file (default: all systems)")
    parser.add_argument("--by", metavar="WHAT", help="node of a `bamboo` file: slot (default) or instance")
    window = parser.add_argument_group("window of hours (default: all)")
    window.add_argument("--from", dest="first", metavar="WHEN", help="hours since the log begins, or an ISO date")
    window.add_argument("--to", dest="last", metavar="WHEN", help="the same")
    window.add_argument("--window", choices=WINDOWS, help="by the failures in --length hours")
    window.add_argument("--length", type=positive, metavar="H", help="hours of the window")
    stretch = "hours to which the window is scaled, repair times in proportion"
    window.add_argument("--stretch", type=positive, metavar="H", help=stretch)
    nodes = parser.add_argument_group("nodes and ranks (default: a rank for every node)")
    nodes.add_argument("--nodes", metavar="REGEX", help="only nodes whose whole name matches")
    nodes.add_argument("--ranks", type=count, metavar="N", help="ranks of the job; they have the failures of all nodes")
    keep = "ranks of the job; failures are thinned so that a rank fails as often as a node"
    nodes.add_argument("--keep-rate", type=count, metavar="N", help=keep)
    hosts = "hosts of the job instead of ranks (docs/HOSTS.md): each is lost by its first failure, with all its ranks"
    nodes.add_argument("--hosts", type=count, metavar="N", help=hosts)
    watched = "nodes that were watched, if the log names only those that failed"
    nodes.add_argument("--num-nodes", type=count, metavar="M", help=watched)
    mapping = "node to rank (default: by-node; round-robin where there are fewer ranks)"
    nodes.add_argument("--map", choices=("by-node", "round-robin", "seeded"), help=mapping)
    repairs = "leave repair times out, so that trace.repair=reschedule cannot charge them"
    nodes.add_argument("--no-repairs", action="store_true", help=repairs)
    nodes.add_argument("--seed", type=int, default=0, help="of --keep-rate and --map seeded (default: 0)")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file to write")
    parser.add_argument("--force", action="store_true", help="overwrite it if it exists")


def _add_show(kinds: argparse._SubParsersAction) -> None:
    parser = command(
        kinds,
        "show",
        "describe a trace: MTBF, fitted laws, repeat offenders",
        """\
  run.py trace show llm.csv
  run.py trace show llm.csv --figures figures      the survival figure, as SVG and PNG""",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE.csv", help="a failure trace (failure_traces/README.md)")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="folder for the figure, created if missing")


def _add_generate(kinds: argparse._SubParsersAction) -> None:
    parser = command(
        kinds,
        "generate",
        "generate a trace by a law, after another trace, or of a published regime",
        """\
  run.py trace generate --model weibull --shape 0.7 --mtbf-h 28 --ranks 8 --length-h 56 --out bursts.csv
  run.py trace generate --mtbf-h 13.2 --nodes 512 --ranks 8 --length-h 8760 --stretch-h 56 --out year.csv
  run.py trace generate --model fit:llm.csv --seed 3 --out like-llm.csv
  run.py trace generate --preset llama3 --typical --out llama3.csv

The same options and seed give the same file. docs/TRACES.md explains laws, groups and presets.""",
    )
    _add_out(parser)
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--typical", action="store_true", help="the first trace with the expected number of failures")
    parser.add_argument("--preset", metavar="NAME", help="cpr56, poster50, llama3, infinitehbd, lanl20 or spot_p3")
    parser.add_argument("--model", help=_MODEL)
    for option, kind, text in _GENERATED:
        parser.add_argument(option, type=kind, metavar={int: "N", float: "X"}.get(kind), help=text)
    parser.add_argument("--per", choices=("system", "rank"), help="whose gaps follow the law (default: system)")
    start = "state of the failure process at hour 0: long running or new (default: equilibrium)"
    parser.add_argument("--start", choices=("equilibrium", "fresh"), help=start)
    parser.add_argument("--group-sizes", metavar="SIZE:WEIGHT,…", help="numbers of ranks in a group, such as 2:3,4:1")


_GENERATED: tuple[tuple[str, type, str], ...] = (
    ("--shape", float, _SHAPE),
    ("--ranks", int, "ranks of the job (default: 8)"),
    ("--length-h", float, "hours of the trace (default: 56)"),
    ("--mtbf-h", float, "mean hours between failures of the system"),
    ("--nodes", int, "nodes of that system; the job's MTBF is then mtbf * nodes / ranks"),
    ("--node-mtbf-h", float, "mean hours between deaths of one node, instead of --mtbf-h"),
    ("--group-probability", float, "probability that a failure kills several ranks at one instant"),
    ("--rack-size", int, "groups stay within racks of so many ranks"),
    ("--early-factor", float, "factor of the hazard in the first --early-h hours"),
    ("--early-h", float, "hours of that higher hazard"),
    ("--repair-median-h", float, "median repair time in hours"),
    ("--repair-mean-h", float, "mean repair time in hours"),
    ("--stretch-h", float, "hours to which the trace is scaled from --length-h"),
)
"""Options of `trace generate` that are fields of ``GeneratorSpec``, unchanged."""
