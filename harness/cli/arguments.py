"""The parser of run.py, made from commands.toml. Imports nothing heavy, so that ``--help`` takes 0.2 s."""

import argparse
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness.core.errors import ConfigError
from harness.files import expanded

OVERRIDES = """\
key=value sets one configuration key (dotted) to a YAML value:
  seed=3  strategy.name=cpr_mfu  trainer.learning_rate=1e-2  trace.path=  (empty: null)
`run.py schema` lists every key with its description."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports each error on a single line.

    The help of `trace import` describes each of its ``key=value`` words, for which it imports most of a second.
    """

    def format_help(self) -> str:
        if self.prog.endswith(" trace import"):
            from harness.cli.trace_commands import words_of_import  # noqa: PLC0415

            self.description = f"{self.description}\n\nwords:\n{words_of_import()}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one line to stderr and exit with code 2. For a misspelt choice the line names only the nearest one."""
        if found := re.fullmatch(r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            name, word, choices = found.groups()
            from harness.config.words import suggest  # noqa: PLC0415 - imports pydantic

            if hint := suggest(word, re.findall(r"'?([\w.-]+)'?", choices)):
                message = f"{name}: unknown {word!r}{hint}"
        self.exit(2, f"error: {message} (see `{self.prog} --help`)\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs == "+" and action.type is None:  # names, which may have commas between them
            arg_strings = [name for text in arg_strings for name in text.split(",") if name]
        return super()._get_values(action, arg_strings)

    def unknown(self, flag: str, command: str) -> str:
        """An error sentence on an unknown flag, which suggests the most similar flag or configuration key."""
        from harness.config.keys import leaf_keys  # noqa: PLC0415 - imports pydantic
        from harness.config.words import suggest  # noqa: PLC0415

        name = flag.partition("=")[0]
        (commands,) = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        flags = commands.choices[command]._option_string_actions
        hint = suggest(name, flags) or suggest(name.lstrip("-"), leaf_keys(), lambda key: f"{key}=…")
        return f"unknown argument {flag}{hint}"


def pair(text: str) -> tuple[str, str]:
    """``NAME=TEXT`` as (name, text): the ``type`` of an option. Raises ArgumentTypeError."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"expected NAME=TEXT, got {text!r}")
    return name, value


def path(text: str) -> Path:
    """``text`` as a path (``harness.files.expanded``). Raises ArgumentTypeError."""
    try:
        return Path(expanded(text))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def word(text: str) -> str:
    """A path as :func:`path`, as text; ``key=value`` as it is. Raises ArgumentTypeError."""
    return text if "=" in text else str(path(text))


def _number(kind: Callable[[str], float], is_right: Callable[[float], bool], words: str) -> Callable[[str], float]:
    """The type of an option that is a number; argparse says ``words`` of a wrong one."""

    def number(text: str) -> float:
        if not is_right(value := kind(text)):
            raise ValueError(text)
        return value

    number.__name__ = words
    return number


GRACE_S = 25.0
"""Default of ``--grace``: seconds that a command has to stop after the first signal. Schedulers often give 30."""

_TYPES: dict[str, Callable[[str], Any]] = {
    "path": path,
    "word": word,
    "int": int,
    "float": float,
    "count": _number(int, lambda value: value >= 1, "whole number >= 1"),
    "positive": _number(float, lambda value: 0 < value < math.inf, "number > 0"),
    "portion": _number(float, lambda value: 0 <= value <= 1, "number from 0 to 1"),
    "not_negative": _number(float, lambda value: 0 <= value < math.inf, "number >= 0"),
    "pair": pair,
}


def parser() -> Parser:
    """The parser of the command line.

    In the options that it parses, ``call`` is the command's function, as ``MODULE:NAME``.
    """
    with Path(__file__).with_name("commands.toml").open("rb") as file:
        commands: dict[str, dict[str, Any]] = tomllib.load(file)
    shared = commands.pop("arguments")
    shared["--grace"]["default"] = GRACE_S
    top = Parser(prog="run.py", **_texts(commands.pop("run.py")))
    below = {"": _commands_of(top, "command")}
    for name, command in commands.items():
        above, _, word = name.rpartition(" ")
        made = below[above].add_parser(word, help=command["summary"], **_texts(command))
        if "call" in command:
            made.set_defaults(call=command["call"])
            _add_arguments(made, command["arguments"], shared)
        else:
            below[name] = _commands_of(made, f"{name}_command")
    return top


def _texts(command: Mapping[str, Any]) -> dict[str, Any]:
    summary, examples = command["summary"], command["examples"].replace("{overrides}", OVERRIDES)
    return {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if "\n" in examples else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def _commands_of(parser: Parser, name: str) -> Any:
    return parser.add_subparsers(dest=name, metavar="COMMAND", required=True)


def _add_arguments(parser: Parser, arguments: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    groups: dict[str, Any] = {}
    for name, own in arguments.items():
        values = {**shared.get(name, {}), **own}
        group = values.pop("group", "")
        if group not in groups:
            groups[group] = parser.add_argument_group(group) if group else parser
        if "type" in values:
            values["type"] = _TYPES[values["type"]]
        if values.get("nargs") == "*":
            values["default"] = []  # without one, argparse calls the argument required
        groups[group].add_argument(name, **values)
