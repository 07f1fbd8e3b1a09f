"""What all clients promise the step loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from harness.client.direct import DirectClient
from harness.client.embedding_client import EmbeddingClient
from harness.client.lookahead import LookaheadClient
from harness.client.staleness import StaleClient
from harness.cluster.protocol import Request
from harness.config.model import Config
from harness.core.plans import Progress, Rank
from harness.recovery.requests import Requests, Sent
from tests.runs import changed, run


@pytest.mark.parametrize(
    ("mode", "client"), [("none", DirectClient), ("lookahead", LookaheadClient), ("stale", StaleClient)]
)
def test_a_push_overlaps_what_it_sends_with_the_dense_update(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, client: type[EmbeddingClient]
) -> None:
    """``overlap`` is called once, after requests went out, in each push that sends any, and in no other."""
    num_sent, num_calls = 0, {0: 0, 1: 0}
    start, push = Requests.start, client.push

    def counted(own: Requests, requests: Mapping[Rank, Request]) -> Sent:
        nonlocal num_sent
        num_sent += 1
        return start(own, requests)

    async def checked(own: Any, grads_ND: Tensor, at: Progress, *, overlap: Callable[[], None], **due: bool) -> None:
        before, sent_then = num_sent, []
        await push(own, grads_ND, at, overlap=lambda: sent_then.append(num_sent) or overlap(), **due)
        assert len(sent_then) == (num_sent > before)
        assert all(sent > before for sent in sent_then)
        num_calls[len(sent_then)] += 1

    monkeypatch.setattr(Requests, "start", counted)
    monkeypatch.setattr(client, "push", checked)
    caching = changed(config, cache__mode=mode, cache__lookahead=20, cache__staleness=2, strategy__name="none")
    run(changed(caching, data__max_train_samples=96, eval__every_steps=10), tmp_path)
    assert num_calls == ({0: 21, 1: 3} if mode == "lookahead" else {0: 0, 1: 24})
