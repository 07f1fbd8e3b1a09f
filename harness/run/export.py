"""``run.py export``: the trained model of a finished run as files that numpy and plain torch read.

    run.json           config, digest of the data, results, files of tables, shapes of dense layers
    tables/00_C1.npy   float32 (rows, D): row i is that of id i of the prepared data
    dense.pt           the dense network's parameters and buffers, a ``state_dict``
    predictions.csv    label and predicted probability of each sample of ``eval.split``, in the order of the data

State of optimizers is left out. F tables, D values of a row, B batch, A = B F accesses, N distinct rows of a batch.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.cluster.server import digest_of_rows
from harness.core.errors import DataError, StoreError, UserError
from harness.core.events import Finished
from harness.core.lookup import plan_batch
from harness.core.placement import Placement
from harness.core.plans import CHIEF, Rank, ps_rank
from harness.core.shard import Shard
from harness.files import make_folder, os_errors
from harness.model.models import make_model
from harness.model.network import Network, make_network
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, read_env, read_whole_config, verify
from harness.run.final_model import digest_of_dense
from harness.run.spec import RunSpec
from harness.store import FileStore, Manifest, newest_checkpoint

F32 = NDArray[np.float32]


def export(run_dir: Path, out: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write the model of a finished run to the new folder ``out``; returns the content of run.json.

    If the run has not kept its model, run.json alone is written, and the error says how to get the model.
    ``progress(done, total)``: in tables and batches. ``out`` appears when all its files are written.

    Raises:
        StoreError: the run is not finished or was changed, its model is not that of its record, or ``out`` exists.
        DataError: the data are missing, or are not those of the run.
    """
    if out.exists():
        raise StoreError(f"--out: {out}: exists; remove it or choose another name")
    run = RunDir(run_dir)
    if run.status != "done":
        raise StoreError(f"{run_dir}: expected a finished run, got one that is {run.status}")
    verify(run)
    spec, finished = RunSpec(read_whole_config(run_dir, {})), EventLog.of(run).finished
    assert finished is not None, "the record of a run that is done ends with its results"
    _refuse_other_data(spec, run)
    manifest, damages = newest_checkpoint(run.model)
    if manifest is None and damages:
        raise StoreError(f"{run.model}: {damages[0]}; {_again(run)}")
    making = out.with_name(f".{out.name}.tmp")
    with os_errors(f"{out}: cannot be written"):
        shutil.rmtree(making, ignore_errors=True)
        make_folder(making)
        try:
            about = _Export(spec, run, finished, making, progress).write(manifest)
            making.replace(out)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    if manifest is None:
        raise UserError(f"{run_dir}: has not kept its model, so that {out} has run.json alone; {_again(run)}")
    return about


def _again(run: RunDir) -> str:
    """What to do for a model that a run lacks."""
    model = f"{run.path}-model"
    return (
        "the model comes, to the same bits, by `run.py train "
        f"{run.config} store.keep_finished=true out={model}` and `run.py export {model}`"
    )


def _refuse_other_data(spec: RunSpec, run: RunDir) -> None:
    expected, found = (read_env(run.path).get("data") or {}).get("digest"), spec.dataset.digest
    if found != expected:
        path = spec.config.data.path
        raise DataError(f"data.path: {path}: expected the data of {run.path} (digest {expected}), got digest {found}")


