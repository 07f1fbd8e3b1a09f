"""Re-deriving what a run claims from its events alone."""

import re
from typing import Any

import pytest

from harness.core.events import Dropped, Evaluated, Event, Finished, Lost, Recovered, Saved, Started, Trained
from harness.record.audit import check
from tests.injected import is_loss
from tests.made_runs import altered, made_config, made_events, with_drops

STRATEGIES = ("none", "never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu")


def _config(strategy: str = "cpr_vanilla", **values: Any) -> dict[str, Any]:
    return made_config(strategy, **values).model_dump(mode="json")


@pytest.mark.parametrize(
    ("since", "kills", "expected"),
    [
        ("save_or_restore", {40: (1,), 140: (1,), 180: (0,)}, (0.1 + 0.25 + 0.05) / 4),
        ("save", {40: (1,), 140: (1,)}, (0.1 + 0.35) / 4),
    ],
)
def test_pls_of_a_hand_made_case(since: str, kills: dict[int, tuple[int, ...]], expected: float) -> None:
    """A rank that dies twice pays from its restore, or again from the save, and after a save from that."""
    config = made_config("cpr_vanilla", strategy={"interval_samples": 160 * 32}, metrics={"pls_since": since})
    events = made_events(config, planned_kills=kills)
    assert altered(events[-1]).pls == pytest.approx(expected, rel=1e-12)
    assert check(events, config.model_dump(mode="json")) == []


def _first(events: list[Event], kind: type[Event], key: str = "kind") -> int:
    """Place of the first event of a kind that has ``key``."""
    return next(i for i, event in enumerate(events) if isinstance(event, kind) and getattr(event, key))


PRICED = {
    "base": "busy",
    "load": "by_bytes",
    "o_save_fixed_h": 0.5,
    "network_gbps": 25,
    "snapshot_gbps": 50,
    "num_trainers": 4,
}
PRICES: dict[str, dict[str, Any]] = {
    "free": {},
    **{mode: {"profile": PRICED, "save": {"mode": mode}} for mode in ("sync", "async")},
}
_LIES: list[tuple[str, str, type[Event], dict[str, Any], str]] = [
    ("cpr_vanilla", "free", Finished, {"pls": 0.01}, "pls is 0.01"),
    ("cpr_vanilla", "free", Finished, {"overhead_frac": 0.0}, "overhead_frac is 0.0"),
    ("cpr_vanilla", "free", Finished, {"save_h": 1.0}, "save_h is 1.0"),
    ("cpr_vanilla", "free", Finished, {"steps_h": 0.0}, "steps_h is 0.0, the events give None"),
    ("cpr_vanilla", "free", Saved, {"slowest_bytes": 0}, "the rank that wrote most wrote 0 of"),
    ("cpr_vanilla", "free", Finished, {"num_failures": 4}, "num_failures is 4"),
    ("cpr_vanilla", "free", Finished, {"update_pls": 0.5}, "update_pls is 0.5"),
    ("cpr_vanilla", "free", Finished, {"lost_tracked": 1}, "lost_tracked is 1"),
    ("cpr_vanilla", "free", Finished, {"auc": 0.9}, r"auc is 0\.9, the events give 0\.7"),
    ("cpr_vanilla", "free", Finished, {"auc": None}, r"auc is None, the events give 0\.7"),
    ("cpr_vanilla", "free", Finished, {"log_loss": 0.1}, r"log_loss is 0\.1, the events give 0\.4"),
    ("cpr_vanilla", "free", Finished, {"accuracy": 1.0}, r"accuracy is 1\.0, the events give 0\.76"),
    ("full", "free", Finished, {"train_loss": 0.1}, r"train_loss is 0\.1, the events give 0\.4"),
    ("cpr_vanilla", "free", Evaluated, {"auc": 0.9}, r"auc is 0\.7\d+, the events give 0\.9"),
    ("cpr_vanilla", "free", Evaluated, {"final": False}, "no final evaluation of its model is on record"),
    ("cpr_vanilla", "free", Recovered, {"load_h": 0.0}, "load_h is 0.0"),
    ("cpr_vanilla", "free", Recovered, {"pls": {"ps1": 0.2}}, "PLS of ps1 is 0.2"),
    ("cpr_vanilla", "free", Recovered, {"ranks": ["ps2"], "pls": {"ps2": 0.0}}, "recovered ps2, but lost ps1"),
    ("cpr_vanilla", "free", Lost, {"ranks": ["ps3"]}, "ps3 was lost as planned, but no kill of it is on record"),
    ("full", "free", Recovered, {"resume_samples": 0}, "resume_samples is 0"),
    ("full", "free", Recovered, {"lost_h": 0.0}, "lost_h is 0.0"),
    ("cpr_mfu", "free", Trained, {"losses": [0.5]}, "number of losses is 1"),
    ("full", "free", Started, {"seed": 8}, "event 1: seed is 8, the config says 0"),
    ("full", "free", Started, {"strategy": "partial"}, "event 1: strategy is partial, the config says full"),
    ("full", "free", Started, {"profile": "cpr56"}, "event 1: profile is cpr56, the config says busy"),
    ("full", "free", Started, {"trace_clock": "wall"}, "event 1: trace_clock is wall, the config says samples"),
    ("full", "free", Started, {"trace_inject": "wall"}, "event 1: trace_inject is wall, the config says boundary"),
    ("full", "free", Started, {"num_ps": 2, "rank_rows": [5000, 5000]}, "event 1: num_ps is 2, the config says 4"),
    ("cpr_vanilla", "sync", Recovered, {"load_h": 2.5 / 60}, "load_h is 0.0416"),
    ("cpr_vanilla", "sync", Recovered, {"load_bytes": 1}, "load_bytes is 1, the events give 160000"),
    ("full", "sync", Recovered, {"load_bytes": 160_000}, "load_bytes is 160000, the events give 1000000"),
    ("never_save", "sync", Recovered, {"load_bytes": 160_000}, "load_bytes is 160000, the events give 0"),
    ("cpr_vanilla", "sync", Finished, {"node_h": 1.0}, "node_h is 1.0"),
    ("cpr_vanilla", "sync", Finished, {"node_h": None}, "node_h is None"),
    ("cpr_vanilla", "sync", Finished, {"wire_bytes": 7}, "wire_bytes is 7"),
    ("full", "async", Finished, {"save_h": 0.1}, "save_h is 0.1"),
]


