"""The trainer's mirror: a replacement gets, row by row, the newer of mirror and checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import analysis
from harness.cluster.protocol import Exchange, Request, Restore, Save
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import Finished, Recovered, Saved
from harness.core.placement import MIRROR_INDEX_BYTES, budget_rows, num_mirrored
from harness.core.plans import Rank
from harness.core.shard import Shard
from harness.record.recorder import read_events
from harness.record.rundir import read_config
from harness.run.assemble import Parts
from harness.run.spec import RunSpec
from harness.store import ShardStore
from tests.client.test_lookahead import KeptRanks, MortalKeptRanks, outstanding
from tests.recovery.test_unplanned import Finish, named, run_mortal
from tests.runs import PRIORITY_R, changed, run, saving_every, small_config

DIRECT: dict[str, str | int] = {}
LOOKAHEAD = {"cache__mode": "lookahead", "cache__lookahead": 8}
ASYNC = {"save__mode": "async"}
PATHS = (DIRECT, LOOKAHEAD, ASYNC)
SHARE = 0.03


def is_death(key: object) -> bool:
    """Whether ``key`` is one of a doom."""
    return isinstance(key, tuple)


@pytest.fixture
def mirrored(config: Config) -> Config:
    """64 steps under ten failures; the mirror holds 3 % of the tracked tables."""
    config = changed(config, strategy__name="cpr_mirror", data__max_train_samples=256)
    return saving_every(changed(config, strategy__share=SHARE), 20)


class ShadowedServer(RankServer):
    """A rank that compares every restored shard, row by row, with the dead one's and with the checkpoint."""

    dead: dict[Rank, Shard] = {}  # noqa: RUF012 - the shards of the last run, by rank; each lives on after its rank
    mirrored: dict[Rank, Tensor] = {}  # noqa: RUF012 - rows that the trainer's mirror holds of each rank
    has_mirror = True
    num_compared = num_newer = 0

    def __init__(self, spec: RankSpec, rank: Rank) -> None:
        super().__init__(spec, rank)
        self._checkpoints = spec.checkpoints

    def handle(self, request: Request) -> object:
        """Serve; compare what a replacement has then."""
        reply = super().handle(request)
        if isinstance(request, Save):
            self.mirrored[self.rank] = request.mirrored_N
        elif isinstance(request, Restore):
            self._compare(request, self.dead[self.rank])
        self.dead[self.rank] = self.shard
        return reply

    def _compare(self, request: Restore, dead: Shard) -> None:
        saved_MX = torch.empty_like(dead.rows_MD)
        ShardStore(self._checkpoints, self.rank, fsync=False).read_into(request.records, saved_MX)
        assert dead.pending_M is not None
        assert self.shard.pending_M is not None
        is_newer_M = torch.zeros(len(saved_MX), dtype=torch.bool)
        if self.has_mirror:
            mirrored_N = self.mirrored[self.rank]
            is_newer_M[mirrored_N] = dead.pending_M[mirrored_N] > 0
        expected_MX = torch.where(is_newer_M[:, None], dead.rows_MD, saved_MX)
        assert torch.equal(self.shard.rows_MD, expected_MX)
        assert torch.equal(self.shard.pending_M, torch.where(is_newer_M, dead.pending_M, 0))
        type(self).num_compared += 1
        type(self).num_newer += int(is_newer_M.sum())


@pytest.fixture
def shadowed() -> Iterator[Parts]:
    """Ranks that compare, and did."""
    ShadowedServer.dead, ShadowedServer.num_compared, ShadowedServer.num_newer = {}, 0, 0
    yield Parts(make_server=ShadowedServer)
    assert ShadowedServer.num_compared == 11
    ShadowedServer.dead = {}


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_replacement_has_the_newer_of_mirror_and_checkpoint(
    mirrored: Config, tmp_path: Path, shadowed: Parts, path: dict
) -> None:
    """Mirrored rows with unsaved updates are the dead shard's, bit by bit and with their counts; others as saved."""
    finished, events = run(changed(mirrored, **path), tmp_path / "run", shadowed)
    recoveries = [event for event in events if isinstance(event, Recovered)]
    assert ShadowedServer.num_newer == sum(event.recovered_rows for event in recoveries) > 0
    assert finished.recovered_updates == sum(event.recovered_updates or 0 for event in recoveries) > 0
    row_bytes = 4 * RunSpec(mirrored).size.embedding_dim + 4
    assert [event.upload_bytes for event in recoveries] == [event.recovered_rows * row_bytes for event in recoveries]
    assert analysis.check(events, read_config(tmp_path / "run")) == []


