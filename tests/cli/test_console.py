"""Laws of the console: what a file holds is shown, and commands no terminal."""

import io

import pytest
from rich.table import Table
from rich.text import Text

from harness.cli import console

_HOSTILE = "\x1b[2J\x1b]0;title\x9b31m\x7f\u202e"
_SHOWN = r"\x1b[2J\x1b]0;title\x9b31m\x7f\u202e"
_DROPPED = "\x07\r"  # by rich itself


@pytest.mark.parametrize(
    "write", [console.say, console.note, lambda text: console.print_error("failed", text), console.show]
)
def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str], write: object) -> None:
    """In a line on stdout or stderr, an error and a rich text, each is shown by its code; other letters stay."""
    assert callable(write)
    write(f"AUC ± {_HOSTILE} 5{_DROPPED}")
    said = "".join(capsys.readouterr())
    assert f"AUC ± {_SHOWN} 5" in said
    assert not set(said) & set(_HOSTILE + _DROPPED) - set(_SHOWN)


def test_a_terminal_gets_the_consoles_own_codes_only() -> None:
    """On a terminal a table has its style, and its cells have no code of theirs."""
    stream = io.StringIO()
    terminal = console.Console(file=stream, force_terminal=True, width=100, color_system="standard")
    table = Table("head")
    table.add_row(Text(_HOSTILE, style="bold red"))
    terminal.print(table)
    assert f"\x1b[1;31m{_SHOWN[:6]}" in stream.getvalue()
    for code in ("\x1b]", "\x1b[2J", *_DROPPED, "\x9b", "\x7f", "\u202e"):
        assert code not in stream.getvalue()
