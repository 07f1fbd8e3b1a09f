"""The client without a cache: rows that were looked up ahead are those that the ranks hold."""

from pathlib import Path
from typing import Any

import pytest
from torch import equal

from harness.client.direct import DirectClient
from harness.client.embedding_client import Pulled
from harness.cluster.protocol import Exchange
from harness.config.model import Config
from harness.core.plans import Progress
from tests.recovery.mortal_ranks import run_mortal
from tests.runs import changed


@pytest.mark.parametrize(("fate", "number"), [("before", 41), ("after", 42), ("after", 80)])
def test_a_step_trains_on_what_the_ranks_hold(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, number: int
) -> None:
    """Also rows that were looked up ahead, with shards restored alone meanwhile: to the bit, for every living rank."""
    real, seen = DirectClient.pull, []

    async def pull(client: DirectClient, progress: Progress) -> Pulled:
        pulled = await real(client, progress)
        plan, rows_ND = pulled.plan, pulled.rows_SX
        cluster: Any = client._requests._cluster
        servers = cluster._ranks.servers
        for k, rows in enumerate(plan.rows):
            server = servers.get(f"ps{k}")
            if server is not None:
                first, last = plan.bounds[k : k + 2]
                assert equal(rows_ND[first:last], server.shard.gather(rows)), (progress.step, k)
                seen.append(client._sent is not None)
        return pulled

    monkeypatch.setattr(DirectClient, "pull", pull)
    config = changed(config, strategy__name="partial", strategy__interval_samples=300, data__max_train_samples=400)
    finished = run_mortal(config, tmp_path / "run", {("ps2", number, Exchange): fate})
    assert finished.num_lost_ranks == 1
    assert sum(seen) > len(seen) / 2, "most rows came ahead"
