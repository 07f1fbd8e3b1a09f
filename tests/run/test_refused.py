"""Settings, traces and data that do not go together: one line each, which names the key or the line of the trace."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config.model import Config
from harness.core.errors import DataError, UserError
from harness.data.records import RECORDS_NAME, read_meta
from harness.run import assemble
from harness.run.assemble import RunStatus
from harness.run.spec import check
from harness.run.trainer import refuse_other_data
from tests.runs import changed, under

TWO: dict[str, Any] = {"cluster__num_trainers": 2, "trainer__backend": "compiled"}
REAL: dict[str, Any] = {"trace__inject": "wall", "engine": "rpc"}
NOT_CHIEF = "trace.csv:2: phase, fault: expected nothing for trainer0, got "
ALL = "10,trainer0,,\n10,trainer1,,"
NO_CACHE = "cache.mode: expected none or lookahead with "
MEMORY = {"strategy__name": "tiers", "strategy__memory_samples": 8, "profile__tier_frac": {"memory": 0.1}}
NOTHING = "phase, fault: expected nothing with trace.inject=wall, got "

REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    # kills at real seconds
    ({"trace__inject": "wall"}, "", "trace.inject: expected boundary on engine local, got wall"),
    ({**REAL, "trace__clock": "wall"}, "", "inject: expected boundary with trace.clock=wall"),
    ({**REAL, "trace__repair": "reschedule"}, "", "inject: expected boundary with trace.repair=reschedule"),
    ({**REAL, "trace__trainers_die": True}, "10,ps1,,", "trace.trainers_die: expected false with trace.inject=wall"),
    (REAL, "10,trainer0,,", "trace.csv:2: rank: expected another rank than trainer0 with trace.inject=wall"),
    (
        {"trace__clock": "wall", "trace__interrupts": True},
        "10,trainer0,,",
        "rank: expected another rank than trainer0 with trace.interrupts=true; what trainer0 knows",
    ),
    (REAL, "10,ps1,save,", f"trace.csv:2: {NOTHING}save"),
    (REAL, "10,ps1,,hang", f"trace.csv:2: {NOTHING}boundary, hang"),
    # trainers
    (TWO, "10,trainer0,lookup,", f"{NOT_CHIEF}lookup, kill"),
    (TWO, "10,trainer0,,hang", f"{NOT_CHIEF}boundary, hang"),
    (TWO, "10,trainer2,,", "expected a rank of this run (trainer0 … trainer1), got trainer2; cluster.num_tr"),
    ({**TWO, "cache__mode": "stale"}, ALL, f"{NO_CACHE}a trace that kills all trainers"),
    ({"cache__mode": "stale", "trace__trainers_die": True}, "10,ps1,,", f"{NO_CACHE}trace.trainers_die=true"),
    ({**TWO, "trainer__backend": "torch"}, "", "cluster.num_trainers: expected 1 with backend torch on cpu, got 2"),
    # ranks and their network
    (
        {"strategy__name": "parity", "strategy__group_size": 4},
        "",
        "strategy.group_size: expected less than cluster.num_ps (4), got 4; a parity is held outside of its group",
    ),
    ({"strategy__name": "buddy", "cluster__num_ps": 1}, "", "strategy.name: buddy needs cluster.num_ps >= 2, got 1"),
    (
        {**MEMORY, "cluster__num_ps": 1},
        "",
        "strategy.memory_samples: expected null with cluster.num_ps=1, got a number; the memory of the next rank is",
    ),
    ({"engine": "rpc", "cluster__interface": "eth9", "cluster__network": "open"}, "", "cluster.interface: unknown"),
    *(
        ({"trainer__progress_timeout_s": seconds}, "", f"cluster.join_timeout_s (180), got {seconds:g}; the trainer")
        for seconds in (180, 179.5)
    ),
)  # fmt: skip


@pytest.mark.parametrize(("keys", "lines", "words"), REFUSED, ids=[words[:60] for *_, words in REFUSED])
def test_what_does_not_go_together_is_refused(
    config: Config, tmp_path: Path, keys: dict[str, Any], lines: str, words: str
) -> None:
    """Law: before anything is trained."""
    (tmp_path / "trace.csv").write_text(f"hour,rank,phase,fault\n{lines}\n")
    with pytest.raises((UserError, ValidationError), match=re.escape(words)) as refused:
        assemble.run(changed(config, trace__path=str(tmp_path / "trace.csv"), **keys), tmp_path / "run")
    assert isinstance(refused.value, ValidationError) or "\n" not in str(refused.value)


def test_what_goes_together_is_not(config: Config) -> None:
    """Law: no deadline of progress; exact saves of optimizer state, and rounded ones without it."""
    assert check(changed(config, trainer__progress_timeout_s=None)) == []
    config = changed(config, strategy__name="differential")
    for bits, optimizer in ((32, "adagrad"), (2, "sgd")):
        assert check(changed(config, strategy__bits=bits, trainer__optimizer=optimizer)) == []


@pytest.mark.parametrize(
    ("keys", "remark"),
    [
        (
            {"strategy__name": "partial", "strategy__interval_samples": 3},
            "a smaller trainer.batch_size or another strategy.interval_samples",
        ),
        ({"strategy__name": "partial", "strategy__restore_optimizer": "reset"}, "restore_optimizer=reset changes noth"),
    ],
)
def test_a_setting_without_the_expected_effect_is_told(config: Config, keys: dict[str, object], remark: str) -> None:
    """One sentence; none where the setting has its effect."""
    (line,) = check(changed(config, **keys))
    assert remark in line
    has_effect = {"strategy__interval_samples": 60, "trainer__optimizer": "adagrad"}
    assert check(changed(changed(config, strategy__name="partial", **has_effect), **(keys | has_effect))) == []


def test_a_trace_without_failures_is_told(config: Config, tmp_path: Path) -> None:
    """One sentence, except for the strategy that has no failures anyway."""
    empty = under(config, tmp_path, "hour,rank\n")
    assert check(changed(empty, strategy__name="full")) == [f"trace.path: {tmp_path / 'trace.csv'} has no failures"]
    assert check(changed(empty, strategy__name="none")) == []


def test_other_data_at_the_trainer_are_one_line(click_data: Path, tmp_path: Path) -> None:
    """Law: no data, other data, and records that changed; the line names the folder and why."""
    folder, digest = tmp_path / "data", read_meta(click_data).digest
    with pytest.raises(
        DataError, match=rf"^data.path: expected the supervisor's data \(digest {digest}\) in {folder} on"
    ):
        refuse_other_data(folder, digest)
    shutil.copytree(click_data, folder)
    refuse_other_data(folder, digest)
    with pytest.raises(DataError, match=rf"of trainer0: got data of digest {digest}$"):
        refuse_other_data(folder, "0" * 32)
    with (folder / RECORDS_NAME).open("r+b") as file:
        file.write(b"\x01\x02\x03")
    with pytest.raises(DataError, match=r"of trainer0: .*damaged: expected digest") as caught:
        refuse_other_data(folder, digest)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["local", "rpc"])
def test_data_that_become_shorter_during_a_run_are_one_line(
    config: Config, click_data: Path, tmp_path: Path, engine: str
) -> None:
    """Law: the run ends with the error of its data, whichever process reads them."""
    records = tmp_path / "data" / RECORDS_NAME
    shutil.copytree(click_data, records.parent)

    def shorten(status: RunStatus) -> None:
        if status.phase == "train":
            os.truncate(records, 0)

    with pytest.raises(
        DataError, match=r"records\.bin: 0 bytes, expected 192,000 bytes \(1,200 rows\); prepare again$"
    ):
        assemble.run(
            changed(config, data__path=str(records.parent), engine=engine), tmp_path / "run", on_status=shorten
        )
