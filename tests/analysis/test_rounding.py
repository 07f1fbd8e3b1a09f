"""The floor of rounding, from replicates of the run without failures."""

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.stats import rounding_of, rounding_text, without_replicates
from tests.analysis.shown import shown
from tests.made_runs import made_config, unseal, write_run


def _cell(backend: str, auc: float, **values: Any) -> dict[str, Any]:
    cell = {"strategy": "none", "seed": 0, "engine": "local", "trace": None, "profile": "busy", "num_ps": 4}
    return {**cell, "status": "done", "auc": auc, "trainer.backend": backend, "trainer.num_threads": 1} | values


def test_the_floor_is_the_largest_difference_between_replicates() -> None:
    """Runs of one seed that differ in backend or threads only, whatever their trace and engine; seeds do not mix."""
    cells = [
        _cell("compiled", 0.5),
        _cell("torch", 0.5001, trace="busy"),
        _cell("torch", 0.4998, **{"trainer.num_threads": 2}),
        _cell("compiled", 0.7, seed=1),
        _cell("torch", 0.7002, seed=1),
        _cell("torch", 0.9, seed=1, status="failed"),
        _cell("torch", 0.6, num_ps=8),
    ]
    found = rounding_of(cells[:1], cells)
    assert found is not None
    assert found.largest == pytest.approx(3e-4)
    assert found.num_seeds == 2


def test_equal_bits_tell_nothing() -> None:
    """Threads change no bit of backend compiled: such replicates leave the floor unknown, as does a lone reference."""
    cells = [_cell("compiled", 0.5), _cell("compiled", 0.5, **{"trainer.num_threads": 2})]
    assert rounding_of(cells[:1], cells) is None
    assert rounding_of(cells[:1], cells[:1]) is None


def test_replicates_are_no_setting_of_their_own() -> None:
    """References with a backend that nothing else ran with are left out; with one that others use they stay."""
    cells = [_cell("compiled", 0.5), _cell("torch", 0.5), _cell("compiled", 0.4, strategy="full")]
    assert without_replicates(cells) == [cells[0], cells[2]]
    assert without_replicates(cells[:2]) == cells[:2]
    both = [*cells, _cell("torch", 0.4, strategy="full")]
    assert without_replicates(both) == both


def test_a_folder_with_replicates_shows_the_floor_in_table_and_verdicts(tmp_path: Path) -> None:
    """One block, its references counted once a seed, and the floor beside it on the console."""
    for seed in range(3):
        for strategy in ("none", "cpr_mfu"):
            config = made_config(strategy, seed=seed, trainer={"backend": "compiled"})
            write_run(tmp_path / f"{strategy}{seed}", config)
        write_run(tmp_path / f"again{seed}", made_config("none", seed=seed + 3, trainer={"backend": "torch"}))
        unseal(tmp_path / f"again{seed}")
        text = (tmp_path / f"again{seed}" / "config.yaml").read_text()
        (tmp_path / f"again{seed}" / "config.yaml").write_text(text.replace(f"seed: {seed + 3}", f"seed: {seed}"))
    frame = analysis.load(tmp_path)
    (block,) = analysis.blocks_of(frame)
    assert [len(line.cells) for line in block.lines] == [3, 3]
    assert block.rounding is not None
    assert block.rounding.num_seeds == 3
    advice = analysis.advice(frame)
    assert advice is not None
    sentence = rounding_text(block.rounding)
    assert "unknown" not in sentence
    assert sentence in shown(analysis.show_table(frame))
    assert sentence in shown(advice)
