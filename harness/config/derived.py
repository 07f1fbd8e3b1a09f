"""Values derived from a configuration: cost constants of a run, hosts of its ranks, the group of its experiment."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness.config.keys import IRRELEVANT
from harness.config.model import Config
from harness.core.plans import Costs, HostMap

_NOT_OF_GROUP = IRRELEVANT | dict.fromkeys(("seed", "strategy", "trace", "profile"), True)


def job_costs(config: Config, total_samples: int) -> Costs:
    """The cost constants of a run of ``total_samples`` training samples, from the profile of ``config``.

    A profile with ``from_trace`` must have been replaced by ``harness.traces.job_trace.with_profile_of_trace``.
    """
    profile = config.profile
    assert not profile.from_trace, "the trace's constants are not in the profile yet"
    shared = {field.name: value for field in fields(Costs) if (value := getattr(profile, field.name, None)) is not None}
    of_run = {
        "num_ps": config.num_ps,
        "pls_target": config.pls_target,
        "total_samples": total_samples,
        "num_spares": config.cluster.spares,
        "batch_size": config.trainer.batch_size,
    }
    if config.save.mode == "async" and profile.network_gbps is not None and profile.snapshot_gbps is not None:
        of_run["snapshot_frac"] = profile.network_gbps / profile.snapshot_gbps
    if config.cluster.on_loss == "shrink":
        of_run["num_trainers"] = None  # node-hours are not known of a group whose size changes
        if profile.shrink_o_res_h is not None:
            of_run["o_res_h"] = profile.shrink_o_res_h  # no node is waited for
    return Costs(**{**shared, **of_run})


def host_map(config: Config) -> HostMap:
    """The host of each rank when a run begins, an index into ``cluster.hosts``; no rank has one if that is empty."""
    cluster = config.cluster
    place = {rank: cluster.hosts.index(host) for rank, host in cluster.place.items()}
    return HostMap(config.num_ps, len(cluster.hosts), place, cluster.num_trainers)


def group_of(configs: Sequence[Mapping[str, Any]]) -> str:
    """The wandb group ``NAME-HASH`` of an experiment; the hash is of the settings that all its ``configs`` share.

    ``configs``: resolved ones, as nested values: of recorded runs too, whose plugins are not loaded.

    The hash stays the same if seeds, strategies, traces or values of a swept key are added. It changes with the model,
    the data and the number of samples.
    """
    flats = [_flat(config) for config in configs]
    shared = {
        key: value for key, value in flats[0].items() if all(key in flat and flat[key] == value for flat in flats)
    }
    text = json.dumps(shared, sort_keys=True)
    return f"{configs[0]['name']}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def _flat(config: Mapping[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, values in config.items():
        left_out = _NOT_OF_GROUP.get(name, {})
        if left_out is True:
            continue
        is_group = isinstance(values, dict)
        own = {f"{name}.{key}": value for key, value in values.items() if key not in left_out} if is_group else None
        flat |= {name: values} if own is None else own
    return flat
