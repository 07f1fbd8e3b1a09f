"""The message of a training step between trainer and PS rank: one tensor there, one tensor back, not pickled.

A Python function called by torch's rpc has its arguments and its result pickled, and each of their tensors sent by
itself; with an :class:`Exchange` of 580 rows to each of two ranks, and back, that takes 1.11 ms and 1.5 ms of
processor. A TorchScript function with one tensor takes 0.70 and 1.0 (LOG, 2026-11-21), and takes the interpreter lock
only to serve. The messages of every step are sent that way: gradients, lookups, or both. All others are pickled.

A message is an array of words, which are int64: first the header :data:`HEADER`, then rows (N) and lookups (P), a word
each. Counts (N, int32), gradients (N, D, float32) and whether sampled (N, bool) follow without a gap, padded to a whole
word. A push for a replica is a second message of this form behind the first.
"""

import dataclasses
import pickle
import traceback
import warnings
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.cluster.protocol import Exchange, Failure, Push, Reply, Request, WriteBack
from harness.core.errors import RankFailed
from harness.core.plans import ps_rank

HEADER = np.dtype(
    [
        ("num_rows", np.int64),  # -1: no gradients
        ("num_lookups", np.int64),  # -1: no lookup
        ("dim", np.int64),
        ("step", np.int64),
        ("learning_rate", np.float64),
    ]
)
_WORD = 8
_HEADER_WORDS = HEADER.itemsize // _WORD


def is_plain(request: object) -> TypeGuard[Exchange]:
    """Whether :func:`words_of` can encode ``request`` as a single tensor."""
    if not isinstance(request, Exchange):
        return False
    return isinstance(request.push, Push | None) and isinstance(request.replica, Push | None)


def words_of(exchange: Exchange) -> Tensor:
    """Encode an exchange for which :func:`is_plain` holds as int64 words (W,), in new memory."""
    if exchange.replica is not None:
        own = dataclasses.replace(exchange, replica=None)
        return torch.cat([words_of(own), words_of(Exchange(push=exchange.replica))])
    push, pull_N = exchange.push, exchange.pull_N
    assert isinstance(push, Push | None)
    num_rows, dim = (0, 0) if push is None else push.grads_ND.shape
    num_lookups = 0 if pull_N is None else len(pull_N)
    words_W = np.empty(_num_words(num_rows, num_lookups, dim), np.int64)
    what = (-1 if push is None else num_rows, -1 if pull_N is None else num_lookups, dim)
    how = (0, 0.0) if push is None else (push.step, push.learning_rate)
    words_W[:_HEADER_WORDS].view(HEADER)[0] = (*what, *how)
    rows_N, lookups_P, counts_N, grads_ND, sampled_N = _views(words_W, num_rows, num_lookups, dim)
    if pull_N is not None:
        lookups_P[:] = pull_N.numpy()
    if push is not None:
        rows_N[:] = push.rows_N.numpy()
        counts_N[:] = push.counts_N.numpy()
        grads_ND[:] = push.grads_ND.numpy()
        sampled_N[:] = push.sampled_N.numpy()
    return torch.from_numpy(words_W)


def exchange_of(words_W: Tensor) -> Exchange:
    """Decode an exchange that :func:`words_of` encoded; its tensors share memory with ``words_W``."""
    words = words_W.numpy()
    has_rows, has_lookups, dim, step, learning_rate = words[:_HEADER_WORDS].view(HEADER)[0].tolist()
    num_rows, num_lookups = max(has_rows, 0), max(has_lookups, 0)
    num_own = _num_words(num_rows, num_lookups, dim)
    rows_N, lookups_P, counts_N, grads_ND, sampled_N = _views(words, num_rows, num_lookups, dim)
    push = None
    if has_rows >= 0:
        push = Push(
            step=step,
            rows_N=torch.from_numpy(rows_N),
            grads_ND=torch.from_numpy(grads_ND),
            counts_N=torch.from_numpy(counts_N),
            sampled_N=torch.from_numpy(sampled_N),
            learning_rate=learning_rate,
        )
    return Exchange(
        push=push,
        pull_N=None if has_lookups < 0 else torch.from_numpy(lookups_P),
        replica=exchange_of(words_W[num_own:]).push if num_own < len(words) else None,
    )


