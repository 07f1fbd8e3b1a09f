"""Checks of keys that are valid alone, but not together."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.optimizers import OPTIMIZERS
from harness.core.plans import CHIEF, all_ranks
from harness.core.strategies import Strategy
from harness.core.trackers import TRACKERS


def refuse_combinations(config: Config, strategy: Strategy) -> None:
    """Raise ConfigError for keys of ``config`` that exclude each other, or do not fit its ``strategy``."""
    for key, expected, got, why in (*_of_keys(config), *_of_strategy(config, strategy)):
        raise ConfigError(f"{key}: expected {expected}, got {got}; {why}")


_Mistake = tuple[str, str, object, str]
"""A key, what was expected for it, its value, and why."""


def _of_keys(config: Config) -> Iterator[_Mistake]:
    cluster, trace, trainer = config.cluster, config.trace, config.trainer
    if trace.clock == "wall" and config.save.mode == "async":
        why = "the hours of a save in the background are known once it is written, too late for failures by them"
        yield "trace.clock", "samples with save.mode=async", "wall", why
    if trainer.batch_size == 1 and getattr(config.model.filled(), "batch_norm", False):
        yield "trainer.batch_size", "at least 2 with model.batch_norm=true", 1, "a batch of one has no variance"
    if cluster.on_notice != "none" and trace.inject == "wall":
        why = "no rank is told of a kill at a second"
        yield "cluster.on_notice", "none with trace.inject=wall", cluster.on_notice, why
    if trace.interrupts and cluster.on_notice != "none":
        why = "a rank that is told acts between two steps, and may die during a save"
        yield "cluster.on_notice", "none with trace.interrupts=true", cluster.on_notice, why
    if trace.interrupts and cluster.spares:
        why = "when a spare is ready again that an interrupted recovery took is not known"
        yield "cluster.spares", "0 with trace.interrupts=true", cluster.spares, why
    if config.eval.movement and not config.eval.at_recoveries:
        why = "it is measured with the drop in AUC"
        yield "eval.movement", "false with eval.at_recoveries=false", "true", why
    progress_s = trainer.progress_timeout_s
    if progress_s is not None and progress_s <= (wait_s := 2 * cluster.rpc_timeout_s + cluster.join_timeout_s):
        expected = f"more than 2 · cluster.rpc_timeout_s + cluster.join_timeout_s ({wait_s:g})"
        why = "the trainer waits so long for a rank that does not answer"
        yield "trainer.progress_timeout_s", expected, f"{progress_s:g}", why
    if cluster.num_trainers > 1 and trainer.backend == "torch":
        why = "torch sums over a part of a batch with other bits than over the whole"
        yield "cluster.num_trainers", f"1 with backend torch on {trainer.device}", cluster.num_trainers, why
    if (cluster.num_nodes or 0) > config.num_ps:
        expected = f"at most {config.num_ps}, the number of shards"
        yield "cluster.num_nodes", expected, cluster.num_nodes, "a larger cluster.num_ps has more of them"
    shared = (
        ("cluster.spares", cluster.spares, 0, "a spare takes over one shard, and a process may serve several"),
        ("cluster.launcher", cluster.launcher, "fork", "all processes are on this machine"),
    )
    shrinking = (
        ("trace.clock", trace.clock, "samples", "the hour of a return would depend on the overhead"),
        ("trace.inject", trace.inject, "boundary", "nodes return between two steps"),
        ("trace.repair", trace.repair, "ignore", "no repair is waited for"),
        ("trace.trainers_die", trace.trainers_die, False, "survivors take over PS ranks alone"),
    )
    option = "cluster.on_loss=shrink" if cluster.on_loss == "shrink" else f"cluster.num_nodes={cluster.num_nodes}"
    checked = (*shared, *shrinking) if cluster.on_loss == "shrink" else shared if cluster.num_nodes else ()
    for key, value, expected, why in checked:
        if value != expected:
            yield key, f"{expected} with {option}".lower(), str(value).lower(), why
    ranks = all_ranks(config.num_ps, cluster.num_trainers)
    if unknown := sorted(cluster.place.keys() - {*ranks}):
        trainers = CHIEF if ranks[-1] == CHIEF else f"{CHIEF} to {ranks[-1]}"
        expected = f"ranks ps0 to {ranks[config.num_ps - 1]} and {trainers}"
        yield "cluster.place", expected, ", ".join(unknown), "a run has no others"


def _of_strategy(config: Config, strategy: Strategy) -> Iterator[_Mistake]:
    name, given = f"strategy {config.strategy.name}", config.trainer.optimizer
    if strategy.mirror and config.cache.mode == "stale":
        yield "cache.mode", f"none or lookahead for {name}", "stale", "the mirror needs exact rows"
    if strategy.mirror and config.cluster.on_notice == "save":
        why = "the rows saved on notice may be rows of the mirror, which restores them already"
        yield "cluster.on_notice", f"none or handover for {name}", "save", why
    prices, needs = config.profile.step_frac, _needs_hours(config)
    missing = [] if prices is None or needs is None else [part for part in strategy.step_parts if part not in prices]
    if missing:
        expected = f"a price of {', '.join(missing)} with {name} and {needs}"
        yield "profile.step_frac", expected, "none", "charges then depend on the hours that steps take"
    if strategy.tiers != ("shared",) and config.cluster.on_notice == "save":
        why = "the checkpoint that the rows would be added to may be lost with the rank"
        yield "cluster.on_notice", f"none or handover for {name} with several tiers", "save", why
    if "memory" in strategy.tiers and config.num_ps == 1:
        why = "the memory of the next rank is that of the rank itself"
        yield "strategy.memory_samples", "null with cluster.num_ps=1", "a number", why
    loses_process = getattr(config.strategy, "kill_loses", "node") == "process"
    if "disk" in strategy.tiers and config.cluster.on_loss == "shrink" and loses_process:
        expected = "node with cluster.on_loss=shrink and strategy.disk_samples"
        yield "strategy.kill_loses", expected, "process", "a node that goes takes its disk along"
    if strategy.groups is not None and config.cluster.on_loss == "shrink":
        why = "a process that serves two shards of a group would lose both"
        yield "cluster.on_loss", f"replace for {name}", "shrink", why
    growing = [name for name, optimizer in OPTIMIZERS.items() if optimizer.state_grows]
    if TRACKERS[strategy.tracker].needs_growth and given not in growing:
        why = "the strategy ranks rows by the growth of their state"
        yield "trainer.optimizer", f"{' or '.join(growing)} with {name}", given, why
    if not strategy.restores_exactly and OPTIMIZERS[given].num_states(1):
        got = f"{given}, whose state would share the values' scale"
        expected = f"sgd for saves with rounded values ({config.strategy.name})"
        yield "trainer.optimizer", expected, got, "set strategy.bits=32"


def _needs_hours(config: Config) -> str | None:
    """The key by which charges depend on the hour of the wall clock; None if they do not."""
    if config.trace.clock == "wall":
        return "trace.clock=wall"
    if config.save.mode == "async" and config.profile.snapshot_gbps is not None:
        return "save.mode=async"
    return "cluster.spares" if config.cluster.spares and config.profile.spare_o_res_h is not None else None


def fitting(
    configs: Iterable[Config], check: Callable[[Config], Sequence[str]], needed: str | None
) -> tuple[list[Config], list[str]]:
    """The configurations that ``check`` does not refuse; its remarks on them, and on the others why they are left out.

    Raises the ConfigError of ``check`` on strategy ``needed``, or on the first configuration if it refuses all.
    """
    fit: list[Config] = []
    remarks: dict[str, None] = {}
    refused: list[ConfigError] = []
    for config in configs:
        name = config.strategy.name
        try:
            remarks |= dict.fromkeys(check(config))
            fit.append(config)
        except ConfigError as error:
            refused.append(error)
            if name == needed:
                raise
            remarks[f"{name} is left out: {error}"] = None
    if not fit:
        raise refused[0]
    return fit, [*remarks]
