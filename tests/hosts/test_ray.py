"""Ranks on hosts whose fork servers Ray starts. Needs ray (requirements-ray.txt), and is skipped without."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.events import Lost, Regrouped
from harness.record.event_log import read_events
from harness.run.verify import compare_records
from tests.forked import said_by
from tests.hosts import host_runs
from tests.hosts.emulated import Emulation, NotAllowed, address_of, await_that, emulated
from tests.hosts.ray_nodes import by_ray, ours, ray_on
from tests.hosts.test_hosts import ends_as, hosts_named, killed_at_last, long, short
from tests.injected import is_loss
from tests.runs import changed, run

pytest.importorskip("ray", reason="needs pip install -r requirements-ray.txt")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """Four hosts, each with a node of Ray."""
    try:
        with emulated(4, tmp_path_factory.mktemp("hosts")) as made, ray_on(made):
            yield made
    except NotAllowed as error:
        pytest.skip(f"no emulated hosts here: {error}")


def none_left(hosts: Emulation) -> None:
    """Wait until nothing of the harness runs on the hosts."""
    await_that(lambda: not any(map(ours, hosts.hosts)), "nothing of the harness is left")


def test_a_run_by_ray_has_the_events_of_one_process(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: to the bit, under failures; each kill is a SIGKILL on the node that the record names."""
    config = long(config, tmp_path)
    run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, by_ray(hosts, config, num=3), tmp_path / "run") == ""
    assert compare_records(tmp_path / "local", tmp_path / "run") == []
    kills = [event for event in read_events(tmp_path / "run" / "events.jsonl") if is_loss(event)]
    assert all(kill.machine["exitcode"] == -9 for kill in kills)
    assert {kill.machine["host"] for kill in kills} == {address_of(hosts, host) for host in hosts.hosts[:3]}
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


def test_a_rank_that_is_cut_off_on_a_node_touches_no_file_of_its_replacement(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: as on hosts of a command template; a fork server on another node is killed afterwards."""
    config = short(config, data__max_train_samples=640)
    trainers, cut, killed = hosts.hosts[:3]
    acts = (
        partial(host_runs.cut_link, host=cut, folder=tmp_path),
        partial(host_runs.lose_process, host=killed, part=b"harness.run.fork_server"),
    )
    body = partial(host_runs.run_and, ps_main=partial(host_runs.go_on_writing, tmp_path))
    placed = changed(by_ray(hosts, config, num=3), cluster__place={"trainer0": address_of(hosts, trainers)})
    said = said_by(body, hosts, placed, tmp_path / "run", *acts)
    hosts.mend(cut)
    none_left(hosts)  # who goes on writing has ended
    assert said == ""
    events = read_events(tmp_path / "run" / "events.jsonl")
    lost = [hosts_named(event) for event in events if isinstance(event, Regrouped)]
    assert lost == [[address_of(hosts, host)] for host in (cut, killed)]
    assert int((tmp_path / "written").read_text()) > 1000
    ends_as(config, tmp_path, events)


def test_who_is_killed_on_a_node_is_a_lost_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: fork server, task or raylet: one failure of its ranks, nothing is left there, and the run goes on.

    At last the supervisor is killed, and no rank, fork server or task is left on any host, long before a
    deadline. A node without its raylet is lost for good, so this comes last.
    """
    trainers, *lost = hosts.hosts
    parts = (b"harness.run.fork_server", b"ray::run_there", b"raylet/raylet")
    acts = [partial(host_runs.lose_process, host=host, part=part) for host, part in zip(lost, parts, strict=True)]
    config = by_ray(hosts, short(config, data__max_train_samples=640))
    killed_at_last(hosts, changed(config, cluster__place={"trainer0": address_of(hosts, trainers)}), tmp_path, *acts)
    none_left(hosts)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert all(event.unplanned_ranks for event in events if isinstance(event, Lost))
    regrouped = [event for event in events if isinstance(event, Regrouped)]
    assert [[*event.machine["lost_hosts"]] for event in regrouped] == [[address_of(hosts, host)] for host in lost]
