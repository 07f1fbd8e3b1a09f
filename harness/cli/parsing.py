"""What every command's parser is made of. Nothing heavy is imported: ``--help`` answers at once."""

import argparse
from typing import NoReturn

OVERRIDES = """\
key=value sets one configuration key, dotted, the value as YAML:
  seed=3  strategy.name=cpr_mfu  trainer.learning_rate=1e-2  trace.path=  (empty: null)
`run.py schema` lists every key with what it takes."""


class Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        """One line on stderr, exit code 2."""
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")


def command(commands: argparse._SubParsersAction | None, name: str, summary: str, examples: str) -> Parser:
    texts = {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if examples.startswith((" ", "from")) else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
    return Parser(prog=name, **texts) if commands is None else commands.add_parser(name, help=summary, **texts)


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


positive.__name__ = "number > 0"
count.__name__ = "whole number >= 1"  # argparse: "invalid whole number >= 1 value: '0'"
