"""Arguments of `run.py trace` and `run.py plan`."""

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from harness.cli.parsing import OVERRIDES, Parser, add_mapping, command, count


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
    law = "law of the gaps, as model= of `trace generate` (default: exponential)"
    plan.add_argument("--model", default="exponential", help=law)
    plan.add_argument("--shape", type=float, help="shape of gamma and weibull, sigma of lognormal")
    plan.add_argument("--seed", type=int, default=0, help="of the generated traces (default: 0)")
    plan.add_argument("--figure", type=Path, metavar="FILE.svg", help="file for a figure of overhead against interval")


class WordParser(Parser):
    """The parser of a command that may take ``key=value`` words.

    Traces' headers hold commands from before, when the words were options (``--mtbf-h 4``): these are read as words.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See argparse."""
        return super().parse_known_args(self._as_words(args) if self._has_words else args, namespace)

    def format_help(self) -> str:
        """The help of argparse, with all words; they are imported here, as they take most of a second."""
        if self._has_words:
            from harness.cli.trace_commands import words_of  # noqa: PLC0415

            self.description = f"{self.description}\n\nwords:\n{words_of(self.prog.rpartition(' ')[2])}"
        return super().format_help()

    @property
    def _has_words(self) -> bool:
        return any(action.dest == "words" for action in self._actions)

    def _as_words(self, arguments: Sequence[str]) -> list[str]:
        """``arguments`` with the words last, so that FILE may stand anywhere among them."""
        others: list[str] = []
        words: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            key = name.removeprefix("--").replace("-", "_")
            if action := self._option_string_actions.get(name):
                others += [argument, *(() if equals or action.nargs == 0 else islice(rest, 1))]
            elif not name.startswith("--"):
                (words if equals and name.isidentifier() else others).append(argument)
            elif key in _BARE and not equals:
                words.append(_BARE[key])
            else:
                words.append(f"{_FORMER.get(key, key)}={value if equals else next(rest, '')}")
        return [*others, *words]


_BARE = {"strict": "strict=true", "typical": "typical=true", "no_repairs": "repairs=false"}
_FORMER = {"length": "length_h", "stretch": "stretch_h"}


def add_traces(commands: argparse._SubParsersAction) -> None:
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
    )
    show.add_argument("trace", type=Path, metavar="TRACE.csv", help="a failure trace (failure_traces/README.md)")
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
    )
    for parser in (imported, generated):
        parser.add_argument("words", nargs="*", metavar="key=value", help="parameters, see below")
        parser.add_argument("--out", type=Path, required=True, metavar="TRACE.csv", help="file to write")
        parser.add_argument("--force", action="store_true", help="overwrite it if it exists")
