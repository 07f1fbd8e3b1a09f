"""The commands of run.py, their arguments, and the functions that carry them out, as ``module:function`` of this room.

Imports nothing heavy, so that ``--help`` takes 0.2 s.
"""

import argparse
from pathlib import Path
from typing import Any

from harness.cli.parsing import OVERRIDES, Pairs, Parser, WordParser, command, count, pair, positive, seconds

GRACE_S = 25.0
"""Seconds between a signal that asks a command to stop, and its end: schedulers often give 30."""

_SHARED: dict[str, dict[str, Any]] = {
    "config": {"type": Path, "metavar": "CONFIG.yaml", "help": "a YAML file (experiments/)"},
    "overrides": {"nargs": "*", "metavar": "key=value", "help": "changes to it, see below"},
    "dir": {"type": Path, "metavar": "DIR", "help": "a run or grid folder"},
    "trace": {"type": Path, "metavar": "TRACE.csv", "help": "a failure trace (failure_traces/README.md)"},
    "--afresh": {
        "action": "store_true",
        "help": "remove what there is of the run, finished or not, and start anew",
    },
    "--grace": {
        "type": seconds,
        "default": GRACE_S,
        "metavar": "SECONDS",
        "help": "after the first SIGINT or SIGTERM: time to finish the step and leave a resume point; 0: none "
        "(default: %(default)g)",
    },
    "--format": {
        "choices": ("csv", "latex", "markdown"),
        "help": "csv: unrounded numbers; latex, markdown: for a paper (default: a table for the console)",
    },
    "--explain": {"action": "store_true", "help": "say below the tables how their numbers are made"},
    "--margin": {
        "type": positive,
        "metavar": "D",
        "help": "largest loss of AUC that the verdicts on strategies accept (default: 0.0005)",
    },
    "--project": {"metavar": "P", "help": "wandb project (default: that of the runs, wandb.project)"},
    "--entity": {"metavar": "E", "help": "wandb user or team (default: that of the runs, or of the key)"},
}
"""Arguments that several commands take."""


