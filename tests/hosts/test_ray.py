"""Ranks on three hosts whose agents Ray starts. Needs ray (requirements-ray.txt), and is skipped without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.events import Lost, Regrouped
from harness.record.event_log import read_events
from tests.forked import said_by
from tests.hosts import host_runs
from tests.hosts.emulated import PATIENCE_S, Emulation, NotAllowed, address_of, await_that, emulated
from tests.hosts.ray_nodes import by_ray, ours, ray_on
from tests.hosts.test_hosts import facts, killed_supervisor, long, short
from tests.injected import is_loss
from tests.runs import changed, run

pytest.importorskip("ray", reason="needs pip install -r requirements-ray.txt")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """Three hosts, each with a node of Ray."""
    try:
        with emulated(3, tmp_path_factory.mktemp("hosts")) as made, ray_on(made):
            yield made
    except NotAllowed as error:
        pytest.skip(f"no emulated hosts here: {error}")


def none_left(hosts: Emulation) -> None:
    """Wait until nothing of the harness runs on the hosts."""
    await_that(lambda: not any(map(ours, hosts.hosts)), "nothing of the harness is left")


def test_a_run_by_ray_has_the_events_of_one_process(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: to the bit, under ten failures; each kill is a SIGKILL on the node that the record names."""
    config = long(config, "cpr_mfu")
    _, expected = run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, by_ray(hosts, config), tmp_path / "run") == ""
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert facts(events) == facts(expected)
    kills = [event for event in events if is_loss(event)]
    assert all(kill.machine["exitcode"] == -9 for kill in kills)
    assert {kill.machine["host"] for kill in kills} == {address_of(hosts, host) for host in hosts.hosts}
    none_left(hosts)


def test_nothing_is_left_of_a_supervisor_that_is_killed(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: no rank, agent or task runs on any host until its lease runs out."""
    killed_supervisor(hosts, by_ray(hosts, short(config)), tmp_path)
    none_left(hosts)


def test_what_ray_cannot_do_is_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: exit code 2 for a host that is no node, and for an address without Ray."""
    for keys, words in (
        ({"hosts": ("10.0.0.99",)}, "ConfigError: cluster.hosts: expected addresses of living Ray nodes (10.0.0.1, "),
        (
            {"ray_address": "10.0.0.1:1"},
            "ConfigError: cluster.ray_address: no Ray at 10.0.0.1:1: [Errno 111] Connection refused",
        ),
    ):
        config_ = changed(by_ray(hosts, config), **{f"cluster__{key}": value for key, value in keys.items()})
        said = said_by(host_runs.run_and, hosts, config_, tmp_path / str(len(words)))
        assert said.startswith(words)
        assert said.count("\n") == 1


@pytest.mark.parametrize("part", [b"harness.run.agent", b"ray::agent", b"raylet/raylet"])
def test_who_is_killed_on_a_node_is_a_lost_host(hosts: Emulation, config: Config, tmp_path: Path, part: bytes) -> None:
    """Law: agent, task or raylet: one failure of its ranks, nothing of the harness is left there, and the run goes on.

    It ends there long before a lease runs out. A node without its raylet is lost for good, so it comes last.
    """
    host = hosts.hosts[2 if part == b"raylet/raylet" else 1]
    config = changed(short(config), cluster__dead_after_s=4 * PATIENCE_S)
    arguments = (hosts, by_ray(hosts, config), tmp_path / "run", host_runs.lose_process, host, part)
    assert said_by(host_runs.run_and, *arguments) == ""
    events = read_events(tmp_path / "run" / "events.jsonl")
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert len(lost.unplanned_ranks) == 2
    (regrouped,) = (event for event in events if isinstance(event, Regrouped))
    assert [*regrouped.machine["lost_hosts"]] == [address_of(hosts, host)]
    none_left(hosts)
