"""Every golden run gives the very events that it gave when its record was made."""

import json
from pathlib import Path

import pytest

from tests.golden.cases import CASES, carry_out, digest, golden_clicks, record_of

DIGESTS: dict[str, str] = json.loads(Path(__file__).with_name("records.json").read_text())


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared click log, for all of them."""
    return golden_clicks(tmp_path_factory.mktemp("golden"))


def test_every_golden_run_has_its_record() -> None:
    """No record is left over, and none is missing."""
    assert DIGESTS.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_run_gives_its_golden_record(name: str, clicks: Path, tmp_path: Path) -> None:
    """Law: losses, digests of all parameters, charges and the order of events are those of before, to the bit.

    That engines agree is in ``tests/run/test_equivalence.py``.
    """
    record = record_of(carry_out(CASES[name], clicks, tmp_path / "golden"))
    assert digest(record) == DIGESTS[name], "write both records with `python -m tests.golden FOLDER` and compare them"
