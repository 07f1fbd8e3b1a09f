"""What `run.py trace` and `run.py plan` take."""

import argparse
from pathlib import Path

from harness.cli.parsing import OVERRIDES, command, count, positive


def add_plan(commands: argparse._SubParsersAction) -> None:
    plan = command(
        commands,
        "plan",
        "advise how often to save and how to recover, for a profile or a trace, before anything is trained",
        f"""\
  run.py plan cpr56                                               CPR's emulated cluster
  run.py plan cpr56 strategy.pls_target=0.01 cluster.num_ps=32    another target, more ranks
  run.py plan failure_traces/preset-llama3.csv                    MTBF and ranks of a trace
  run.py plan poster50 --simulate 10000 --figure plan.svg         what chance does, and a picture

{OVERRIDES}
Those that matter here: profile.job_h, profile.mtbf_h, profile.o_save_h, profile.o_load_h, profile.o_res_h,
profile.ranks_per_failure, cluster.num_ps, strategy.pls_target, strategy.r, model.size.""",
    )
    plan.add_argument("subject", metavar="PROFILE|TRACE.csv", help="a profile's name or a failure trace")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="changes, see below")
    plan.add_argument("--simulate", type=count, metavar="K", help="replay K generated traces through the ledgers")
    plan.add_argument(
        "--model",
        default="exponential",
        help="law of the gaps: exponential, gamma, weibull, lognormal, "
        "empirical:TRACE.csv, fit:TRACE.csv (default: exponential)",
    )
    plan.add_argument("--shape", type=float, help="of gamma and weibull, sigma of lognormal")
    plan.add_argument("--seed", type=int, default=0, help="of the generated traces (default: 0)")
    plan.add_argument("--figure", type=Path, metavar="FILE.svg", help="overhead against interval")


def add_traces(commands: argparse._SubParsersAction) -> None:
    trace = command(
        commands,
        "trace",
        "make failure traces of cluster logs, look at them, generate them",
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
    parser.add_argument("--unit", metavar="UNIT", help="of the times in an `intervals` file: ms, s, m, h or d")
    parser.add_argument("--system", metavar="NUMBER", help="of a `lanl` file; all systems if none is named")
    parser.add_argument("--by", metavar="WHAT", help="what a node of a `bamboo` file is: slot or instance")
    window = parser.add_argument_group("which hours (default: all)")
    window.add_argument("--from", dest="first", metavar="WHEN", help="hours since the log begins, or an ISO date")
    window.add_argument("--to", dest="last", metavar="WHEN", help="the same")
    window.add_argument("--window", choices=("densest", "median", "quietest"), help="that of all windows of --length")
    window.add_argument("--length", type=positive, metavar="H", help="hours of the window")
    window.add_argument(
        "--stretch", type=positive, metavar="H", help="hours of the job that the window becomes; repairs in proportion"
    )
    nodes = parser.add_argument_group("which nodes, onto which ranks (default: a rank for every node)")
    nodes.add_argument("--nodes", metavar="REGEX", help="only nodes whose whole name matches")
    nodes.add_argument(
        "--ranks", type=count, metavar="N", help="ranks of the job; they share the failures of all nodes"
    )
    nodes.add_argument(
        "--keep-rate",
        type=count,
        metavar="N",
        help="ranks of the job; failures are thinned so that a rank fails as often as a node",
    )
    nodes.add_argument(
        "--num-nodes", type=count, metavar="M", help="nodes that were watched, if the log names only those that failed"
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


def _add_show(kinds: argparse._SubParsersAction) -> None:
    parser = command(
        kinds,
        "show",
        "what can be said of a trace: MTBF, gaps, hazard, repeat offenders, fitted laws",
        """\
  run.py trace show llm.csv
  run.py trace show llm.csv --bootstrap 500 --figures figures      intervals by bootstrap, pictures""",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE.csv", help="a failure trace (failure_traces/README.md)")
    parser.add_argument("--bootstrap", type=count, metavar="B", help="resample B times: goodness of fit, intervals")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="folder for pictures, made if it is not there")


def _add_generate(kinds: argparse._SubParsersAction) -> None:
    parser = command(
        kinds,
        "generate",
        "make a trace up, by a law, after another trace, or of a published regime",
        """\
  run.py trace generate --model weibull --shape 0.7 --mtbf-h 28 --ranks 8 --length-h 56 --out bursts.csv
  run.py trace generate --mtbf-h 13.2 --nodes 512 --ranks 8 --length-h 8760 --stretch-h 56 --out year.csv
  run.py trace generate --model fit:llm.csv --seed 3 --out like-llm.csv
  run.py trace generate --preset llama3 --typical --out llama3.csv

The same options and seed give the same file. docs/TRACES.md explains laws, groups and presets.""",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file to write")
    parser.add_argument("--force", action="store_true", help="write it even if it is there")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--typical", action="store_true", help="the first with as many failures as are expected")
    parser.add_argument("--preset", metavar="NAME", help="cpr56, poster50, llama3, infinitehbd, lanl20 or spot_p3")
    parser.add_argument(
        "--model",
        help="law of the gaps: exponential, gamma, weibull, lognormal, empirical:TRACE.csv, fit:TRACE.csv "
        "(default: exponential)",
    )
    for option, kind, text in _GENERATED:
        parser.add_argument(option, type=kind, metavar={int: "N", float: "X"}.get(kind), help=text)
    parser.add_argument("--per", choices=("system", "rank"), help="whose gaps the law describes (default: system)")
    parser.add_argument(
        "--start",
        choices=("equilibrium", "fresh"),
        help="how long it has been running at hour 0 (default: equilibrium)",
    )
    parser.add_argument("--group-sizes", metavar="SIZE:WEIGHT,…", help="how many ranks a group takes, such as 2:3,4:1")


_GENERATED: tuple[tuple[str, type, str], ...] = (
    ("--shape", float, "of gamma and weibull; sigma of lognormal"),
    ("--ranks", int, "ranks of the job (default: 8)"),
    ("--length-h", float, "hours watched (default: 56)"),
    ("--mtbf-h", float, "mean hours between failures of the system"),
    ("--nodes", int, "that --mtbf-h was measured on: the job's MTBF is mtbf * nodes / ranks"),
    ("--node-mtbf-h", float, "instead: mean hours between deaths of one node"),
    ("--group-probability", float, "that a failure takes several ranks at one instant"),
    ("--rack-size", int, "groups stay within racks of so many ranks"),
    ("--early-factor", float, "the hazard is so many times higher at first"),
    ("--early-h", float, "for so many hours"),
    ("--repair-median-h", float, "median hours down"),
    ("--repair-mean-h", float, "mean hours down"),
    ("--stretch-h", float, "hours that --length-h becomes in the trace"),
)
"""Options of `trace generate` that are fields of ``GeneratorSpec``, unchanged."""
