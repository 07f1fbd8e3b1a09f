"""docs/RELIABILITY.md names a test for each promise: that it exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_promise_has_its_test() -> None:
    """Each name in the column of tests is a test, or a file of tests; each row has one."""
    page = (ROOT / "docs" / "RELIABILITY.md").read_text(encoding="utf-8")
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    tables = re.findall(r"^\| promise \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", page, flags=re.MULTILINE)
    rows = [line.split("|")[2] for table in tables for line in table.splitlines()]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/]+(?:\.py)?)`", row)
        assert named, row
        for name in named:
            assert (ROOT / name).is_file() if name.endswith(".py") else name in defined, name