@dataclass(frozen=True)
class _Export:
    """Writes the files of one run to ``folder``."""

    spec: RunSpec
    run: RunDir
    finished: Finished
    folder: Path
    progress: Callable[[int, int], None]

    def write(self, manifest: Manifest | None) -> dict[str, Any]:
        """Write run.json and, with a manifest, the model before it; returns the content of run.json."""
        results = {key: value for key, value in self.finished.to_json().items() if key not in ("event", "machine")}
        config = self.spec.config.model_dump(mode="json")
        about: dict[str, Any] = {"config": config, "data_digest": self.spec.dataset.digest, "results": results}
        if manifest is not None:
            names = [re.sub(r"[^\w.-]+", "_", name) for name in self.spec.dataset.meta.table_names]
            about["tables"] = [f"tables/{table:02}_{name}.npy" for table, name in enumerate(names)]
            tables, network = self._tables(about["tables"], manifest), self._network(manifest)
            state, model = network.state(), make_model(self.spec.model, self.spec.shape, seed=0)
            layers = {name: state[name].clone(memory_format=torch.contiguous_format) for name in model.state_dict()}
            torch.save(layers, self.folder / "dense.pt")
            about["dense"] = {name: [*tensor.shape] for name, tensor in layers.items()}
            self._write_predictions(tables, network)
        (self.folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        return about

    def _tables(self, names: Sequence[str], manifest: Manifest) -> list[F32]:
        """Write the tables, shard by shard; the files, mapped. Raises StoreError for rows of another digest."""
        placement, dim = self.spec.placement, self.spec.model.row_values
        (self.folder / "tables").mkdir()
        tables: list[F32] = [
            np.lib.format.open_memmap(self.folder / name, mode="w+", dtype=np.float32, shape=(num_rows, dim))
            for name, num_rows in zip(names, placement.cardinalities, strict=True)
        ]
        for index in range(placement.num_ps):
            rank, optimizer = ps_rank(index), self.spec.run_facts.optimizer
            shard = Shard(placement, index, dim, seed=0, counts_updates=False, optimizer=optimizer)
            FileStore(self.run.model).read_rows(manifest.shards[rank], shard.rows_MD)
            self._refuse_other(rank, digest_of_rows(shard))
            for table, rows in enumerate(tables):
                part = shard.values_MD[shard.span(table)].numpy()
                if len(part):  # with whole tables on ranks most ranks have none of it
                    first, stride = placement.table_rows(index, table)
                    rows[first::stride] = part
            self.progress(index + 1, placement.num_ps + self._num_batches)
        return tables

    def _network(self, manifest: Manifest) -> Network:
        """The dense network. Raises StoreError for parameters of another digest."""
        spec, config = self.spec, self.spec.config
        network = make_network(config.model, spec.shape, config.trainer, seed=config.seed, is_eager=False)
        network.load(FileStore(self.run.model).read_dense(manifest.trainer))
        self._refuse_other(CHIEF, digest_of_dense(network.state()))
        return network

    def _refuse_other(self, rank: Rank, found: str) -> None:
        if found != (expected := self.finished.digests[rank]):
            raise StoreError(
                f"{self.run.model}: {rank}: expected the parameters of the run's record (xxh3 {expected}), got "
                f"{found}; {_again(self.run)}"
            )

    @property
    def _num_batches(self) -> int:
        return -(-self.spec.num_eval_samples // self.spec.config.eval.batch_size)

    def _write_predictions(self, tables: Sequence[F32], network: Network) -> None:
        """Write the predictions that the run's last evaluation made, with the same network."""
        spec, config, num_ps = self.spec, self.spec.config, self.spec.placement.num_ps
        whole = Placement("table", spec.dataset.cardinalities, 1)
        batches = spec.dataset.eval_batches(config.eval.split, config.eval.batch_size, spec.num_eval_samples)
        with (self.folder / "predictions.csv").open("w", encoding="utf-8") as file:
            file.write("label,probability\n")
            for number, batch in enumerate(batches, start=1):
                plan = plan_batch(batch.ids_BF, whole, np.zeros(len(batch.ids_BF), dtype=bool))
                rows_BFD = np.stack([rows[ids_B] for rows, ids_B in zip(tables, batch.ids_BF.T, strict=True)], axis=1)
                rows_ND = torch.empty(len(plan.rows_N), spec.model.row_values)
                rows_ND[plan.inverse_A] = torch.from_numpy(rows_BFD).flatten(0, 1)  # one row: equal values
                probabilities_B = torch.sigmoid(network.predict(batch.dense_BI, rows_ND, plan).double())
                pairs = zip(batch.labels_B.tolist(), probabilities_B.tolist(), strict=True)
                file.writelines(f"{label:.0f},{probability!r}\n" for label, probability in pairs)
                self.progress(num_ps + number, num_ps + self._num_batches)
