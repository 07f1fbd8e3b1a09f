"""The stand-in of the wandb server, for tests of what is sent to it."""

from collections.abc import Iterator

import pytest

from tests.record.wandb_server import KEY, WandbServer, serve


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A stand-in that wandb uses; no wandb-core is left at the end."""
    import wandb

    with serve() as received:
        monkeypatch.setenv("WANDB_BASE_URL", received.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        wandb.teardown()  # forget the settings of the tests before
        yield received
        wandb.teardown()
