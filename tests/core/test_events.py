"""Laws of the record: what is written reads back."""

import dataclasses
import json
from typing import Any, get_type_hints

import pytest

from harness.core.events import EVENTS, Event, Injected, from_json
from harness.core.faults import Detail

SAMPLES: dict[Any, Any] = {
    int: 3,
    float: 0.1 + 0.2,
    bool: True,
    str: 'a \n"ü"',
    list[str]: ["ps0", "ps1"],
    list[int]: [1, 2],
    list[float]: [0.1, 1e-300],
    dict[str, float]: {"ps1": 1 / 3},
    dict[str, int]: {"ps1": 3},
    dict[str, str]: {"ps1": "00ff"},
    dict[str, Detail]: {"bit": 7, "path": "ps1/base.bin", "factor": 1.5},
    dict[str, dict[str, bool]]: {"replica": {"rolls_back": False, "reads_rows": True}},
    dict[str, Any]: {"pid": 7, "replaced": {"ps3": [1, 2]}},
    int | None: 5,
    float | None: 0.7,
    list[float] | None: [0.7, 1e-300],
    str | None: "trace.csv",
    dict[str, float] | None: {"hit_rate": 0.9},
}

EVERY_EVENT = pytest.mark.parametrize("cls", EVENTS.values(), ids=EVENTS.keys())


def types_of(cls: type[Event]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def filled(cls: type[Event], *, missing: bool = False) -> Event:
    """An event with a value for every field; with None where that is allowed, if ``missing``."""
    values: dict[str, Any] = {
        name: None if missing and type(None) in getattr(kind, "__args__", ()) else SAMPLES[kind]
        for name, kind in types_of(cls).items()
    }
    return cls(**values)


@EVERY_EVENT
@pytest.mark.parametrize("missing", [False, True])
def test_an_event_reads_back_through_json(cls: type[Event], missing: bool) -> None:
    """Written as a line of JSON and read again, an event is equal, floats to the bit, and missing is null."""
    event = filled(cls, missing=missing)
    line = json.dumps(event.to_json(), allow_nan=False)
    assert from_json(json.loads(line)) == event
    nulls = [name for name, value in json.loads(line).items() if value is None]
    assert nulls == ([n for n, kind in types_of(cls).items() if type(None) in getattr(kind, "__args__", ())] * missing)


@EVERY_EVENT
def test_anything_else_is_refused(cls: type[Event]) -> None:
    """A value of another type, by its field's name, alone or inside a list or mapping; a field too many or too few."""
    values = json.loads(json.dumps(filled(cls).to_json()))
    for name, kind in types_of(cls).items():
        wrong: list[Any] = [{1}, ["x", {}], {"ps0": []}] if name != "machine" else [None, 1, []]
        wrong += [1.5, True] if kind is int else [True, "1"] if kind in (float, float | None) else []
        for value in wrong if type(None) in getattr(kind, "__args__", ()) or name == "machine" else [*wrong, None]:
            with pytest.raises(TypeError, match=f"^{name}: "):
                from_json(values | {name: value})
        if kind is float:  # JSON of other writers drops the point of a whole number
            assert from_json(values | {name: 1}).to_json()[name] == 1
    for machine in ({"seconds": "x"}, {"overhead_seconds": {"save": None}}, {"exitcode": "9"}):
        with pytest.raises(TypeError, match=rf"^machine\.{next(iter(machine))}: "):
            from_json(values | {"machine": machine})
    assert from_json(values | {"machine": {"mood": [None, {}]}}).machine == {"mood": [None, {}]}, "its own affair"
    for refused in (values | {"colour": 1}, {name: value for name, value in values.items() if name != "step"}):
        with pytest.raises(TypeError):
            from_json(refused)


def test_the_details_of_a_fault_are_refused_by_their_names() -> None:
    """One that is missing or of another type; the faults of plug-ins need no plug-in."""
    values = {"fault": "bitflip", "details": {"path": "ps3/base-000001.bin", "bit": 77}}
    event = from_json({**json.loads(json.dumps(filled(EVENTS["fault"]).to_json())), **values})
    assert isinstance(event, Injected)
    assert from_json(event.to_json()) == event
    for name in event.details:
        for wrong in ({**event.details, name: []}, {key: v for key, v in event.details.items() if key != name}):
            with pytest.raises(TypeError, match=rf"^details(\.{name})?: "):
                from_json({**event.to_json(), "details": wrong})
    other = {**event.to_json(), "fault": "quota", "details": {"a": 1}}
    assert from_json(other).to_json() == other
