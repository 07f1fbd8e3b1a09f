"""Events in the form that they had when the golden records were made.

A change of an event's form is legal only if it can be written down here. The digests of ``records.json`` are those of
the first form, and stay.
"""

from typing import Any

from harness.config.model import Config
from harness.run.spec import RunSpec, hash_of

FIRST_SOURCES = {"rollback": "checkpoint", "mirror": "checkpoint"}
"""What the first form said instead of these kinds of recovery."""


def hash_as_before(config: Config) -> str:
    """The hash of a config with the keys that there were: a key that is gone at its default, and no new one."""
    identity = RunSpec(config).identity
    assert identity["trace"].pop("trainers_die") is identity["profile"].pop("trainer_load") is False
    assert (identity["eval"].pop("at_recoveries"), identity["eval"].pop("recovery_samples")) == (True, None)
    if config.strategy.name == "cpr_mirror":
        identity["strategy"]["trainer_dies"] = False
    return hash_of(identity)


def as_before(event: dict[str, Any], config_hash: str) -> dict[str, Any]:
    """``event`` (``Event.to_json``) without its machine part, in the first form. ``config_hash``: of that form."""
    values = {key: value for key, value in event.items() if key != "machine"}
    match values["event"]:
        case "fault":
            return _fault_as_before(values)
        case "started":
            del values["recoveries"]
            values["config_hash"] = config_hash
        case "eval":
            for name in ("standard_error", "normalised_entropy", "calibration", "group_aucs"):
                del values[name]
        case "recover":
            assert (values.pop("dense"), values.pop("lost_dense_samples")) == ("kept", 0)
            kinds = values.pop("kinds")
            sources = {FIRST_SOURCES.get(kind, kind) for kind in kinds.values()}
            values["replicated"] = [rank for rank, kind in kinds.items() if kind == "replica"]
            (values["source"],) = sources if len(sources) == 1 else sources - {"replica"}
    return values


def _fault_as_before(values: dict[str, Any]) -> dict[str, Any]:
    """Faults had kinds of events: of ranks that are lost, of writes that fail, and of bits."""
    place = {name: values[name] for name in ("step", "samples", "rank", "hour", "line")}
    if values["loss"]:
        of_losses = {name: values[name] for name in ("repair_h", "phase", "fault", "lost_host")}
        return {"event": "kill", **place, **of_losses}
    if values["fault"] == "bitflip":
        return {"event": "bitflip", **place, **values["details"]}
    return {"event": "write_failed", **place, "fault": values["fault"]}
