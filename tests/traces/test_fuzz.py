"""Damaged logs: a clean result or one clear line, never a traceback, a hang or a wrong count."""

from pathlib import Path

import pytest

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.importers import FORMATS
from tests.damage import mutate
from tests.traces.judged_logs import WRITERS, check_clean, made
from tests.traces.made_logs import read

NUM_FILES = 500


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_logs(tmp_path: Path, format: str) -> None:
    """500 of each format: whatever is read keeps its promises, whatever is refused is refused in one line."""
    num_read = num_refused = 0
    for number in range(NUM_FILES):
        rng = generator(11, format, number)
        content = mutate(WRITERS[format](made(rng)).encode(), rng)
        try:
            log = read(tmp_path, format, content)
        except TraceError as error:
            num_refused += 1
            message = str(error)
            assert message.startswith(str(tmp_path / f"made.{format}")), number
            assert message.isprintable(), number
            assert len(message) < len(str(tmp_path)) + 250, number
        else:
            num_read += 1
            check_clean(log, format, content)
    assert num_read > NUM_FILES / 10
    assert num_refused > NUM_FILES / 10


@pytest.mark.parametrize("format", FORMATS)
def test_sound_logs(tmp_path: Path, format: str) -> None:
    """The judge of the damaged ones has nothing against those that are not."""
    for number in range(20):
        content = WRITERS[format](made(generator(11, format, number))).encode()
        check_clean(read(tmp_path, format, content), format, content)