def _views(words: NDArray[np.int64], num_rows: int, num_lookups: int, dim: int) -> tuple[NDArray[Any], ...]:
    """The parts of a message after its header: rows, lookups, counts, gradients, whether sampled."""
    first = _HEADER_WORDS + num_rows + num_lookups
    halves, last = words[first:].view(np.int32), num_rows * (1 + dim)
    return (
        words[_HEADER_WORDS : _HEADER_WORDS + num_rows],
        words[_HEADER_WORDS + num_rows : first],
        halves[:num_rows],
        halves[num_rows:last].view(np.float32).reshape(num_rows, dim),
        halves[last:].view(np.bool_)[:num_rows],
    )


def _num_words(num_rows: int, num_lookups: int, dim: int) -> int:
    """Words of a message without a push for a replica."""
    return _HEADER_WORDS + num_rows + num_lookups + -(-num_rows * (4 + 4 * dim + 1) // _WORD)


def reply_tensor(reply: Reply) -> Tensor:
    """The reply as one tensor: rows (N, X) unchanged; None or a :class:`Failure` as pickled bytes, uint8 (K,)."""
    if isinstance(reply, Tensor):
        return reply
    return torch.from_numpy(np.frombuffer(b"" if reply is None else pickle.dumps(reply), np.uint8).copy())


def reply_of(value: Any) -> Reply:
    """The reply that :func:`reply_tensor` encoded: a matrix is rows; of bytes (K,), none are None, others a pickle.

    Any other value is a reply that torch has unpickled.
    """
    if not isinstance(value, Tensor) or value.dim() > 1:
        return value
    return pickle.loads(value.numpy().tobytes()) if len(value) else None


_Sent = TypeVar("_Sent", bound=Request | Push | WriteBack)


def without_slices(message: _Sent) -> _Sent:
    """``message``, to be pickled, with a copy of each tensor that is a slice of a larger one.

    A rank's rows are a slice of the rows of all ranks. For a slice of more than half of a tensor, torch sends the whole
    tensor (``cloneSparseTensors`` of its rpc). With two ranks, one of them would always get the other's rows, too.
    """
    own = {name: _with_own_memory(value) for name, value in vars(message).items()}
    copied = {name: value for name, value in own.items() if value is not getattr(message, name)}
    return dataclasses.replace(message, **copied) if copied else message


def _with_own_memory(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
    return without_slices(value) if isinstance(value, Push | WriteBack) else value


_process: Any = None


def serve_by(process: Any) -> None:
    """Set the object, a ``PsProcess``, whose methods :func:`on_rank` calls in this process."""
    global _process  # noqa: PLW0603 - rpc names a function, which must find its rank by itself
    _process = process


def on_rank(method: str, *args: Any) -> Any:
    """Call a method of the object given to :func:`serve_by`; the remote side of a pickled request."""
    return getattr(_process, method)(*args)


def _exchange(words_W: Tensor, index: int) -> Tensor:
    try:
        return reply_tensor(on_rank("serve", ps_rank(index), exchange_of(words_W)))
    except Exception:  # noqa: BLE001 - the caller takes any exception of this function for the rank's death
        return reply_tensor(Failure(RankFailed(f"a PS rank failed at a message:\n{traceback.format_exc()}")))


_LIBRARY = torch.library.Library("harness", "DEF")
_LIBRARY.define("exchange(Tensor words, int index) -> Tensor")
_LIBRARY.impl("exchange", _exchange, "CPU")


def serve_words(words: Tensor, index: int) -> Tensor:
    """Serve, where it is called, a request of :func:`words_of` to PS rank ``index``; see :func:`reply_tensor`."""
    return torch.ops.harness.exchange(words, index)


with warnings.catch_warnings():
    # There is no other kind of function that torch's rpc calls without pickling, and the version of torch is pinned.
    warnings.simplefilter("ignore", DeprecationWarning)
    serve_words = torch.jit.script(serve_words)

# The first two calls prepare it: 30 to 60 ms, which ranks do not take that are forked from this process.
for _ in range(2):
    serve_words(words_of(Exchange()), 0)  # a failure, as nothing serves yet