@pytest.mark.parametrize(("strategy", "prices", "kind", "lie", "expected"), _LIES)
def test_a_lie_is_noticed(strategy: str, prices: str, kind: type[Event], lie: dict[str, Any], expected: str) -> None:
    """One false figure in a record gives a line with the claim and the number of the event."""
    events = made_events(made_config(strategy, **PRICES[prices]))
    place = _first(events, kind)
    events[place] = altered(events[place], **lie)
    assert any(re.search(expected, line) for line in check(events, _config(strategy, **PRICES[prices]))), expected


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_ledgers_say_follows_from_the_events(strategy: str, prices: str) -> None:
    """Of every strategy; with prices also loads by bytes, fixed parts and waits of saves, node-hours and bytes."""
    values = PRICES[prices]
    events = made_events(made_config(strategy, **values))
    assert check(events, _config(strategy, **values)) == []
    if prices != "free":
        dear = values | {"profile": PRICED | {"snapshot_gbps": None}}
        is_other = prices == "async" and any(isinstance(event, Saved) and event.charged for event in events)
        assert any("save_h" in line for line in check(events, _config(strategy, **dear))) == is_other


def test_a_save_that_did_not_wait_is_noticed() -> None:
    """The hour at which the save before is written follows from the events before it."""
    values: dict[str, Any] = {"profile": PRICED | {"o_save_fixed_h": 20.0}, "save": {"mode": "async"}}
    config = made_config("full", strategy={"interval_samples": 40 * 32}, **values)
    events = made_events(config)
    _, second, *_ = (place for place, event in enumerate(events) if isinstance(event, Saved) and event.charged)
    assert altered(events[second]).save_h > 1
    assert check(events, config.model_dump(mode="json")) == []
    events[second] = altered(events[second], save_h=altered(events[second]).save_h - 1)
    problems = check(events, config.model_dump(mode="json"))
    assert any(f"event {second + 1}: save_h" in line for line in problems)


