"""Real worlds: processes, RPC, SIGKILL."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.cluster import rank_process
from harness.cluster.launcher import RankContext
from harness.cluster.protocol import Exchange, Push, WriteBack
from harness.cluster.wire import packed
from harness.config.model import ClusterConfig, Config
from harness.core.errors import ConfigError, RankFailed, RunFailed
from harness.core.faults import PlannedFault, Strike
from harness.processes.leash import ORPHANED
from harness.processes.network import Entrance
from tests.cluster import worlds
from tests.forked import forked
from tests.injected import is_loss
from tests.runs import changed


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_kill_is_sigkill_of_the_process_that_served(config: Config, tmp_path: Path) -> None:
    """The wait status of the very pid that had answered the last request says signal 9; its replacement has another
    pid, no survivor's pid changes, the survivors answered, and nobody is left at the end.
    """
    planned_kill = PlannedFault(step=5, strikes={"ps1": Strike(1.0, 2), "ps3": Strike(1.0, 3)})
    events = worlds.run_job(config, tmp_path, worlds.kill_and_replace, (planned_kill,))
    first, last = (event["served"] for event in events if isinstance(event, dict) and "served" in event)
    killed = {event.rank: event.machine for event in events if is_loss(event)}
    for rank in ("ps1", "ps3"):
        assert killed[rank] == {"pid": first[rank], "signal": 9, "exitcode": -9}
        assert last[rank] != first[rank]
    assert {rank: pid for rank, pid in last.items() if rank in ("ps0", "ps2")} == {
        rank: pid for rank, pid in first.items() if rank in ("ps0", "ps2")
    }
    (found,) = [event for event in events if isinstance(event, dict) and "lost" in event]
    assert (found["lost"], found["answered"]) == (["ps1", "ps3"], ["ps0", "ps2"])
    assert events[-1]["equal"]
    assert not any(alive(pid) for pid in {*first.values(), *last.values()})


def test_a_rank_that_raises_is_not_taken_for_dead(config: Config, tmp_path: Path) -> None:
    """A bug in a rank's code ends the run with the rank's own traceback; nobody is replaced."""
    with pytest.raises(RankFailed, match=r"(?s)ps1 failed at Exchange.*index"):
        worlds.run_job(config, tmp_path, worlds.raise_in_a_rank)


def test_nothing_is_sent_but_a_ranks_own_rows() -> None:
    """Rows that are a slice of all ranks' rows travel without the others; what is whole already is left as it is."""
    all_ND = torch.arange(20.0).reshape(10, 2)
    rows_N, ones_N = torch.arange(6), torch.ones(6, dtype=torch.int32)
    pushes = (
        Push(step=1, rows_N=rows_N, grads_ND=all_ND[:6], counts_N=ones_N, sampled_N=ones_N > 0, learning_rate=0.1),
        WriteBack(step=1, rows_N=rows_N, values_ND=all_ND[:6], counts_N=ones_N),
    )
    for push in pushes:
        sent = packed(Exchange(push=push))
        assert isinstance(sent, Exchange)
        assert isinstance(sent.push, Push | WriteBack)
        rows_ND = sent.push.grads_ND if isinstance(sent.push, Push) else sent.push.values_ND
        assert rows_ND.equal(all_ND[:6])
        assert rows_ND.untyped_storage().nbytes() == rows_ND.nbytes
        assert packed(sent) is sent
    asked = Exchange(pull_N=rows_N)
    assert packed(asked) is asked


def test_a_rank_that_goes_mute_while_a_world_is_formed_is_replaced_too(config: Config, tmp_path: Path) -> None:
    """Whoever has not joined in time counts as lost; nobody waits for it for good."""
    events = worlds.run_job(changed(config, cluster__join_timeout_s=3.0), tmp_path, worlds.hang_while_joining)
    assert [event["mute"] for event in events if isinstance(event, dict) and "mute" in event] == [["ps2"]]
    last = events[-1]
    changed_pids = {rank for rank, pid in last["served"].items() if pid != last["before"][rank]}
    assert changed_pids == {"ps1", "ps2"}
    assert not alive(last["before"]["ps2"])


def test_a_failing_trainer_fails_the_run_in_its_own_words(config: Config, tmp_path: Path) -> None:
    """Errors of the trainer rank come out of the supervisor unchanged."""
    with pytest.raises(RunFailed, match=r"^on purpose$"):
        worlds.run_job(config, tmp_path, worlds.fail)


def test_a_port_in_use_is_one_clear_line(config: Config, tmp_path: Path) -> None:
    """Before any rank is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^cluster\.host, cluster\.port: cannot listen on 127\.0\.0\.1:{port}: "
        ):
            worlds.run_job(changed(config, cluster__port=port, cluster__network="open"), tmp_path, worlds.fail)


@pytest.mark.parametrize("main", [rank_process.ps_main, rank_process.trainer_main])
@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_rank_whose_supervisor_has_ended_ends_with_it(main: Callable[..., None], *, is_reaped: bool) -> None:
    """Law: without an error, also before it has entered the network, whose files end with the supervisor."""
    supervisor = forked(lambda: None)
    os.waitid(os.P_PID, supervisor, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
    context = RankContext(
        rank="ps0",
        formation=None,
        supervisor_pid=supervisor,
        port=1,
        authkey=b"",
        options=ClusterConfig(rpc_timeout_s=1.0, join_timeout_s=1.0),
        entrance=Entrance((f"/proc/{supervisor}/fd/3",)),
    )
    assert os.waitstatus_to_exitcode(os.waitpid(forked(lambda: main(None, context)), 0)[1]) == ORPHANED
    if not is_reaped:
        os.waitpid(supervisor, 0)
