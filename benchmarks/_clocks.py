"""What a step spends its time on: clocks around the real functions of the harness, put there from outside.

A clock counts what passes in its function and not in another clocked one, so parts add up. Only the thread that set the
clocks is watched: what others do at the same time costs the step nothing, unless it waits for them.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed import rpc as torch_rpc

from benchmarks._gated import Gate, Parts
from harness.client.lookahead import LookaheadClient
from harness.cluster import rpc
from harness.cluster.local import LocalCluster
from harness.cluster.protocol import Cluster, Digest, Reply, Request, SupervisorClient
from harness.cluster.rpc import RpcCluster
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.lookup import coalesce_vectors, plan_batch
from harness.core.shard import Shard
from harness.data.dataset import Dataset
from harness.model import torch_backend
from harness.model.dlrm import BACKENDS, DenseNetwork
from harness.model.sizes import NUM_INTEGERS
from harness.model.torch_backend import Mlp
from harness.run import assemble, job

_real_train = job.train
_real_ps_main = rpc.ps_main

PARTS = (
    *("batch read", "planning", "lookup", "bottom", "interaction", "top", "loss", "top backward"),
    *("interaction backward", "bottom backward", "coalesce", "apply", "dense update"),
    *("messages", "serving", "cache", "waiting"),
)
"""In the order of a step. The compiled backend makes the bottom's backward as part of the ``dense update``.

``messages``: building and sending requests, taking replies apart. ``serving``: what a PS rank's server does besides
lookup and apply. ``cache``: the lookahead cache, whose planning runs in the background. ``waiting``: for ranks, beyond
what the busiest of them worked: transport, pickling at the other end, interpreter locks, being scheduled.
"""

Part = str | Callable[[Any], str]
"""A name, or how to tell it from the object that the method is called on."""


def _which(mlp: Mlp) -> str:
    return "bottom" if len(mlp.layers_JO[0]) == NUM_INTEGERS + 1 else "top"


_METHODS: tuple[tuple[type, str, Part], ...] = (
    (Dataset, "train_batch", "batch read"),
    (DenseNetwork, "train", "loss"),
    (Mlp, "forward", _which),
    (Mlp, "backward", lambda mlp: f"{_which(mlp)} backward"),
    (Mlp, "step", "dense update"),
    (DenseNetwork, "step", "dense update"),
    (LocalCluster, "start", "messages"),
    (LocalCluster, "finish", "messages"),
    (RpcCluster, "start", "messages"),
    (RpcCluster, "finish", "messages"),
    (LookaheadClient, "pull", "cache"),
    (LookaheadClient, "push", "cache"),
    (torch._C.Future, "wait", "waiting"),
)
_RANK_METHODS: tuple[tuple[type, str, Part], ...] = (
    (Shard, "gather", "lookup"),
    (Shard, "apply", "apply"),
    (RankServer, "handle", "serving"),
)
_FUNCTIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (plan_batch, "planning"),
    (torch_backend.interact, "interaction"),
    (torch_backend.interact_backward, "interaction backward"),
    (coalesce_vectors, "coalesce"),
    (torch_rpc.rpc_async, "messages"),
)


class Clocks:
    """Seconds by part, of the thread that made them unless ``any_thread``: then of all that never run at once."""

    def __init__(self, *, any_thread: bool = False) -> None:
        self._thread = None if any_thread else threading.get_ident()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since_s = 0.0

    def take(self) -> Parts:
        """What was counted since the last time."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    def on(self, function: Callable[..., Any], part: Part) -> Callable[..., Any]:
        """``function`` with a clock around it."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._thread not in (None, threading.get_ident()):
                return function(*args, **kwargs)
            self._turn_to(part if isinstance(part, str) else part(args[0]))
            try:
                return function(*args, **kwargs)
            finally:
                self._turn_back()

        return timed

    def divided(self, method: Callable[..., Any], parts: Sequence[str]) -> Callable[..., Any]:
        """``method`` of a ``TeamPass``, whose time goes to the parts that it measures itself."""

        @wraps(method)
        def timed(team: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(team, *args, **kwargs)
            if self._stack and self._thread in (None, threading.get_ident()):
                for part, seconds in team.seconds(parts).items():
                    self._seconds[part] += seconds
                    self._seconds[self._stack[-1]] -= seconds
            return result

        return timed

    def _turn_to(self, part: str) -> None:
        now_s = time.perf_counter()
        if self._stack:
            self._seconds[self._stack[-1]] += now_s - self._since_s
        self._stack.append(part)
        self._since_s = now_s

    def _turn_back(self) -> None:
        now_s = time.perf_counter()
        self._seconds[self._stack.pop()] += now_s - self._since_s
        self._since_s = now_s

    def put_on_methods(self, methods: Iterable[tuple[type, str, Part]]) -> None:
        """From now on, in this process."""
        for owner, name, part in methods:
            setattr(owner, name, self.on(getattr(owner, name), part))

    def put_on_functions(self, functions: Iterable[tuple[Callable[..., Any], str]]) -> None:
        """From now on, in this process, under whatever names modules of the harness and torch's rpc know them."""
        homes = [module for name, module in sys.modules.items() if name.startswith("harness.")] + [torch_rpc]
        for function, part in functions:
            clocked = self.on(function, part)
            for module in homes:
                for name, value in list(vars(module).items()):
                    if value is function:
                        setattr(module, name, clocked)


