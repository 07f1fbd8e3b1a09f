"""The parser of run.py, made from commands.toml. Imports nothing heavy, so that ``--help`` takes 0.2 s."""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.cli.parsing import OVERRIDES, Override, Pairs, Parser, WordParser, count, pair, positive, seconds

GRACE_S = 25.0
"""Seconds between a signal that asks a command to stop, and its end: schedulers often give 30."""

_TYPES: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "int": int,
    "float": float,
    "count": count,
    "positive": positive,
    "seconds": seconds,
    "pair": pair,
}
_ACTIONS = {"pairs": Pairs, "override": Override}
_PARSERS = {"trace": WordParser}
"""Parsers of commands below a command, where they are no plain ones."""


def parser() -> Parser:
    """The parser of run.py. The parsed options hold as ``call`` the command's function, as ``MODULE:NAME``."""
    with Path(__file__).with_name("commands.toml").open("rb") as file:
        commands: dict[str, dict[str, Any]] = tomllib.load(file)
    shared = commands.pop("arguments")
    shared["--grace"]["default"] = GRACE_S
    top = Parser(prog="run.py", **_texts(commands.pop("run.py")))
    below = {"": _commands_of(top, "command", Parser)}
    for name, command in commands.items():
        above, _, word = name.rpartition(" ")
        made = below[above].add_parser(word, help=command["summary"], **_texts(command))
        if "call" in command:
            made.set_defaults(call=command["call"])
            _add_arguments(made, command["arguments"], shared)
        else:
            below[name] = _commands_of(made, f"{name}_command", _PARSERS.get(name, Parser))
    return top


def _texts(command: Mapping[str, Any]) -> dict[str, Any]:
    summary, examples = command["summary"], command["examples"].replace("{overrides}", OVERRIDES)
    return {
        "description": summary[0].upper() + summary[1:] + ("" if summary.endswith("?") else "."),
        "epilog": "examples:\n" + (examples if "\n" in examples else f"  {examples}"),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def _commands_of(parser: Parser, name: str, kind: type[Parser]) -> Any:
    return parser.add_subparsers(dest=name, metavar="COMMAND", required=True, parser_class=kind)


def _add_arguments(parser: Parser, arguments: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    groups: dict[str, Any] = {}
    for name, own in arguments.items():
        values = {**shared.get(name, {}), **own}
        group = values.pop("group", "")
        if group not in groups:
            groups[group] = parser.add_argument_group(group) if group else parser
        if "type" in values:
            values["type"] = _TYPES[values["type"]]
        if "action" in values:
            values["action"] = _ACTIONS.get(values["action"], values["action"])
        groups[group].add_argument(name, **values)
