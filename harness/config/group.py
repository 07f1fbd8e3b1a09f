"""The group of a run: all runs of one experiment, whatever their strategies, seeds, engines, traces and profiles."""

import hashlib
import json
from collections.abc import Sequence

from harness.config.model import Config

_LEFT_OUT = {"name", "out", "wandb", "jobs", "store", "seed", "engine", "strategy", "trace", "profile"}


def group_of(configs: Sequence[Config]) -> str:
    """``name-hash`` of an experiment: the hash is of the settings that all its ``configs`` share.

    More seeds, strategies, traces or other values of a swept key leave it as it is. Another model, other data or fewer
    samples change it.
    """
    flats = [_flat(config) for config in configs]
    shared = {key: value for key, value in flats[0].items() if all(flat[key] == value for flat in flats)}
    text = json.dumps(shared, sort_keys=True)
    return f"{configs[0].name}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def _flat(config: Config) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, values in config.model_dump(mode="json", exclude=_LEFT_OUT).items():
        is_group = isinstance(values, dict)
        flat |= {f"{name}.{key}": value for key, value in values.items()} if is_group else {name: values}
    return flat