def test_figures_that_contradict_other_events_are_noticed() -> None:
    """A price of a save that is not by its bytes, a step run again with another loss, a kill that nobody noticed."""
    events = made_events(made_config("full"))
    saved, rerun = _first(events, Saved, "charged"), _first(events, Trained, "rerun")
    losses = altered(events[rerun]).losses
    killed = altered(next(event for event in events if is_loss(event)), rank="ps0")
    other = [
        ([*events[:saved], altered(events[saved], payload_bytes=1), *events[saved + 1 :]], "save_h"),
        (
            [*events[:rerun], altered(events[rerun], losses=[losses[0] + 1e-12, *losses[1:]]), *events[rerun + 1 :]],
            "losses differ from those of the first run",
        ),
        ([*events[:-1], killed, events[-1]], "ps0 was killed, but no `lost` event names it"),
    ]
    for lying, words in other:
        assert any(words in line for line in check(lying, _config("full"))), words


@pytest.mark.parametrize(
    ("strategy", "lie", "expected"),
    [
        ("cpr_vanilla", {"drop": 1e-3}, r"drop is 0\.001, the events give 0\.002"),
        ("cpr_vanilla", {"drop": None}, r"drop is None, the events give 0\.002"),
        ("cpr_vanilla", {"auc_after": None}, r"drop is 0\.002, the events give None"),
        ("cpr_vanilla", {"ranks": ["ps3"]}, "a drop of AUC at a failure of ps3, but no recovery"),
        ("full", {"drop": 1e-3}, r"drop is 0\.001, the events give 0\.0"),
        ("full", {"movement": 0.5}, r"movement without a measurement is 0\.5, the events give None"),
        ("full", {"num_samples": 7}, "evaluations of a drop after a rollback is 7, the events give 0"),
    ],
)
def test_a_drop_is_that_of_one_recovery(strategy: str, lie: dict[str, Any], expected: str) -> None:
    """Law: it is the AUC before less that after, 0 with a rollback, and each recovery has at most one, behind it."""
    events = [*with_drops(made_events(made_config(strategy)), 2e-3)]
    place = _first(events, Dropped)
    before, drop, after = events[:place], events[place], events[place + 1 :]
    assert check(events, _config(strategy)) == check([*before, *after], _config(strategy)) == []
    for own, words in (([altered(drop, **lie)], expected), ([drop, drop], "no recovery without one before")):
        assert any(re.search(words, line) for line in check([*before, *own, *after], _config(strategy))), words


def test_a_kill_on_real_ranks_needs_its_wait_status() -> None:
    """A kill of a process without wait status -9 did not happen; engine local, also if it goes on, has no process."""
    started, *events = made_events(made_config("partial"))
    bare = [altered(event, machine={}) if is_loss(event) else event for event in events]
    assert check([started, *bare], _config("partial")) == []
    on_rpc = altered(started, machine={"pids": {"ps1": 7}})
    assert any("wait status of ps1 is None" in line for line in check([on_rpc, *bare], _config("partial")))
    bare[0] = altered(bare[0], machine={"resumed": [{"pids": {}}, {"pid": 7}]})
    assert check([on_rpc, *bare], _config("partial", engine="rpc")) == []


def test_table_wise_a_rank_weighs_its_share_of_rows() -> None:
    """With table-wise placement PLS is weighed by rows: other shares make other claims."""
    config = _config("never_save", cluster={"placement": "table"})
    events = made_events(made_config("never_save"))
    assert check(events, config) == []
    uneven = [altered(events[0], rank_rows=[4_000, 2_000, 2_000, 2_000]), *events[1:]]
    assert any("PLS of ps0" in line for line in check(uneven, config))
    assert check(uneven, _config("never_save")) == [], "row-wise, every rank weighs 1/N"


def test_a_record_cut_short_is_held_to_what_it_says() -> None:
    """Without its end a record is no contradiction, at whatever event it ends."""
    events = made_events(made_config("full"))
    assert all(check(events[:end], _config("full")) == [] for end in range(1, len(events)))
