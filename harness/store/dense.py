"""The trainer's checkpoint file: named tensors of the dense network, and the position of the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.store.format import (
    ContentReader,
    HashingWriter,
    bytes_of,
    dtype_name,
    dtype_of,
    write_content,
)
from harness.store.records import FileRecord, content_name


def write_dense(
    root: Path,
    rank: str,
    sequence: int,
    step: int,
    *,
    tensors: Mapping[str, Tensor],
    extra: Mapping[str, Any],
    fsync: bool = True,
) -> FileRecord:
    """Write named tensors, of any shape, dtype and device, and ``extra``, which JSON must represent exactly."""
    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write_tensors(writer: HashingWriter) -> None:
        for tensor in here.values():
            writer.write(bytes_of(tensor))

    index = [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in here.items()]
    return write_content(
        root,
        rank,
        "dense",
        sequence,
        step=step,
        header={"tensors": index, "extra": dict(extra)},
        payload=write_tensors,
        payload_bytes=sum(tensor.nbytes for tensor in here.values()),
        num_rows=0,
        fsync=fsync,
    )


def discard_dense(root: Path, rank: str, sequence: int) -> None:
    """Remove the file that ``write_dense`` wrote for the save ``sequence``, which was never committed."""
    (root / rank / content_name("dense", sequence)).unlink(missing_ok=True)


def read_dense(root: Path, record: FileRecord) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU and in the order written, and ``extra``. Raises ``StoreError`` naming the file."""
    if record.kind != "dense":
        raise StoreError(f"{root / record.path}: expected the trainer's state, got {record.kind} rows")
    with ContentReader(root, record) as reader:
        tensors: dict[str, Tensor] = {}
        for name, dtype, shape in reader.header["tensors"]:
            tensors[name] = torch.empty(shape, dtype=dtype_of(dtype))
            reader.read_into(bytes_of(tensors[name]))
        reader.finish()
        return tensors, dict(reader.header["extra"])
