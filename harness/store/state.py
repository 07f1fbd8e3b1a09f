"""Plain data (``harness.core.resumable``) in content files: states of a resume point, the trainer's file of a save.

The header holds the data as JSON, in which ``{"#": k}`` stands for the k-th array. The payload is the arrays, one after
another. Nothing in a file is executed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.core.resumable import State
from harness.store.format import HashingWriter, bytes_of, dtype_name, reading, write_content
from harness.store.manifest import FileKind, FileRecord

_ARRAY = "#"  # the only key of a mapping that stands for an array
_NUMPY, _TORCH = "numpy", "torch"


def write_state(
    root: Path, rank: str, number: int, step: int, state: State, *, fsync: bool, kind: FileKind = "state"
) -> FileRecord:
    """Write ``root/rank/kind-number.bin``. Raises StoreError, also for a value that is not plain data."""
    arrays: list[tuple[str, Tensor]] = []
    plain = _to_json(state, arrays, f"state of {rank}")

    def write_arrays(writer: HashingWriter) -> None:
        for _, tensor in arrays:
            writer.write(bytes_of(tensor))

    return write_content(
        root,
        rank,
        kind,
        number,
        step=step,
        header={
            "arrays": [(of, dtype_name(tensor.dtype), tuple(tensor.shape)) for of, tensor in arrays],
            "state": plain,
        },
        payload=write_arrays,
        fsync=fsync,
    )


def read_state(root: Path, record: FileRecord) -> State:
    """The state that :func:`write_state` wrote; tensors are on the CPU. Raises StoreError that names the file."""
    with reading(root, record) as reader:
        arrays: list[Any] = []
        for of, dtype, shape in reader.header["arrays"]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            reader.read_into(bytes_of(tensor))
            arrays.append(tensor.numpy() if of == _NUMPY else tensor)
        reader.finish()
        return _from_json(reader.header["state"], arrays)


def _to_json(value: Any, arrays: list[tuple[str, Tensor]], where: str) -> Any:
    match value:
        case None | bool() | str():
            return value
        case Tensor():
            arrays.append((_TORCH, value.detach().cpu().contiguous()))
        case np.ndarray():
            arrays.append((_NUMPY, torch.from_numpy(np.ascontiguousarray(value))))
        case list():
            return [_to_json(each, arrays, f"{where}[{place}]") for place, each in enumerate(value)]
        case dict() if all(isinstance(key, str) for key in value) and value.keys() != {_ARRAY}:
            return {key: _to_json(each, arrays, f"{where}.{key}") for key, each in value.items()}
        case int() | float() if not isinstance(value, np.generic):
            return value
        case _:
            raise StoreError(f"{where}: expected plain data (harness.core.resumable), got {type(value).__name__}")
    return {_ARRAY: len(arrays) - 1}


def _from_json(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, list):
        return [_from_json(each, arrays) for each in value]
    if isinstance(value, Mapping):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _from_json(each, arrays) for key, each in value.items()}
    return value
