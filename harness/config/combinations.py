"""Checks of keys that are valid alone, but not together."""

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.optimizers import OPTIMIZERS
from harness.core.plans import CHIEF, all_ranks
from harness.core.strategies import Strategy
from harness.core.trackers import TRACKERS


def refuse_combinations(config: Config, strategy: Strategy) -> None:
    """Raise ConfigError for keys of ``config`` that exclude each other, or do not fit its ``strategy``."""
    if strategy.mirror and config.cache.mode == "stale":
        raise ConfigError(
            f"cache.mode: expected none or lookahead for strategy {config.strategy.name}, got stale; "
            "the mirror needs exact rows"
        )
    if config.trace.clock == "wall" and config.save.mode == "async":
        raise ConfigError(
            "trace.clock: expected samples with save.mode=async, got wall; the hours of a save in the background "
            "are known when it is written, but failures on the wall clock would have to count them from its start"
        )
    if config.trainer.batch_size == 1 and getattr(config.model.filled(), "batch_norm", False):
        raise ConfigError(
            "trainer.batch_size: expected at least 2 with model.batch_norm=true, got 1; a batch of one has no variance"
        )
    if config.cluster.on_notice == "save" and strategy.mirror:
        raise ConfigError(
            f"cluster.on_notice: expected none or handover for strategy {config.strategy.name}, got save; the rows "
            "saved on notice may be rows of the mirror, which restores them already"
        )
    if config.cluster.on_notice != "none" and config.trace.inject == "wall":
        raise ConfigError(
            f"cluster.on_notice: expected none with trace.inject=wall, got {config.cluster.on_notice}; no rank is told "
            "of a kill at a second"
        )
    _refuse_unpriced_steps(config, strategy)
    cluster, progress_s = config.cluster, config.trainer.progress_timeout_s
    if progress_s is not None and progress_s <= (wait_s := 2 * cluster.rpc_timeout_s + cluster.join_timeout_s):
        raise ConfigError(
            f"trainer.progress_timeout_s: expected more than 2 · cluster.rpc_timeout_s + cluster.join_timeout_s "
            f"({wait_s:g}), got {progress_s:g}; the trainer waits so long for a rank that does not answer"
        )
    if cluster.num_trainers > 1 and config.trainer.backend == "torch":
        raise ConfigError(
            f"cluster.num_trainers: expected 1 with backend torch on {config.trainer.device}, got "
            f"{cluster.num_trainers}; torch sums over a part of a batch with other bits than over the whole"
        )
    if (cluster.num_nodes or 0) > config.num_ps:
        raise ConfigError(
            f"cluster.num_nodes: expected at most {config.num_ps}, the number of shards, got {cluster.num_nodes}; a "
            "larger cluster.num_ps has more of them"
        )
    if cluster.on_loss == "shrink":
        _refuse_with_shrink(config)
        if strategy.groups is not None:
            raise ConfigError(
                f"cluster.on_loss: expected replace for strategy {config.strategy.name}, got shrink; a process "
                "that serves two shards of a group would lose both"
            )
    ranks = all_ranks(config.num_ps, cluster.num_trainers)
    if unknown := sorted(config.cluster.place.keys() - {*ranks}):
        ps_rank, trainer = ranks[config.num_ps - 1], ranks[-1]
        trainers = trainer if trainer == CHIEF else f"{CHIEF} to {trainer}"
        raise ConfigError(f"cluster.place: expected ranks ps0 to {ps_rank} and {trainers}, got {', '.join(unknown)}")
    _refuse_with_optimizer(config, strategy)


def _refuse_with_optimizer(config: Config, strategy: Strategy) -> None:
    """Raise ConfigError if the strategy needs another optimizer of the tables."""
    growing = [name for name, optimizer in OPTIMIZERS.items() if optimizer.state_grows]
    if TRACKERS[strategy.tracker].needs_growth and config.trainer.optimizer not in growing:
        raise ConfigError(
            f"trainer.optimizer: expected {' or '.join(growing)} with strategy {config.strategy.name}, got "
            f"{config.trainer.optimizer}; the strategy ranks rows by the growth of their state"
        )
    if not strategy.restores_exactly and OPTIMIZERS[config.trainer.optimizer].num_states(1):
        raise ConfigError(
            f"trainer.optimizer: expected sgd for saves with rounded values ({config.strategy.name}), got "
            f"{config.trainer.optimizer}, whose state would share the values' scale; set strategy.bits=32"
        )


def _refuse_with_shrink(config: Config) -> None:
    """Raise ConfigError for keys that exclude ``cluster.on_loss: shrink``."""
    cluster, trace = config.cluster, config.trace
    for key, value, expected, why in (
        ("cluster.spares", cluster.spares, 0, "survivors take over the shards of dead ranks, and no spare does"),
        ("cluster.launcher", cluster.launcher, "fork", "all processes are on this machine"),
        ("trace.clock", trace.clock, "samples", "the hour of a return would depend on the overhead"),
        ("trace.inject", trace.inject, "boundary", "nodes return between two steps"),
        ("trace.repair", trace.repair, "ignore", "no repair is waited for"),
        ("trace.trainers_die", trace.trainers_die, False, "survivors take over PS ranks alone"),
    ):
        if value != expected:
            wanted, got = (str(each).lower() for each in (expected, value))
            raise ConfigError(f"{key}: expected {wanted} with cluster.on_loss=shrink, got {got}; {why}")


def _refuse_unpriced_steps(config: Config, strategy: Strategy) -> None:
    """Raise ConfigError if charges depend on the hour of the wall clock, and the length of a step is unknown."""
    prices, needs = config.profile.step_frac, _needs_hours(config)
    missing = [] if prices is None or needs is None else [part for part in strategy.step_parts if part not in prices]
    if missing:
        raise ConfigError(
            f"profile.step_frac: expected a price of {', '.join(missing)} with strategy {config.strategy.name} and "
            f"{needs}, got none; charges then depend on the hours that steps take"
        )


def _needs_hours(config: Config) -> str | None:
    """The key by which charges depend on the hour of the wall clock; None if they do not."""
    if config.trace.clock == "wall":
        return "trace.clock=wall"
    if config.save.mode == "async" and config.profile.snapshot_gbps is not None:
        return "save.mode=async"
    return "cluster.spares" if config.cluster.spares and config.profile.spare_o_res_h is not None else None
