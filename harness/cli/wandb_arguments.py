"""The arguments of `run.py sync` and `run.py dashboard`. Imports nothing heavy."""

import argparse
from pathlib import Path

from harness.cli.parsing import Parser, command


def add_wandb(commands: argparse._SubParsersAction) -> None:
    """Add the commands on wandb."""
    sync = command(
        commands,
        "sync",
        "send the finished runs of a folder to the wandb server",
        """\
  run.py sync demo/quickstart
  run.py sync demo/quickstart --project mine --entity my-team

Each run is sent once, however often the command is called; a run that was repeated replaces the former one. The API
key is that of `wandb login` or WANDB_API_KEY, the server that of WANDB_BASE_URL.""",
    )
    _add_target(sync)
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
    )
    _add_target(dashboard)
    dashboard.add_argument(
        "--offline", type=Path, metavar="FILE.json", help="write the workspace to a file, without a server"
    )


def _add_target(parser: Parser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="a run or grid folder")
    parser.add_argument("--project", metavar="P", help="wandb project (default: that of the runs, wandb.project)")
    parser.add_argument("--entity", metavar="E", help="wandb user or team (default: that of the runs, or of the key)")
