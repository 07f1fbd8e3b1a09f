"""The commands of run.py and their arguments. Imports nothing heavy, so that ``--help`` takes 0.2 s."""

import argparse
from pathlib import Path

from harness.cli.job_arguments import add_scheduler
from harness.cli.parsing import OVERRIDES, Pairs, Parser, add_mapping, command, count, pair, positive, seconds
from harness.cli.trace_arguments import add_plan, add_traces
from harness.cli.wandb_arguments import add_wandb

GRACE_S = 25.0
"""Seconds between a signal that asks a command to stop, and its end: schedulers often give 30."""


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
    add_plan(commands)
    add_traces(commands)
    add_wandb(commands)
    schema = command(
        commands,
        "schema",
        "print the JSON schema of a configuration, or what a key takes",
        """\
  run.py schema > config.schema.json
  run.py schema strategy.r              what the key takes, its default, what it does
  run.py schema trace                   all keys of a group""",
    )
    schema.add_argument("key", nargs="?", metavar="KEY", help="a key or a group of keys, as text")
    return top


def _add_runs(commands: argparse._SubParsersAction) -> None:
    train = _add_config(
        commands,
        "train",
        "train once, with failures and recoveries as configured",
        """\
  run.py train experiments/one.yaml
  run.py train experiments/one.yaml engine=rpc strategy.name=full out=runs/full

The run is written to the folder that the key `out` names; without `out=`, the values of other overrides are added to
that name (runs/one-full-rpc). If that run is finished, its results are shown and nothing is run. An interrupted run
goes on from its resume point, to the same bits; without one it starts afresh. A folder that another process is writing
to, or that holds a run of another config or by other code, is refused.""",
    )
    _add_afresh(train)
    _add_grace(train)
    grid = _add_config(
        commands,
        "grid",
        "run every cell of an experiment; rerun to resume",
        """\
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
A list (key=[a,b]) is a sweep axis: it is added to every grid of the file or replaces the axis of that key.""",
        metavar="EXPERIMENT.yaml",
    )
    grid.add_argument(
        "--parallel", type=count, metavar="N", help="cells at once (default: one per core; rpc cells run alone)"
    )
    _add_afresh(grid)
    _add_grace(grid)
    grid.add_argument("--dry-run", action="store_true", help="list cells: done or to do; run nothing")
    _add_margin(grid)
    _add_explain(grid)
    add_scheduler(grid)
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
    replay = _add_config(
        commands,
        "replay",
        "train once under a failure trace",
        """\
  run.py replay failure_traces/busy.csv experiments/one.yaml strategy.name=cpr_mfu
  run.py replay spot.csv experiments/one.yaml --stretch profile.from_trace=true    11 h of failures for a job of 56 h

The same as `train` with trace.path=TRACE.csv. What of the trace does not fit the job (MTBF, hours, ranks, instants) is
said first, a line each.""",
        has_trace=True,
    )
    add_mapping(replay)
    _add_afresh(replay)
    _add_grace(replay)
    _add_config(
        commands,
        "verify",
        "check that both engines agree to the bit, for every strategy",
        """\
  run.py verify experiments/one.yaml
  run.py verify experiments/one.yaml strategy.name=cpr_mfu    this strategy only

Runs every strategy (or the given one) on `local` and on `rpc`, with kills right before and right after a save in
addition to those of the trace, and compares losses, parameters, AUC, PLS and every event. A line for each strategy
comes as soon as its runs are done: up to 8 runs a strategy, 3 of them on `rpc`, where each failure starts processes
anew. data.max_train_samples=20000 shortens every run. Exit code 1 on any difference.""",
    )