def clocked_trainer(config: Config, folder: Path, pipe: Connection) -> None:
    """Body of a worker: a run as run.py makes one, with a gate before the dense network and clocks all over."""
    parts = assemble.Parts(train=partial(_clocked_train, pipe), ps_main=_clocked_ps_main)
    assemble.run(config, folder, parts=parts)


def _clocked_train(  # noqa: PLR0917 - the first is bound above, the rest is assemble's call
    pipe: Connection,
    config: Config,
    checkpoints: Path,
    kill_steps: frozenset[int],
    cluster: Cluster,
    supervisor: SupervisorClient,
) -> None:
    clocks = Clocks()
    clocks.put_on_methods(_METHODS)
    clocks.put_on_functions(_FUNCTIONS)
    if "compiled" in BACKENDS:
        from harness.kernels import network  # noqa: PLC0415 - without MKL it cannot be imported
        from harness.model.compiled_backend import TeamPass  # noqa: PLC0415 - as above

        for name, parts in (("train", network.PARTS), ("update", network.PARTS[:1])):
            setattr(TeamPass, name, clocks.divided(getattr(TeamPass, name), parts))
    is_remote = isinstance(cluster, RpcCluster)
    if not is_remote:
        clocks.put_on_methods(_RANK_METHODS)

    def profile() -> Parts:
        mine = clocks.take()
        ranks = cluster.call({rank: Digest() for rank in cluster.ranks}) if is_remote else {}
        clocks.take()  # what asking took
        return _together(mine, list(ranks.values()))

    gate = Gate(pipe, profile)
    clocked = DenseNetwork.train

    def train(self: DenseNetwork, *args: Any, **kwargs: Any) -> Any:
        gate.step()
        return clocked(self, *args, **kwargs)

    with mock.patch.object(DenseNetwork, "train", train):
        _real_train(config, checkpoints, kill_steps, cluster, supervisor)


def _clocked_ps_main(rank_context: rpc.RankContext, spec: RankSpec) -> None:
    """Main function of a PS rank; it answers a Digest with what its clocks say."""
    clocks = Clocks(any_thread=True)  # RPC threads serve one at a time
    clocks.put_on_methods(_RANK_METHODS)
    handle = RankServer.handle

    def serve(server: RankServer, request: Request) -> Reply:
        return clocks.take() if isinstance(request, Digest) else handle(server, request)

    with mock.patch.object(RankServer, "handle", serve):
        _real_ps_main(rank_context, spec)


def _together(trainer: Parts, ranks: list[Parts]) -> Parts:
    """What the busiest rank did is part of what the trainer waited for."""
    busiest = max(ranks, key=lambda parts: sum(parts.values()), default={})
    waited = min(sum(busiest.values()), trainer.get("waiting", 0.0))
    share = waited / sum(busiest.values()) if busiest else 0.0
    parts = {part: trainer.get(part, 0.0) + share * busiest.get(part, 0.0) for part in PARTS}
    parts["waiting"] -= waited
    return parts
