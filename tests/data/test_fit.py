from pathlib import Path

import numpy as np
import pytest

from harness.core.criteo_sizes import FullLog
from harness.data import fit
from harness.data.facts import measure, read_facts
from harness.data.law import read_law, write_law
from harness.data.prepare import prepare
from harness.data.synth import synth


def test_a_law_fitted_to_a_log_gives_logs_like_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: facts of a log → law → log: ids and mutual information are those of the first log. A small one, quickly."""
    monkeypatch.setattr(fit, "FULL_LOGS", {"small": FullLog(100_000, (150,) * 26)})
    monkeypatch.setattr(fit, "_TABLE_ROUNDS", 6)
    monkeypatch.setattr(fit, "_TIE_SWEEPS", 1)
    monkeypatch.setattr(fit, "_BLOCKS", (1, 16))
    monkeypatch.setattr(fit, "_EFFECT_ROUNDS", 1)
    synth(6_000, tmp_path / "first.tsv", seed=0)
    prepare([tmp_path / "first.tsv"], tmp_path / "first", categories="hash", max_ind_range=150)
    first = measure(tmp_path / "first").model_copy(update={"integers": read_facts(Path("kaggle")).integers})
    done: list[tuple[int, int]] = []
    law = fit.fit_law(first, "small", progress=lambda part, parts: done.append((part, parts)))
    assert done[-1][0] == done[-1][1]
    write_law(tmp_path / "law.json", law, first)
    assert read_law(str(tmp_path / "law.json")) == law
    synth(6_000, tmp_path / "again.tsv", seed=1, like=str(tmp_path / "law.json"))
    prepare([tmp_path / "again.tsv"], tmp_path / "again")
    again = measure(tmp_path / "again")
    both = [(own, its) for own, its in zip(again.tables, first.tables, strict=True) if its.distinct > 30]
    ratios = [own.distinct / its.distinct for own, its in both]
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert max(np.abs(np.log(ratios))) < 0.3
    assert again.pairs.mean == pytest.approx(first.pairs.mean, abs=0.06)
    assert again.positives_frac == pytest.approx(first.positives_frac, abs=0.03)
    assert law.latents