def test_a_mirror_that_dies_leaves_the_checkpoint(
    mirrored: Config, tmp_path: Path, shadowed: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its trainer a replacement has exactly the rows of the checkpoint, and more updates are lost."""
    kept, _ = run(mirrored, tmp_path / "kept")
    monkeypatch.setattr(ShadowedServer, "has_mirror", False)
    died, events = run(changed(mirrored, trace__trainers_die=True), tmp_path / "died", shadowed)
    assert ShadowedServer.num_newer == died.recovered_updates == 0
    assert (died.lost_updates or 0) > (kept.lost_updates or 0)
    assert analysis.check(events, read_config(tmp_path / "died")) == []


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_with_everything_mirrored_nothing_is_lost(config: Config, tmp_path: Path, path: dict) -> None:
    """Partial recovery under ten failures ends bit-equal to a run without failures."""
    config = changed(config, data__max_train_samples=512)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    config = changed(saving_every(changed(config, strategy__name="cpr_mirror"), 40), strategy__share=1.0, **path)
    finished, _ = run(config, tmp_path / "mirror")
    assert finished.num_failures == 10
    assert (finished.digests, finished.auc) == (reference.digests, reference.auc)
    assert (finished.lost_updates, finished.lost_tracked) == (0, 0)
    assert finished.pls > 0, "plain PLS counts samples, not rows"


ANY_TIME = (
    *({("ps2", number, Exchange): when} for number in (1, 8, 13) for when in ("before", "after")),
    {("ps2", 20, Exchange): "after"},
    {("ps2", 4, Exchange): "after", ("ps1", 4, Exchange): "after", ("ps1", 1, Restore): "after"},
    {("ps2", 5, Save): "before", ("ps3", 5, Save): "after"},
    {("ps2", 6, Exchange): "after", ("ps2", 7, Exchange): "after", ("ps2", 8, Exchange): "after"},
)
IN_THE_BACKGROUND = (*ANY_TIME, {("ps2", 3, Finish): "after"}, {("ps1", 4, Finish): "before"})


@pytest.fixture(scope="module")
def undisturbed(click_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run of 30 steps without failures."""
    config = changed(small_config(click_data), data__max_train_samples=120, strategy__name="none")
    return run(config, tmp_path_factory.mktemp("none"))[0]


@pytest.mark.parametrize(
    ("path", "share", "doom"),
    [
        *((DIRECT, 1.0, doom) for doom in ANY_TIME[::2]),
        *((LOOKAHEAD, 1.0, doom) for doom in ANY_TIME[1::2]),
        *((LOOKAHEAD | ASYNC, 1.0, doom) for doom in IN_THE_BACKGROUND),
        *((ASYNC, 0.03, doom) for doom in IN_THE_BACKGROUND),
    ],
    ids=lambda value: named(value) if isinstance(value, dict) and all(map(is_death, value)) else str(value),
)
def test_an_unplanned_death_loses_no_mirrored_update(  # noqa: PLR0917 - pytest's
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Finished,
    path: dict,
    share: float,
    doom: dict,
) -> None:
    """Whichever message fails: ledger and ranks agree, and with everything mirrored the run is as without failure."""
    config = changed(config, strategy__name="cpr_mirror", data__max_train_samples=120)
    config = changed(config, **path, strategy__interval_samples=72, strategy__share=share)
    finished = run_mortal(config, tmp_path / "run", monkeypatch, doom, MortalKeptRanks)
    assert outstanding(read_events(tmp_path / "run" / "events.jsonl")) == KeptRanks.num_unsaved
    if share == 1.0:
        assert finished.lost_updates == 0
        assert (finished.digests, finished.auc) == (undisturbed.digests, undisturbed.auc)


def test_saves_keep_to_their_budgets(mirrored: Config, tmp_path: Path) -> None:
    """K rows of each tracked table and shard; mirrored rows, small tables among them, only where an interval closes."""
    finished, events = run(mirrored, tmp_path / "run")
    run_spec = RunSpec(mirrored)
    placement, tracked = run_spec.placement, run_spec.tracked
    shards = [placement.local_rows(k, table) for k in range(placement.num_ps) for table in tracked]
    num_chosen = sum(budget_rows(rows, PRIORITY_R) for rows in shards)
    num_hot = sum(budget_rows(rows, SHARE) for rows in shards)
    num_small = run_spec.num_rows - sum(shards)
    saves = [event for event in events if isinstance(event, Saved) and event.charged]
    assert {(event.save, event.closes_interval) for event in saves} == {("tracked", False), ("with_mirror", True)}
    for event in saves:
        if event.closes_interval:
            assert num_small < event.num_rows <= num_small + num_chosen + num_hot
        else:
            assert event.num_rows <= num_chosen
    rows = sum(
        num_mirrored(placement.local_rows(k, table), SHARE, is_tracked=table in tracked)
        for k in range(placement.num_ps)
        for table in range(len(placement.cardinalities))
    )
    assert finished.mirror is not None
    assert finished.mirror["rows"] == rows
    assert finished.mirror["bytes"] == rows * (4 * run_spec.size.embedding_dim + MIRROR_INDEX_BYTES)


def test_a_fallback_keeps_no_mirror(mirrored: Config, tmp_path: Path) -> None:
    """Where full recovery is cheaper the strategy is ``full``, and bounded staleness is allowed."""
    fallen = changed(mirrored, strategy__pls_target=1e-4, strategy__interval_samples=None)
    finished, _ = run(fallen, tmp_path / "fallen")
    assert (finished.mirror, finished.lost_updates) == (None, 0)
    RunSpec(changed(fallen, cache__mode="stale")).validate()


def test_bounded_staleness_is_refused(mirrored: Config) -> None:
    """In one line that names the key."""
    expected = r"^cache.mode: expected none or lookahead for strategy cpr_mirror, got stale"
    with pytest.raises(ConfigError, match=expected):
        RunSpec(changed(mirrored, cache__mode="stale")).validate()