def _add(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add members of ``_SHARED``; ``changes``: what the first one has otherwise."""
    for name in names:
        parser.add_argument(name, **(_SHARED[name] | changes))
        changes = {}


def parser() -> Parser:
    """The parser of run.py."""
    top = command(
        None,
        "run.py",
        "When a parameter server dies in the middle of training, what is the cheapest thing to do that does not hurt "
        "the model?",
        """\
from raw data to a table of strategies:
  run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0
  run.py data prepare demo/criteo.tsv --out demo/data
  run.py grid experiments/quickstart.yaml
then the details:
  run.py show demo/quickstart/rpc-cpr_mfu-seed0-*      timeline and results of one run
  run.py compare runs/strategies runs/rpc_kills        paired differences of two grids

`run.py COMMAND --help` explains each command.""",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_runs(commands)
    _add_checks(commands)
    _add_records(commands)
    _add_data(commands)
    _add_plan(commands)
    _add_traces(commands)
    _add_wandb(commands)
    schema = command(
        commands,
        "schema",
        "print the JSON schema of a configuration, or what a key takes",
        """\
  run.py schema > config.schema.json
  run.py schema strategy.r              what the key takes, its default, what it does
  run.py schema trace                   all keys of a group""",
        "record_commands:print_schema",
    )
    schema.add_argument("key", nargs="?", metavar="KEY", help="a key or a group of keys, as text")
    return top


def _add_runs(commands: argparse._SubParsersAction) -> None:
    train = command(
        commands,
        "train",
        "train once, with failures and recoveries as configured",
        f"""\
  run.py train experiments/one.yaml
  run.py train experiments/one.yaml engine=rpc strategy.name=full out=runs/full

The run is written to the folder that the key `out` names; without `out=`, the values of other overrides are added to
that name (runs/one-full-rpc). If that run is finished, its results are shown and nothing is run. An interrupted run
goes on from its resume point, to the same bits; without one it starts afresh. A folder that another process is writing
to, or that holds a run of another config or by other code, is refused.

{OVERRIDES}""",
        "run_commands:train",
    )
    _add(train, "config", "overrides", "--afresh", "--grace")
    grid = command(
        commands,
        "grid",
        "run every cell of an experiment; rerun to resume",
        f"""\
  run.py grid experiments/quickstart.yaml
  run.py grid experiments/quickstart.yaml 'seed=[0,1,2,3,4]' 'strategy.name=[none,full]'  sweep other values
  run.py grid experiments/quickstart.yaml engine=local out=runs/local                     fix a key in all cells
  run.py grid experiments/quickstart.yaml --dry-run                                       list cells, run nothing
  run.py grid experiments/quickstart.yaml --scheduler submitit jobs.partition=cpu          each cell a job of SLURM
  run.py grid experiments/quickstart.yaml --scheduler ray jobs.max_parallel=8              each cell a task of a Ray

Each cell has a folder <out>/<slug>-<hash>-<code>/. Finished cells are not run again, unfinished cells go on from their
resume point or start afresh, and a changed config, or other code, is a new cell beside the old one; tables take the
newest. A failed cell does not stop the others; failed cells are
listed at the end.
A list (key=[a,b]) is a sweep axis: it is added to every grid of the file or replaces the axis of that key.

{OVERRIDES}""",
        "run_commands:grid",
    )
    _add(grid, "config", "overrides", metavar="EXPERIMENT.yaml")
    grid.add_argument(
        "--parallel", type=count, metavar="N", help="cells at once (default: one per core; rpc cells run alone)"
    )
    _add(grid, "--afresh", "--grace")
    grid.add_argument("--dry-run", action="store_true", help="list cells: done or to do; run nothing")
    _add(grid, "--margin", "--explain")
    group = grid.add_argument_group("where cells run (docs/HOSTS.md)")
    group.add_argument(
        "--scheduler",
        choices=("none", "submitit", "ray"),
        default="none",
        help="none: processes of this command; submitit: each cell is a job of SLURM, which outlives this "
        "command; ray: each cell is a task of a Ray that runs. Both as the keys jobs.* say. They need `pip install -r "
        "requirements-submitit.txt` or `requirements-ray.txt` (default: %(default)s)",
    )
    group.add_argument(
        "--print-script", action="store_true", help="with submitit: show the scripts for sbatch; submit nothing"
    )
    _add_reproduce(commands)


def _add_reproduce(commands: argparse._SubParsersAction) -> None:
    reproduce = command(
        commands,
        "reproduce",
        "run the experiments of the papers' claims, and say what they show",
        """\
  run.py reproduce                 all claims; writes the page
  run.py reproduce overhead pls    these claims; shows their rows
  run.py reproduce mine.yaml       a claim of your own, and its page (docs/EXTENDING.md)
  run.py reproduce --dry-run       what each claim rests on, and what of it is done
  run.py reproduce --no-run        judges what was run, also by other code
  run.py reproduce pls 'seed=[0,1]' out=runs/try    with other values: the page's numbers are those without
  run.py reproduce target --scale paper data.path=kaggle    real data, whole epochs; says first what that needs

Claims, each a file with its experiment: docs/REPRODUCTION.md, experiments/claims/. Missing synthetic data is made
first. Finished cells and benchmarks are not run again.""",
        "reproduce:reproduce",
    )
    reproduce.add_argument(
        "words",
        nargs="*",
        metavar="CLAIM | FILE.yaml | key=value",
        help="claims (default: all of this project); overrides",
    )
    reproduce.add_argument("--parallel", type=count, metavar="N", help="cells at once (default: one per core)")
    reproduce.add_argument(
        "--scale",
        choices=("small", "paper"),
        default="small",
        help="small: synthetic data, on which the page rests; paper: the data that data.path= names, and Kaggle's DLRM "
        "(default: %(default)s)",
    )
    page = (
        "the page, as Markdown, and as HTML beside it (default: runs/claims/REPRODUCTION.md where all claims are run, "
        "runs/claims/NAME.md where claims of your own are)"
    )
    reproduce.add_argument("--page", type=Path, metavar="FILE.md", help=page)
    reproduce.add_argument("--dry-run", action="store_true", help="list claims, and what is done; run nothing")
    reproduce.add_argument("--no-run", action="store_true", help="judge the newest results that there are; run nothing")


def _add_checks(commands: argparse._SubParsersAction) -> None:
    replay = command(
        commands,
        "replay",
        "train once under a failure trace",
        f"""\
  run.py replay failure_traces/busy.csv experiments/one.yaml strategy.name=cpr_mfu
  run.py replay spot.csv experiments/one.yaml --stretch profile.from_trace=true    11 h of failures for a job of 56 h

The same as `train` with trace.path=TRACE.csv. What of the trace does not fit the job (MTBF, hours, ranks, instants) is
said first, a line each.

{OVERRIDES}""",
        "run_commands:replay",
    )
    _add(replay, "trace", "config", "overrides")
    _add_mapping(replay)
    _add(replay, "--afresh", "--grace")
    verify = command(
        commands,
        "verify",
        "check that both engines agree to the bit, for every strategy",
        f"""\
  run.py verify experiments/one.yaml
  run.py verify experiments/one.yaml strategy.name=cpr_mfu    this strategy only

Runs every strategy (or the given one) on `local` and on `rpc`, with kills right before and right after a save in
addition to those of the trace, and compares losses, parameters, AUC, PLS and every event. A line for each strategy
comes as soon as its runs are done: up to 8 runs a strategy, 3 of them on `rpc`, where each failure starts processes
anew. data.max_train_samples=20000 shortens every run. Exit code 1 on any difference.

{OVERRIDES}""",
        "run_commands:verify",
    )
    _add(verify, "config", "overrides")


def _add_records(commands: argparse._SubParsersAction) -> None:
    show = command(
        commands,
        "show",
        "show the timeline and the results of one run",
        "run.py show runs/one",
        "record_commands:show",
    )
    _add(show, "dir", help="a run folder")
    compare = command(
        commands,
        "compare",
        "paired differences between runs",
        """\
  run.py compare runs/strategies runs/rpc_kills     pairs of cells of equal strategy and seed
  run.py compare runs/one runs/other                two runs
  run.py compare runs/updates --to cpr_mfu          the strategies of one grid against one of them""",
        "record_commands:compare",
    )
    compare.add_argument("dirs", type=Path, nargs="+", metavar="DIR", help="run or grid folders, the first is the base")
    compare.add_argument("--to", metavar="STRATEGY", help="with one folder: compare its other strategies with this one")
    _add(compare, "--format", "--explain")
    table = command(
        commands,
        "table",
        "show the table of strategies of a grid",
        """\
  run.py table demo/quickstart
  run.py table demo/quickstart --format latex > table.tex                     eight columns; needs the package booktabs
  run.py table demo/quickstart --format latex --columns strategy delta_auc total --labels cpr_mfu=CPR-MFU full=Full \\
      --caption "Overhead and loss of AUC."                                   a float, label tab:strategies
  run.py table demo/quickstart --format csv                                   every number, with its interval""",
        "record_commands:table",
    )
    _add(table, "dir", "--format", "--explain")
    words = "columns to show, in order, of a LaTeX or Markdown table; a wrong name lists them"
    table.add_argument("--columns", nargs="+", default=[], metavar="NAME", help=words)
    words = "what strategies are called in it"
    table.add_argument("--labels", nargs="+", type=pair, action=Pairs, default={}, metavar="STRATEGY=TEXT", help=words)
    table.add_argument("--caption", metavar="TEXT", help="caption of a LaTeX table, in LaTeX: makes it a float")
    report = command(
        commands,
        "report",
        "write one self-contained HTML file, and its figures and tables as files",
        """\
  run.py report demo/quickstart                          demo/quickstart/report.html, files in demo/quickstart/report/
  run.py report demo/quickstart --files paper/figures --figures pdf

Each figure is a file, the table of strategies one of CSV, LaTeX (package booktabs) and Markdown each.""",
        "record_commands:report",
    )
    _add(report, "dir", "--margin")
    report.add_argument("--files", type=Path, metavar="FOLDER", help="folder of the files (default: DIR/report)")
    words = "formats of the figures (default: svg)"
    report.add_argument("--figures", nargs="+", choices=("svg", "pdf", "png"), default=["svg"], help=words)


def _add_data(commands: argparse._SubParsersAction) -> None:
    data = command(
        commands,
        "data",
        "make, prepare and describe click logs",
        """\
  run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0
  run.py data prepare demo/criteo.tsv --out demo/data
  run.py data info demo/data""",
    )
    kinds = data.add_subparsers(dest="data_command", metavar="COMMAND", required=True)
    prepare = command(
        kinds,
        "prepare",
        "pack Criteo's text format into a data folder for training",
        """\
  run.py data prepare train.txt --out data/kaggle                                      Kaggle
  run.py data prepare day_*.gz --out data/terabyte --max-ind-range 10000000            Terabyte
  run.py data prepare day_0.gz --out data/hashed --categories hash --max-ind-range 1000000
  run.py data prepare demo/criteo.tsv --out demo/large --categories hash --table-rows 1   as many rows as Kaggle""",
        "data_commands:prepare",
    )
    prepare.add_argument("sources", type=Path, nargs="+", metavar="SRC", help="TSV files, plain or .gz, in order")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make (the key data.path)")
    prepare.add_argument(
        "--categories",
        choices=("number", "hash"),
        default="number",
        help="number ids in order of first appearance, or hash them to the size of the table (default: number)",
    )
    prepare.add_argument(
        "--max-ind-range", type=count, metavar="N", help="take every category modulo N; hashed, every table has N rows"
    )
    prepare.add_argument(
        "--table-rows",
        type=positive,
        metavar="F",
        help="hashed: the table sizes of Kaggle times F; 1 gives 2.2 GB tables",
    )
    synth = command(
        kinds,
        "synth",
        "write a synthetic click log in Criteo's text format",
        "run.py data synth --rows 250000 --out demo/criteo.tsv --seed 0",
        "data_commands:synth",
    )
    synth.add_argument("--rows", type=count, required=True, metavar="N", help="rows; 6 of 7 are used for training")
    synth.add_argument("--out", type=Path, required=True, metavar="FILE.tsv", help="file to write; .gz compresses")
    synth.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    synth.add_argument("--table-rows", type=float, metavar="F", help="the table sizes of Kaggle times F")
    synth.add_argument(
        "--taper",
        type=float,
        metavar="T",
        help="effect of the row of rank r on the label: as (1 + r/100)^-T; 0: rare rows as much as hot ones (0.5)",
    )
    info = command(
        kinds,
        "info",
        "verify a data folder; show its rows, positives, table sizes and skew",
        "run.py data info demo/data",
        "data_commands:info",
    )
    _add(info, "dir", help="folder written by `data prepare`")


def _add_mapping(parser: argparse.ArgumentParser) -> None:
    """Options that map the hours of a trace to those of a job; ``mapping_overrides`` has their keys."""
    group = parser.add_argument_group("hours of the trace (default: as they are)")
    window = "the part of the trace, as long as the job, with most, median or fewest failures, or any (trace.window)"
    group.add_argument("--window", choices=("densest", "median", "quietest", "random"), help=window)
    stretch = "scale the trace's hours, repair times included, to the job's (trace.stretch=true)"
    group.add_argument("--stretch", action="store_true", help=stretch)


def mapping_overrides(options: argparse.Namespace) -> list[str]:
    """The options of ``_add_mapping`` as ``key=value`` arguments."""
    window = [] if options.window is None else [f"trace.window={options.window}"]
    return [*window, *(["trace.stretch=true"] if options.stretch else [])]


def _add_plan(commands: argparse._SubParsersAction) -> None:
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
        "trace_commands:plan",
    )
    plan.add_argument("subject", metavar="PROFILE|TRACE.csv", help="a profile's name or a failure trace")
    _add(plan, "overrides", help="config changes, see below")
    _add_mapping(plan)
    plan.add_argument("--simulate", type=count, metavar="K", help="account for K generated traces")
    law = "law of the gaps, as model= of `trace generate` (default: exponential)"
    plan.add_argument("--model", default="exponential", help=law)
    plan.add_argument("--shape", type=float, help="shape of gamma and weibull, sigma of lognormal")
    plan.add_argument("--seed", type=int, default=0, help="of the generated traces (default: 0)")
    plan.add_argument("--figure", type=Path, metavar="FILE.svg", help="file for a figure of overhead against interval")


def _add_traces(commands: argparse._SubParsersAction) -> None:
    trace = command(
        commands,
        "trace",
        "import, describe and generate failure traces",
        """\
  run.py trace import fault_trace.json format=infinitehbd --out llm.csv \\
      window=densest length_h=56 ranks=8                     a window of a real log on a job's 8 ranks
  run.py trace show llm.csv                                  MTBF, fitted laws
  run.py trace generate model=weibull shape=0.7 mtbf_h=28 ranks=8 length_h=56 --out made.csv
  run.py replay llm.csv experiments/one.yaml                 train under it""",
    )
    kinds = trace.add_subparsers(dest="trace_command", metavar="COMMAND", required=True, parser_class=WordParser)
    show = command(
        kinds,
        "show",
        "describe a trace: MTBF, fitted laws, repeat offenders",
        """\
  run.py trace show llm.csv
  run.py trace show llm.csv --figures figures      the survival figure, as SVG and PNG""",
        "trace_commands:show",
    )
    _add(show, "trace")
    show.add_argument("--figures", type=Path, metavar="DIR", help="folder for the figure, created if missing")
    imported = command(
        kinds,
        "import",
        "convert a public failure log, in its original form, into a trace",
        """\
  run.py trace import fault_trace.json format=infinitehbd --out all.csv         every node a rank, all hours
  run.py trace import LA-UR-05-7318-system20.csv format=lanl --out lanl.csv \\
      from=2003-01-01 to=2004-01-01 stretch_h=56 keep_rate=8   a year scaled to 56 h, thinned to 8 ranks
  run.py trace import p3-trace.csv format=bamboo --out spot.csv ranks=8         all nodes' failures on 8 ranks
  run.py trace import jobs.csv format=intervals unit=s --out jobs-trace.csv     node,start,end

Records that a rule of the format drops or mends are counted, here and in the trace's header; strict=true refuses such a
file instead. Formats and rules: docs/TRACES.md.""",
        "trace_commands:import_log",
    )
    imported.add_argument("file", type=Path, metavar="FILE", help="the log")
    generated = command(
        kinds,
        "generate",
        "generate a trace by a law, after another trace, or of a published regime",
        """\
  run.py trace generate model=weibull shape=0.7 mtbf_h=28 ranks=8 length_h=56 --out bursts.csv
  run.py trace generate mtbf_h=13.2 nodes=512 ranks=8 length_h=8760 stretch_h=56 --out year.csv
  run.py trace generate model=fit:llm.csv seed=3 --out like-llm.csv
  run.py trace generate preset=llama3 typical=true --out llama3.csv

The same words and seed give the same file. docs/TRACES.md explains laws, groups and presets.""",
        "trace_commands:generate_trace",
    )
    for parser in (imported, generated):
        parser.add_argument("words", nargs="*", metavar="key=value", help="parameters, see below")
        parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file to write")
        parser.add_argument("--force", action="store_true", help="overwrite it if it exists")


def _add_wandb(commands: argparse._SubParsersAction) -> None:
    sync = command(
        commands,
        "sync",
        "send the finished runs of a folder to the wandb server",
        """\
  run.py sync demo/quickstart
  run.py sync demo/quickstart --project mine --entity my-team

Each run is sent once, however often the command is called; a run that was repeated replaces the former one. The API
key is that of `wandb login` or WANDB_API_KEY, the server that of WANDB_BASE_URL.""",
        "wandb_commands:sync",
    )
    _add(sync, "dir", "--project", "--entity")
    dashboard = command(
        commands,
        "dashboard",
        "save a wandb workspace with the views of a grid",
        """\
  run.py sync demo/quickstart && run.py dashboard demo/quickstart
  run.py dashboard demo/quickstart --offline workspace.json

AUC and loss by samples and by emulated hours, overhead by bucket, PLS and lost updates against AUC, kills and
recoveries, stall and latency; filters by engine, trace and profile. Called again, it updates the same workspace.
Needs `pip install -r requirements-dashboard.txt`.""",
        "wandb_commands:dashboard",
    )
    _add(dashboard, "dir", "--project", "--entity")
    dashboard.add_argument(
        "--offline", type=Path, metavar="FILE.json", help="write the workspace to a file, without a server"
    )
