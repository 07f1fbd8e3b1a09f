"""Damaged inputs of every parser: read as what they say, or refused in one printable line a mistake.

With thousands of inputs a parser, other ones for each seed (docs/RELIABILITY.md, "Input"):

    python -m pytest tests/test_parsers.py --hypothesis-profile=soak --hypothesis-seed=1 --timeout=0
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UserError
from tests.damage import damaged
from tests.parsers import PARSERS

_MOST_CHARACTERS = 700


def accepts(name: str, content: bytes) -> bool:
    """Whether the parser reads ``content``, else it says why. An exception that is no UserError is a finding."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(content)
        try:
            PARSERS[name].read(path)
        except UserError as error:
            for line in str(error).split("\n"):
                assert line.isprintable(), ascii(line)
                assert 0 < len(line.strip()) <= _MOST_CHARACTERS, ascii(line)
            return False
        return True


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=3)
@given(data=st.data())
def test_sound_input_is_accepted(name: str, data: st.DataObject) -> None:
    """No damage, no complaint."""
    assert accepts(name, data.draw(PARSERS[name].sound))


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_damaged_input_is_refused_or_comes_back(name: str, data: st.DataObject) -> None:
    """No traceback; a message is printable; what is accepted is written and read again as the same."""
    accepts(name, data.draw(damaged(PARSERS[name].sound)))
