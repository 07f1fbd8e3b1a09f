"""The command line: arguments, commands, and their output.

``commands`` dispatches to the modules ``*_commands``; ``commands.toml`` has the help. It parses, calls, and prints: no
result depends on it.
"""

import re


def as_typed(text: str, program: str) -> str:
    """``text`` with the name ``run.py`` of a command replaced by that of the program that was typed."""
    return re.sub(r"(?<![\w./-])run\.py(?=[ `]|$)", lambda _: program, text)
