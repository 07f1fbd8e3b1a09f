"""Building blocks of the argument parsers. Imports nothing heavy, so that ``--help`` takes 0.2 s."""

import argparse
from typing import NoReturn

OVERRIDES = """\
key=value sets one configuration key (dotted) to a YAML value:
  seed=3  strategy.name=cpr_mfu  trainer.learning_rate=1e-2  trace.path=  (empty: null)
`run.py schema` lists every key with its description."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports each error on a single line."""

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2."""
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def command(commands: argparse._SubParsersAction | None, name: str, summary: str, examples: str) -> Parser:
    """Add the parser of one command to ``commands``; without them, make the parser of the program ``name``."""
    texts = {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if examples.startswith((" ", "from")) else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
    return Parser(prog=name, **texts) if commands is None else commands.add_parser(name, help=summary, **texts)


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


count.__name__ = "whole number >= 1"  # argparse: "invalid whole number >= 1 value: '0'"
positive.__name__ = "number > 0"