def _add_records(commands: argparse._SubParsersAction) -> None:
    _add_dir(commands, "show", "show the timeline and the results of one run", "run.py show runs/one", "a run folder")
    compare = command(
        commands,
        "compare",
        "paired differences between runs",
        """\
  run.py compare runs/strategies runs/rpc_kills     pairs of cells of equal strategy and seed
  run.py compare runs/one runs/other                two runs
  run.py compare runs/updates --to cpr_mfu          the strategies of one grid against one of them""",
    )
    compare.add_argument("dirs", type=Path, nargs="+", metavar="DIR", help="run or grid folders, the first is the base")
    compare.add_argument("--to", metavar="STRATEGY", help="with one folder: compare its other strategies with this one")
    _add_format(compare)
    _add_explain(compare)
    summary = "show the table of strategies of a grid"
    example = """\
  run.py table demo/quickstart
  run.py table demo/quickstart --format latex > table.tex                     eight columns; needs the package booktabs
  run.py table demo/quickstart --format latex --columns strategy delta_auc total --labels cpr_mfu=CPR-MFU full=Full \\
      --caption "Overhead and loss of AUC."                                   a float, label tab:strategies
  run.py table demo/quickstart --format csv                                   every number, with its interval"""
    table = _add_dir(commands, "table", summary, example, "a run or grid folder")
    _add_format(table)
    _add_explain(table)
    words = "columns to show, in order, of a LaTeX or Markdown table; a wrong name lists them"
    table.add_argument("--columns", nargs="+", default=[], metavar="NAME", help=words)
    words = "what strategies are called in it"
    table.add_argument("--labels", nargs="+", type=pair, action=Pairs, default={}, metavar="STRATEGY=TEXT", help=words)
    table.add_argument("--caption", metavar="TEXT", help="caption of a LaTeX table, in LaTeX: makes it a float")
    summary = "write one self-contained HTML file, and its figures and tables as files"
    example = """\
  run.py report demo/quickstart                          demo/quickstart/report.html, files in demo/quickstart/report/
  run.py report demo/quickstart --files paper/figures --figures pdf

Each figure is a file, the table of strategies one of CSV, LaTeX (package booktabs) and Markdown each."""
    report = _add_dir(commands, "report", summary, example, "a run or grid folder")
    _add_margin(report)
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
    summary = "verify a data folder; show its rows, positives, table sizes and skew"
    _add_dir(kinds, "info", summary, "run.py data info demo/data", "folder written by `data prepare`")


def _add_dir(commands: argparse._SubParsersAction, name: str, summary: str, example: str, text: str) -> Parser:
    parser = command(commands, name, summary, example)
    parser.add_argument("dir", type=Path, metavar="DIR", help=text)
    return parser


def _add_format(parser: Parser) -> None:
    text = "csv: unrounded numbers; latex, markdown: for a paper (default: a table for the console)"
    parser.add_argument("--format", choices=("csv", "latex", "markdown"), help=text)


def _add_explain(parser: Parser) -> None:
    parser.add_argument("--explain", action="store_true", help="say below the tables how their numbers are made")


def _add_margin(parser: Parser) -> None:
    text = "largest loss of AUC that the verdicts on strategies accept (default: 0.0005)"
    parser.add_argument("--margin", type=positive, metavar="D", help=text)


def _add_afresh(parser: Parser) -> None:
    words = "remove what there is of the run, finished or not, and start anew"
    parser.add_argument("--afresh", action="store_true", help=words)


def _add_grace(parser: Parser) -> None:
    parser.add_argument(
        "--grace",
        type=seconds,
        default=GRACE_S,
        metavar="SECONDS",
        help="after the first SIGINT or SIGTERM: time to finish the step and leave a resume point; 0: none "
        "(default: %(default)g)",
    )


def _add_config(
    commands: argparse._SubParsersAction,
    name: str,
    summary: str,
    text: str,
    *,
    metavar: str = "CONFIG.yaml",
    has_trace: bool = False,
) -> Parser:
    """Add a command that takes a YAML file and overrides; ``has_trace``: its first argument is a trace."""
    parser = command(commands, name, summary, f"{text}\n\n{OVERRIDES}")
    if has_trace:
        parser.add_argument("trace", type=Path, metavar="TRACE.csv", help="a failure trace (failure_traces/README.md)")
    parser.add_argument("config", type=Path, metavar=metavar, help="a YAML file (experiments/)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to it, see below")
    return parser
