"""Jobs whose cost is known without training."""

from harness.config.model import Config
from harness.core.plans import Costs
from harness.core.pls import rank_weights
from harness.planning.simulate import Job, save_sizes
from harness.run.spec import RunSpec

CPR56 = Costs(
    job_h=56,
    mtbf_h=28,
    o_save_h=5.6 / 60,
    o_load_h=2.5 / 60,
    o_res_h=3 / 60,
    num_ps=8,
    ranks_per_failure=1,
    pls_target=0.1,
    total_samples=3_200_000,
)
"""Profile `cpr56`."""


def job_of(config: Config, *, r: float = 1.0) -> Job:
    """The simulator's job for a run of ``config``, whose priority saves write the fraction ``r``."""
    run_spec = RunSpec(config)
    return Job(
        costs=run_spec.costs,
        batch_size=config.trainer.batch_size,
        num_steps=run_spec.num_steps,
        weights=rank_weights(run_spec.placement),
        sizes=save_sizes(
            run_spec.placement,
            width=run_spec.footprint.row_width,
            dense_bytes=run_spec.footprint.dense_bytes,
            tracked=run_spec.tracked,
            r=r,
            share=run_spec.strategy.mirror.share if run_spec.strategy.mirror else 0.0,
        ),
        pls_since=config.metrics.pls_since,
        clock=config.trace.clock,
    )
