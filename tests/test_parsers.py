"""Damaged inputs of every parser: read as what they say, or refused in one line a mistake.

`tests/soak/fuzz.py` has the same with as many inputs as one likes.
"""

from pathlib import Path

import pytest

from harness.core.seeds import generator
from tests.damage import mutate
from tests.parsers import PARSERS, judge

NUM_INPUTS = 20


@pytest.mark.parametrize("name", PARSERS)
def test_sound_input_is_accepted(tmp_path: Path, name: str) -> None:
    """The judge has nothing against inputs without damage."""
    for number in range(2):
        verdict = judge(name, tmp_path, PARSERS[name].sound(generator(3, name, number)))
        assert (verdict.accepted, verdict.wrong) == (True, None)


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_input_is_refused_or_comes_back(tmp_path: Path, name: str) -> None:
    """No traceback; a message is printable; what is accepted is written and read again as the same."""
    for number in range(NUM_INPUTS):
        rng = generator(5, name, number)
        verdict = judge(name, tmp_path, mutate(PARSERS[name].sound(rng), rng))
        assert verdict.wrong is None, f"input {number}"
