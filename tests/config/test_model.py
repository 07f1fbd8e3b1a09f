"""Laws of the configuration of a run."""

import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from harness.config.model import Config
from harness.config.profiles import PROFILES, Profile
from harness.core.strategies import STRATEGIES


def models(model: BaseModel) -> dict[str, BaseModel]:
    """``model`` and every model in it, by dotted key."""
    found = {"": model}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found |= {f"{name}.{key}".strip("."): inner for key, inner in models(value).items()}
    return found


def test_a_group_is_frozen_has_defaults_and_refuses_other_keys() -> None:
    """Law: no part of a config can be changed or swallows a key; an empty config is one; constants have a unit."""
    for group, model in models(Config()).items():
        fields = type(model).model_fields
        assert model.model_config.get("frozen"), group
        values: Any = {"no_such_key": 1}
        for part in reversed(group.split(".") if group else []):
            values = {part: values}
        with pytest.raises(ValidationError, match="no_such_key"):
            Config.model_validate(values)
        if isinstance(model, Profile):
            assert {name for name, field in fields.items() if field.description} == fields.keys() - {"name"}
        else:
            assert not [name for name, field in fields.items() if field.is_required()], group


def test_a_profile_is_named_or_changes_only_what_it_names() -> None:
    """A name stands for the constants, and for the number of PS ranks and the PLS target unless they are given.

    ``base`` gives the other constants, and a changed profile is marked by a star unless it is named.
    """
    given = {"cluster": {"num_ps": 3}, "strategy": {"name": "cpr_vanilla", "pls_target": 0.02}, "trace": {"seed": 9}}
    for name, profile in PROFILES.items():
        config = Config.model_validate({"profile": name})
        assert (config.profile, config.profile.name, config.trace_seed) == (profile, name, config.seed)
        assert (config.num_ps, config.pls_target) == (profile.num_ps, profile.pls_target)
        config = Config.model_validate({"profile": name, **given})
        assert (config.num_ps, config.pls_target, config.trace_seed) == (3, 0.02, 9)
    changed = Config.model_validate({"profile": {"base": "poster50", "job_h": 100}}).profile
    assert changed == PROFILES["poster50"].model_copy(update={"job_h": 100.0, "name": "poster50*"})
    named = Config.model_validate({"profile": {"base": "poster50", "job_h": 100, "name": "mine"}}).profile
    assert named.name == "mine"
    assert Config.model_validate({"profile": {"base": "poster50"}}).profile == PROFILES["poster50"]
    assert Config().profile == PROFILES["cpr56"]
    assert Config.model_validate({"profile": {"job_h": 10}}).profile.mtbf_h == PROFILES["cpr56"].mtbf_h


def test_from_trace_reads_back() -> None:
    """A dump has all constants, of which from_trace sets two: it is no mistake."""
    config = Config.model_validate({"profile": {"base": "busy", "from_trace": True, "job_h": 20}})
    assert Config.model_validate(config.model_dump()) == config
    assert (config.num_ps, config.profile.job_h, config.profile.from_trace) == (4, 20.0, True)


def test_only_the_options_of_its_strategy_are_in_a_config() -> None:
    """What names and hashes a run holds the options of its strategy and no others."""
    dumps = {name: Config.model_validate({"strategy": {"name": name}}).model_dump()["strategy"] for name in STRATEGIES}
    assert dumps["none"] == {"name": "none"}
    assert dumps["full"] == {"name": "full", "interval_samples": None}
    assert dumps["cpr_ssu"].keys() - dumps["cpr_mfu"].keys() == {"period", "eviction"}
    assert pickle.loads(pickle.dumps(Config())) == Config()
