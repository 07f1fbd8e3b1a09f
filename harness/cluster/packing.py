"""What a pickled request takes along: its row tensors, and not the tensors that they are slices of."""

import dataclasses
from typing import TypeVar

from torch import Tensor

from harness.cluster.protocol import Exchange, Push, Request, WriteBack


def packed(request: Request) -> Request:
    """``request`` with its row tensors copied to contiguous memory of their own.

    A rank's rows are a slice of those of all ranks. Of a slice that is more than half of a tensor torch sends the whole
    tensor (``cloneSparseTensors`` of its rpc), so that with two ranks one of them always got the other's rows, too.
    """
    if not isinstance(request, Exchange):
        return request
    pushes = {"push": request.push, "replica": request.replica}
    owned = {name: _with_own_memory(push) for name, push in pushes.items() if push is not None}
    request = _with_own_memory(request)
    if all(push is pushes[name] for name, push in owned.items()):
        return request
    return dataclasses.replace(request, **owned)


_Sent = TypeVar("_Sent", bound=Exchange | Push | WriteBack)


def _with_own_memory(message: _Sent) -> _Sent:
    slices = {
        name: value.clone()
        for name, value in vars(message).items()
        if isinstance(value, Tensor) and value.untyped_storage().nbytes() != value.nbytes
    }
    return dataclasses.replace(message, **slices) if slices else message
