"""DLRM's forward pass from the files of ``run.py export``, which gives the probabilities of ``predictions.csv``.

PYTHONPATH=. .venv/bin/python docs/forward.py runs/one-export
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from harness.data.dataset import Dataset


def probabilities(folder: Path) -> Tensor:
    """The probability of a click of each sample of the test set, in its order."""
    run = json.loads((folder / "run.json").read_text())
    dense = torch.load(folder / "dense.pt", weights_only=True)
    tables = [torch.from_numpy(np.load(folder / name)) for name in run["tables"]]
    dataset = Dataset.open(Path(run["config"]["data"]["path"]), split="dlrm", seed=0)
    (batch,) = dataset.eval_batches("test", 10**9)
    bottom = _mlp(dense, "bottom", batch.dense_BI).relu()
    rows = [table[ids] for table, ids in zip(tables, torch.from_numpy(batch.ids_BF).long().T, strict=True)]
    vectors = torch.stack([bottom, *rows], dim=1)
    i, j = torch.tril_indices(len(rows) + 1, len(rows) + 1, offset=-1)
    products = (vectors @ vectors.transpose(1, 2))[:, i, j]
    return _mlp(dense, "top", torch.cat([bottom, products], dim=1)).sigmoid().squeeze(1)


def _mlp(dense: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    for layer in range(sum(key.startswith(name) for key in dense) // 2):
        x = linear(x.relu() if layer else x, dense[f"{name}.{layer}.weight"], dense[f"{name}.{layer}.bias"])
    return x


if __name__ == "__main__":
    sys.stdout.writelines(f"{each}\n" for each in probabilities(Path(sys.argv[1])).tolist())
