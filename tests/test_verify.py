"""The verification of one engine against the other, and that it would notice."""

from pathlib import Path

import pytest
import torch

from harness import assemble, verify
from harness.cluster.server import RankServer
from harness.core.config import Config
from harness.core.events import Killed, Saved
from harness.recorder import read_events
from tests.runs import changed, run

pytestmark = pytest.mark.timeout(400)


class FlippingServer(RankServer):
    """A rank whose memory flips the lowest bit of one value at step 100, and is right otherwise."""

    def handle(self, request):
        """Serve, and flip once."""
        reply = super().handle(request)
        push = getattr(request, "push", None)
        if self.rank == "ps1" and push is not None and push.step == 100:
            row = push.rows_N[0]
            self.shard.rows_MD[row].view(dtype=torch.int32)[0] ^= 1
        return reply


def test_every_strategy_is_identical_on_every_engine_and_path(config: Config, tmp_path: Path) -> None:
    """Losses, parameters, AUC, PLS and every event, under the busy trace and kills around a save."""
    config = changed(config, data__max_train_samples=512, eval__every_steps=50, cache__lookahead=24)
    config = changed(config, cache__staleness=3, cache__workers=3, cache__max_rows=300)
    verdicts = verify.verify(config, tmp_path)
    assert {verdict.strategy: verdict.differences for verdict in verdicts} == dict.fromkeys(
        ("none", "never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu"), ()
    )
    for name in ("partial", "cpr_mfu"):
        events = read_events(tmp_path / f"{name}-rpc-lookahead" / "events.jsonl")
        saves = {event.step for event in events if isinstance(event, Saved)}
        kills = {event.step for event in events if isinstance(event, Killed)}
        assert len(kills) >= 12
        assert saves & kills, "a kill right after a save"
        assert {step - 1 for step in saves} & kills, "a kill right before a save"
        assert all(event.machine["exitcode"] == -9 for event in events if isinstance(event, Killed))


def test_one_flipped_bit_is_noticed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest bit of one embedding value, flipped once in one rank, makes the records differ."""
    config = changed(config, strategy__name="partial")
    run(config, tmp_path / "right")
    run(config, tmp_path / "again")
    assert verify.compare_records(tmp_path / "right", tmp_path / "again") == []
    monkeypatch.setattr(assemble, "RankServer", FlippingServer)
    run(config, tmp_path / "flipped")
    differences = verify.compare_records(tmp_path / "right", tmp_path / "flipped")
    assert differences
    assert "event" in differences[0]
