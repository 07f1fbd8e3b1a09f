"""The planned faults of a job that goes on with fewer nodes (``cluster.on_loss: shrink``)."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from harness.core.faults import AWAY, RETURN, PlannedFault, Strike
from harness.core.plans import NodeMap, Rank


def shrunk(
    planned: Iterable[PlannedFault], num_ps: int, num_steps: int, step_at: Callable[[float], int]
) -> tuple[PlannedFault, ...]:
    """``planned`` of a job in which survivors take over the shards of dead nodes; at boundaries, in order.

    A PS rank in ``planned`` is a node: with it die all shards that it hosts (:class:`NodeMap`). A node with a repair
    time returns at the first boundary at or after it, and after the death, before what strikes there. Returns are
    planned faults that lose no rank. So are the deaths of nodes that are away, which strike nobody.

    ``step_at``: the boundary at an hour of training; ``num_steps`` after the job's end.
    """
    nodes, found = NodeMap(num_ps), list[PlannedFault]()
    returns: defaultdict[int, dict[Rank, Strike]] = defaultdict(dict)

    def give_back(until: int) -> None:
        for step in sorted(step for step in returns if step <= until):
            found.append(
                PlannedFault(step=step, strikes={node: returns[step][node] for node in nodes if node in returns[step]})
            )
            for node in returns.pop(step):
                nodes.give_back(node)

    for each in planned:
        if each.fault.loss is None:
            found.append(each)
            continue
        give_back(each.step)
        struck = {rank: strike for rank, strike in each.strikes.items() if nodes[rank] == rank}
        away = {rank: strike._replace(fault=AWAY) for rank, strike in each.strikes.items() if rank not in struck}
        if away:
            found.append(replace(each, strikes=away, repair_h=None))
        if struck:
            found.append(replace(each, strikes={rank: struck[node] for rank, node in nodes.items() if node in struck}))
            nodes.lose(struck)
        for node in struck.keys() & nodes.hosted.keys():
            strike = struck[node]
            if strike.repair_h is not None:
                hour = strike.hour + strike.repair_h
                step = max(step_at(hour), each.step + 1)
                returns[step][node] = strike._replace(hour=hour, fault=RETURN, repair_h=None)
    give_back(num_steps - 1)
    at_boundaries = [each for each in found if each.phase == "boundary"]
    others = [each for each in found if each.phase != "boundary"]
    return (*sorted(at_boundaries, key=lambda each: (each.step, each.fault.loss is not None)), *others)
