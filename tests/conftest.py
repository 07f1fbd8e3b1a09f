"""Small prepared click logs that every test of a run shares, and stand-ins of the wandb server.

The fixtures import what they need: the process that hands out tests to workers imports this file too, and the workers
wait for it.
"""

import gc

gc.disable()  # until all tests are collected: what is imported stays

# ruff: noqa: E402
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import harness  # noqa: F401 - bounds how long threads of OpenMP spin, before a test imports torch

settings.register_profile(
    "test", derandomize=True, max_examples=20, deadline=None, database=None, suppress_health_check=[*HealthCheck]
)
settings.register_profile("soak", settings.get_profile("test"), derandomize=False, max_examples=3000)
settings.load_profile("test")  # `pytest --hypothesis-profile=soak` takes the other

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin for 0.1 s after each product of numpy

if TYPE_CHECKING:
    from harness.config.model import Config
    from tests.wandb.stand_in import WandbServer


def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n auto`: two more than there are cores, since tests wait for processes that they start."""
    return len(os.sched_getaffinity(0)) + 2


_FIRST = {
    *("test_equivalence.py", "test_plugins.py", "test_trainers.py", "test_verify.py", "test_worlds.py"),
    *("test_faults.py", "test_hosts.py"),  # which wait for deadlines
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of long tests first: at the end no worker is left alone with tests of many seconds."""
    items.sort(key=lambda item: item.path.name not in _FIRST)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests of a worker, which live as long as it does.

    It looks for cycles a hundredth as often as by default, which takes 3 to 5 % of the time.
    """
    gc.freeze()
    gc.set_threshold(70_000)
    gc.enable()


@pytest.fixture(scope="session")
def click_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 prepared samples: 1,029 to train on."""
    from harness.data.prepare import prepare
    from tests.data.logs import random_rows, to_text

    folder = tmp_path_factory.mktemp("clicks")
    rows = random_rows(1200, seed=1, num_values=120)
    (folder / "log.tsv").write_bytes(to_text(rows))
    prepare([folder / "log.tsv"], folder / "data", categories="number", max_ind_range=None, progress=None)
    return folder / "data"


@pytest.fixture
def config(click_data: Path) -> "Config":
    """A run of 256 steps on 4 PS ranks under the busy profile and trace; override with ``tests.runs.changed``."""
    from tests.runs import small_config

    return small_config(click_data)


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch) -> "Iterator[WandbServer]":
    """A stand-in that wandb uses; no wandb-core is left at the end, and no unknown operation was met."""
    from tests.wandb.stand_in import serve

    with serve() as received:
        yield from _used_by_wandb(received.url, received, monkeypatch)


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address, which wandb uses, of a server that accepts connections and never answers; asked for one second."""
    from harness.wandb import server

    monkeypatch.setitem(server.LIMITS_S, "probe", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield from _used_by_wandb(url, url, monkeypatch)


def _used_by_wandb(url: str, server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import wandb

    from tests.wandb.stand_in import KEY, be_patient

    be_patient(monkeypatch)
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.teardown()  # forget the settings of the tests before
    yield server
    wandb.teardown()
