"""Every golden run gives the very events that it gave before the core was restructured."""

import json
from pathlib import Path

import pytest

from tests.golden import digest
from tests.golden.cases import CASES, carry_out, record_of
from tests.golden.data import golden_clicks

DIGESTS: dict[str, str] = json.loads(Path(__file__).with_name("records.json").read_text())
SEVERAL = {"cpr_ssu-none-sync": 2, "disks-buddy-lookahead": 3, "phases-full-none": 2, "spares": 2}
"""Numbers of trainers, of runs that several trainers repeat."""


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

    That both engines agree is in ``tests/run/test_equivalence.py``.
    """
    record = record_of(carry_out(CASES[name], "local", clicks, tmp_path / "golden"))
    assert digest(record) == DIGESTS[name], "write both records with `python -m tests.golden FOLDER` and compare them"


@pytest.mark.parametrize(("name", "num_trainers"), SEVERAL.items())
def test_several_trainers_give_the_golden_record(name: str, num_trainers: int, clicks: Path, tmp_path: Path) -> None:
    """Law: their number changes no bit, through failures of PS ranks in every phase."""
    run_dir = carry_out(CASES[name], "rpc", clicks, tmp_path / "golden", num_trainers=num_trainers)
    assert digest(record_of(run_dir)) == DIGESTS[name]
