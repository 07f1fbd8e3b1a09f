"""Building blocks of the argument parsers. Imports nothing heavy, so that ``--help`` takes 0.2 s."""

import argparse
import difflib
import re
from typing import Any, NoReturn

OVERRIDES = """\
key=value sets one configuration key (dotted) to a YAML value:
  seed=3  strategy.name=cpr_mfu  trainer.learning_rate=1e-2  trace.path=  (empty: null)
`run.py schema` lists every key with its description."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports each error on a single line."""

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2; of a choice that is nearly a right one, only that."""
        if found := re.fullmatch(r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            name, word, choices = found.groups()
            if near := difflib.get_close_matches(word, re.findall(r"'?([\w.-]+)'?", choices), n=1):
                message = f"{name}: unknown {word!r}; did you mean {near[0]}?"
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")

    def unknown(self, flag: str, command: str) -> str:
        """An error sentence on a flag that the command has not: its most similar one, or the key that may be meant."""
        name = flag.partition("=")[0]
        (commands,) = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        flags = commands.choices[command]._option_string_actions
        if near := difflib.get_close_matches(name, sorted(flags), n=1):
            return f"unknown argument {flag}; did you mean {near[0]}?"
        from harness.config.keys import leaf_keys  # noqa: PLC0415 - imports pydantic

        key = name.lstrip("-").replace("-", "_")
        keys = [known for known in leaf_keys() if key in (known, known.rpartition(".")[2])]
        hint = f"; keys have no dashes: {' or '.join(f'{known}=…' for known in keys)}" if keys else ""
        return f"unknown argument {flag}{hint}"


def pair(text: str) -> tuple[str, str]:
    """The type of an option: ``NAME=TEXT``."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"expected NAME=TEXT, got {text!r}")
    return name, value


class Pairs(argparse.Action):
    """Keeps values of :func:`pair` as a dictionary."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option: object = None) -> None:
        """See argparse."""
        setattr(namespace, self.dest, dict(values))


def command(commands: argparse._SubParsersAction | None, name: str, summary: str, examples: str) -> Parser:
    """Add the parser of one command to ``commands``; without them, make the parser of the program ``name``."""
    texts = {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if examples.startswith((" ", "from")) else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
    return Parser(prog=name, **texts) if commands is None else commands.add_parser(name, help=summary, **texts)


WINDOWS = ("densest", "median", "quietest", "random")


def add_mapping(parser: argparse.ArgumentParser) -> None:
    """Options that map the hours of a trace to those of a job; ``mapping_overrides`` has their keys."""
    group = parser.add_argument_group("hours of the trace (default: as they are)")
    window = "the part of the trace, as long as the job, with most, median or fewest failures, or any (trace.window)"
    group.add_argument("--window", choices=WINDOWS, help=window)
    stretch = "scale the trace's hours, repair times included, to the job's (trace.stretch=true)"
    group.add_argument("--stretch", action="store_true", help=stretch)


def mapping_overrides(options: argparse.Namespace) -> list[str]:
    """The options of ``add_mapping`` as ``key=value`` arguments."""
    window = [] if options.window is None else [f"trace.window={options.window}"]
    return [*window, *(["trace.stretch=true"] if options.stretch else [])]


def count(text: str) -> int:
    """``text`` as a whole number >= 1. Raises ValueError."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def positive(text: str) -> float:
    """``text`` as a finite number > 0. Raises ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """``text`` as a finite number >= 0. Raises ValueError."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


seconds.__name__ = "number >= 0"
count.__name__ = "whole number >= 1"  # argparse: "invalid whole number >= 1 value: '0'"
positive.__name__ = "number > 0"
