"""The hosts of a configuration's ranks, by index."""

from harness.config.model import Config
from harness.core.hosts import HostMap


def host_map(config: Config) -> HostMap:
    """Which host each rank is on when a run begins; without ``cluster.hosts`` no rank has one."""
    cluster = config.cluster
    place = {rank: cluster.hosts.index(host) for rank, host in cluster.place.items()}
    return HostMap(config.num_ps, len(cluster.hosts), place)
