"""Ranks of engine ``local`` that die at given requests, and what is left of them."""

from pathlib import Path
from typing import Any

import torch

from harness.cluster.local import LocalRanks
from harness.cluster.protocol import Request, Save
from harness.cluster.replicas import Parity, Replica, bits_of
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.events import Event, Finished, Recovered, Saved
from harness.core.plans import ParityGroups
from harness.run.assemble import Parts
from tests.runs import changed, run

Doom = dict[tuple[str, int, type], str]
"""Deaths: ``doom[rank, number, kind]`` is at the n-th request of a kind to a rank. ``before``: the rank dies without
having served it; ``after``: right after it has answered."""


class Finish(Save):
    """A Save of mode ``finish``, as a kind of request of its own."""


def kind_of(request: Request) -> type:
    """The kind by which a doom names it."""
    return Finish if isinstance(request, Save) and request.mode == "finish" else type(request)


class MortalRanks(LocalRanks):
    """Ranks that die as ``doom`` says, and can be looked at after the run."""

    doom: Doom = {}  # noqa: RUF012 - set by each run
    died: list[str] = []  # noqa: RUF012
    served: dict[tuple[str, type], int] = {}  # noqa: RUF012 - requests of each kind to each rank
    last: dict[str, RankServer] = {}  # noqa: RUF012 - the servers at the end

    def __init__(self, num_ps: int, make_server: Any, num_trainers: int) -> None:
        served = self.served

        def make(rank: str) -> RankServer:
            server = make_server(rank)
            real = server.handle

            def handle(request: Request) -> Any:
                key = (rank, kind_of(request))
                served[key] = served.get(key, 0) + 1
                fate = self.doom.pop((rank, served[key], kind_of(request)), None)
                if fate == "before":
                    self.die(rank)
                    return None  # which nobody hears of
                reply = real(request)
                if fate == "after":
                    self.die(rank)
                return reply

            server.handle = handle
            return server

        super().__init__(num_ps, make, num_trainers)

    @classmethod
    def begin(cls, doom: Doom) -> None:
        """Forget the run before."""
        MortalRanks.doom, MortalRanks.died, MortalRanks.served = dict(doom), [], {}

    def die(self, rank: str) -> None:
        """Drop the shard."""
        self.died.append(rank)
        self.kill([rank])

    def close(self) -> None:
        """Keep the servers."""
        MortalRanks.last = {rank: each for rank, each in self.servers.items() if isinstance(each, RankServer)}
        super().close()


def run_mortal(config: Config, run_dir: Path, doom: Doom, ranks: type[MortalRanks] = MortalRanks) -> Finished:
    """A local run in which ranks die as ``doom`` says; all of it must come true, and the record must add up."""
    MortalRanks.begin(doom)
    mortal = changed(config, trace__path=None, trace__allow_unplanned=True)
    finished, _ = run(mortal, run_dir, Parts(make_ranks=ranks))
    assert sorted(MortalRanks.died) == sorted(rank for rank, _, _ in doom)
    return finished


def outstanding(events: list[Event]) -> int:
    """Updates that according to the ledger are neither persisted nor lost."""
    finished = events[-1]
    assert isinstance(finished, Finished)
    saves: list[Saved] = []  # that no rollback has undone
    for event in events:
        if isinstance(event, Saved):
            saves.append(event)
        elif isinstance(event, Recovered) and event.rollback:
            saves = [save for save in saves if save.step <= event.resume_step]
    persisted = sum(event.persisted_updates or 0 for event in saves)
    return (finished.applied_updates or 0) - persisted - (finished.lost_updates or 0)


def unsaved() -> int:
    """Updates that the ranks of the last run count as unsaved."""
    pending = (server.shard.pending_M for server in MortalRanks.last.values())
    return sum(int(pending_M.sum()) for pending_M in pending if pending_M is not None)


def assert_replicas_are_whole() -> None:
    """Every replica of the last run has the rows, counts, step and saved updates of its owner."""
    for server in MortalRanks.last.values():
        assert isinstance(server.replica, Replica)
        replica, owner = server.replica.shard, MortalRanks.last[server.replica.owner].shard
        assert torch.equal(replica.rows_MD, owner.rows_MD)
        assert replica.pending_M is not None
        assert owner.pending_M is not None
        assert torch.equal(replica.pending_M, owner.pending_M)
        assert (replica.applied_step, replica.saved_counts) == (owner.applied_step, owner.saved_counts)


def assert_parities_are_whole() -> None:
    """Every parity of the last run is the XOR of its group's rows."""
    held = {rank: each.replica for rank, each in MortalRanks.last.items() if isinstance(each.replica, Parity)}
    groups = ParityGroups(2, len(MortalRanks.last)).members
    assert held.keys() == groups.keys()
    for holder, parity in held.items():
        expected_MX = torch.zeros_like(parity.bits_MX)
        for member in groups[holder]:
            rows_MX = MortalRanks.last[member].shard.rows_MD
            expected_MX[: len(rows_MX)] ^= bits_of(rows_MX)
        assert torch.equal(parity.bits_MX, expected_MX)
