"""Traces that name hosts: which ranks each of them means, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from harness.config.model import Config
from harness.core.errors import TraceError
from harness.core.faults import PlannedFault, Strike, merge_faults
from harness.run.spec import RunSpec
from harness.traces.gaps import observe
from harness.traces.job_trace import job_trace
from harness.traces.trace import parse_trace
from tests.runs import changed

HOSTS = {"cluster__num_ps": 6, "cluster__hosts": ("a", "b", "c")}


def under(config: Config, folder: Path, lines: str, **dotted: Any) -> Config:
    """``config`` with such a trace, on three hosts."""
    path = folder / "trace.csv"
    path.write_text(f"hour,rank,repair_h\n{lines}\n")
    return changed(config, trace__path=str(path), **(HOSTS | dotted))


def kills_of(config: Config) -> list[PlannedFault]:
    """The planned kills of a run."""
    return [*RunSpec(config).planned_faults]


def test_a_host_is_the_ranks_on_it_at_its_hour(config: Config, tmp_path: Path) -> None:
    """Law: by turn or by ``cluster.place``; once a host is lost its ranks are elsewhere, and may be lost again."""
    config = under(config, tmp_path, "5,host1,2\n20,host0,", cluster__place={"trainer0": "c"})
    first, second = kills_of(changed(config, trace__repair="reschedule"))
    assert (first.strikes, first.hosts) == (dict.fromkeys(("ps1", "ps4"), Strike(5.0, 2, host=1)), (1,))
    assert first.repair_h == 2.0
    assert (second.ranks, second.hosts) == (("ps0", "ps1", "ps3", "ps4"), (0,))


def test_who_dies_with_a_host_dies_by_its_line(config: Config, tmp_path: Path) -> None:
    """Law: ranks, numbers of ranks and hosts at one boundary are one failure; each rank dies once in it."""
    (kill,) = kills_of(under(config, tmp_path, "5,ps1,\n5,ps2,\n5,host1,3"))
    with_host = Strike(5.0, 4, host=1)
    assert (kill.strikes, kill.hosts) == ({"ps1": with_host, "ps2": Strike(5.0, 3), "ps4": with_host}, (1,))


def test_kills_that_strike_together_lose_all_their_hosts(config: Config, tmp_path: Path) -> None:
    """Law: on the wall clock entries of two hours may meet at one boundary; the first host of a rank is its own."""
    lines = "5,host1,\n6,host2,\n6,ps0,"
    kills = kills_of(under(config, tmp_path, lines, trace__clock="wall"))
    together = merge_faults(9, kills)
    assert [kill.ranks for kill in kills] == [("ps1", "ps4"), ("ps0", "ps1", "ps2", "ps5")]
    assert together.ranks == ("ps0", "ps1", "ps2", "ps4", "ps5")
    assert together.hosts == (1, 2)
    found = {rank: (strike.line, strike.host) for rank, strike in together.strikes.items()}
    assert found == {"ps0": (4, None), "ps1": (2, 1), "ps2": (3, 2), "ps4": (2, 1), "ps5": (3, 2)}


@pytest.mark.parametrize(
    ("lines", "keys", "words"),
    [
        ("5,host1,", {"cluster__hosts": ()}, "host1 is an index into cluster.hosts, which names none; set"),
        ("5,host3,", {}, "expected a host of cluster.hosts (host0 … host2), got host3"),
        ("4,ps1,\n5,host1,\n6,host1,", {}, "host1 was lost at line 3 already, and does not come back"),
        ("5,host2,", {"cluster__num_ps": 1}, "host2 (c) has no rank at that hour; name a host that has one"),
        ("5,host1,", {"cluster__spares": 1}, "host1: expected cluster.spares=0, got 1; on which host"),
    ],
)
def test_a_host_that_cannot_be_lost_is_one_line(
    config: Config, tmp_path: Path, lines: str, keys: dict[str, Any], words: str
) -> None:
    """Law: when the config is checked, with the file and the line of the trace."""
    config = under(config, tmp_path, lines, **keys)
    with pytest.raises(TraceError) as caught:
        RunSpec(config).validate()
    line = 1 + len(lines.splitlines())
    assert str(caught.value).startswith(f"{tmp_path}/trace.csv:{line}: rank: {words}")
    assert "\n" not in str(caught.value)


def test_results_depend_on_the_placement_only_where_a_trace_names_a_host(config: Config, tmp_path: Path) -> None:
    """Law: and never on the names of hosts."""
    named, other = under(config, tmp_path, "5,host1,"), {"cluster__hosts": ("x", "y", "z", "w")}
    hashes = [RunSpec(each).result_hash for each in (named, changed(named, cluster__hosts=("x", "y", "z")))]
    assert hashes[0] == hashes[1] != RunSpec(changed(named, **other)).result_hash
    hashes = [RunSpec(changed(config, **keys)).result_hash for keys in ({}, other)]
    assert hashes[0] == hashes[1]


def test_statistics_count_the_ranks_of_a_host(config: Config, tmp_path: Path) -> None:
    """Law: where the run is known; without it one line says what is missing. Windows and scales move hosts too."""
    lines = "5,host1,\n20,ps0,\n30,host2,"
    config = under(config, tmp_path, lines)
    trace = job_trace(config)
    assert trace is not None
    assert observe(trace).num_deaths == 6
    assert job_trace(changed(config, trace__stretch=True)) is not None
    with pytest.raises(TraceError, match=r"^x:2: rank: expected names or numbers of ranks, got host1; how many ranks"):
        observe(parse_trace(f"hour,rank,repair_h\n{lines}".splitlines(), "x"))
