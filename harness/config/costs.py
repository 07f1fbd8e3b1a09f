"""The emulated cluster's constants, resolved for one run."""

from harness.config.model import Config
from harness.config.profiles import Profile
from harness.core.plans import Costs


def job_costs(config: Config, total_samples: int) -> Costs:
    """The cost constants of a run of ``total_samples`` training samples, from the profile of ``config``.

    The profile is resolved: ``harness.traces.job_trace.with_profile_of_trace`` has replaced ``from_trace``.
    """
    profile = config.emulated
    assert not profile.from_trace, "the trace's constants are not in the profile yet"
    return Costs(
        job_h=profile.job_h,
        mtbf_h=profile.mtbf_h,
        o_save_h=profile.o_save_h,
        o_load_h=profile.o_load_h,
        o_res_h=profile.o_res_h,
        num_ps=config.num_ps,
        ranks_per_failure=profile.ranks_per_failure,
        pls_target=config.pls_target,
        total_samples=total_samples,
        load=profile.load,
        o_save_fixed_h=profile.o_save_fixed_h,
        spare_o_res_h=profile.spare_o_res_h,
        detect_h=profile.detect_h,
        snapshot_frac=_snapshot_frac(profile) if config.save.mode == "async" else None,
        num_trainers=profile.num_trainers,
        num_spares=config.cluster.spares,
    )


def _snapshot_frac(profile: Profile) -> float | None:
    """Snapshot time of a save as a fraction of its write time: the network's bandwidth by the snapshot's."""
    if profile.network_gbps is None or profile.snapshot_gbps is None:
        return None
    return profile.network_gbps / profile.snapshot_gbps
