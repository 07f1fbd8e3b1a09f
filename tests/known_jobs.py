"""Jobs whose cost is known without training."""

from collections.abc import Iterable

from harness.config.derived import job_costs
from harness.config.model import Config
from harness.core.faults import PlannedFault
from harness.core.placement import Placement
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.planning import spread
from harness.planning.simulate import Job, save_sizes
from harness.run.spec import RunSpec
from harness.traces.schedule import schedule
from harness.traces.trace import parse_trace

CPR56 = job_costs(Config(), 3_200_000)


def job_of(config: Config) -> Job:
    """The simulator's job for a run of ``config``."""
    run_spec = RunSpec(config)
    return spread.job_of(config, run_spec.costs, run_spec.dataset.cardinalities)


def small_job(costs: Costs) -> Job:
    """Small tables, batches of 100: sizes matter to priority saves only."""
    placement = Placement("row", (1000,) * 26, costs.num_ps)
    return Job(
        costs=costs,
        batch_size=100,
        num_steps=costs.total_samples // 100,
        weights=rank_weights(placement),
        sizes=save_sizes(placement, width=16, dense_bytes=0, tracked=range(7), r=0.125),
    )


def planned_under(lines: Iterable[str], costs: Costs, batch_size: int) -> tuple[PlannedFault, ...]:
    """The planned faults of a trace with these lines, for a job with ``costs``."""
    return schedule(
        parse_trace(lines, "trace"),
        job_h=costs.job_h,
        total_samples=costs.total_samples,
        batch_size=batch_size,
        num_steps=costs.total_samples // batch_size,
        num_ps=costs.num_ps,
        seed=0,
    )
