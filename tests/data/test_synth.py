import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.click_law import PAIRS, facts_of
from harness.core.errors import DataError, StoreError
from harness.data import synth as synth_module
from harness.data.delimited import RowReader
from harness.data.law import read_law
from harness.data.prepare import prepare
from harness.data.records import Synthetic, read_meta
from harness.data.sources import SUFFIX, Chunk
from harness.data.synth import synth

LARGE_TABLES = (2, 3, 9, 11, 15, 20, 23, 25)


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of single tests take the scale of their labels from few samples."""
    monkeypatch.setattr(synth_module, "_FIT_ROWS", 1 << 12)


@pytest.mark.parametrize(
    ("like", "rows"), [pytest.param("kaggle", 137_139, marks=pytest.mark.slow), ("terabyte", 10_000)]
)
def test_a_log_like_a_real_one_has_its_facts(tmp_path: Path, like: str, rows: int) -> None:
    """As many rows as were measured have the same ids, skew, batches and spread of click rates, table by table.

    Of Terabyte's, with 10,000 rows and 265 clicks, less is known.
    """
    synth(rows, tmp_path / "log.tsv", seed=0, like=like)
    prepare([tmp_path / "log.tsv"], tmp_path / "data")
    found, wanted, is_large = facts_of(str(tmp_path / "data")), facts_of(like), like == "kaggle"
    for own, its in zip(found["tables"], wanted["tables"], strict=True):
        near: dict[str, Any] = {"distinct_per_batch_of_128": {"rel": 0.15}, "top_1_percent_share": {"abs": 0.05}}
        near |= {"distinct": {"rel": 0.15}} if is_large or its["distinct"] >= 30 else {}
        near |= {"seen_once_frac_of_ids": {"abs": 0.05}} if is_large else {}
        for key, tolerance in near.items():
            assert own[key] == pytest.approx(its[key], **tolerance), (its["column"], key)
        for number in ("10000", "30000", "100000") if is_large and its["distinct"] > 1_000 else ():
            assert own["distinct_after_rows"][number] == pytest.approx(its["distinct_after_rows"][number], rel=0.15)
    assert found[PAIRS]["frac_above_0.1"] == pytest.approx(wanted[PAIRS]["frac_above_0.1"], abs=0.08)
    assert found[PAIRS]["frac_above_0.5"] == pytest.approx(wanted[PAIRS]["frac_above_0.5"], abs=0.04)
    assert found["positives_frac"] == pytest.approx(wanted["positives_frac"], abs=0.01 if is_large else 0.005)
    if is_large:
        large = [(found["tables"][table], wanted["tables"][table]) for table in LARGE_TABLES]
        spreads = [[part["ctr_sd_between_ids"] for own in pair for part in own["by_count"][1:]] for pair in large]
        differences = np.subtract(*np.array(spreads, np.float64).reshape(len(large), 2, -1).swapaxes(0, 1))
        assert np.nanmax(np.abs(differences)) < 0.03
        once = np.mean([[own["accesses_to_seen_once_frac"] for own in pair] for pair in large], axis=0)
        assert once[0] == pytest.approx(once[1], abs=0.03)


def _bytes(folder: Path, name: str, **options: Any) -> bytes:
    synth(out=folder / name, **{"rows": 3_000, "seed": 1, **options})
    return (folder / name).read_bytes()


def test_a_log_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    """The same arguments give the same bytes, gzipped too, and nothing else is left; any other argument others.

    Rows beyond the first chunk are all there, in the format, and no row repeats.
    """
    first = _bytes(tmp_path, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.synth.json"]
    assert _bytes(tmp_path, "b") == first
    assert gzip.decompress(_bytes(tmp_path, "c.gz")) == first
    assert _bytes(tmp_path, "d.gz") == (tmp_path / "c.gz").read_bytes()
    others = {"seed": 2}, {"like": "terabyte"}, {"taper": 0.5}, {"flat": True}, {"rows": 40_000}
    texts = [_bytes(tmp_path, f"other{number}", **options) for number, options in enumerate(others)]
    assert not any(text.startswith(first) for text in texts)
    assert len(RowReader(None, "a").rows(Chunk(texts[-1], 1)).labels_R) == 40_000
    assert len({*texts[-1].split(b"\n")}) == 40_001


def test_a_row_and_its_label_do_not_depend_on_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn by the number of the sample: short chunks give the log of one chunk."""
    whole = _bytes(tmp_path, "whole")
    monkeypatch.setattr(synth_module, "_CHUNK_ROWS", 1_000)
    assert _bytes(tmp_path, "chunks") == whole


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    """An interrupt, a file that exists, arguments that are not possible, more rows than a disk or a sidecar holds."""

    def interrupt(_done: int, _rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth(1_000, tmp_path / "a.gz", seed=0, progress=interrupt)
    options: list[dict[str, Any]] = [{"rows": n} for n in (0, 10**11, 2**40)]
    options += [{"seed": 2**65}, {"like": "nosuch"}, {"taper": -1}, {"taper": math.nan}]
    for option in options:
        with pytest.raises(DataError, match=rf"^--{next(iter(option))}: "):
            synth(**{"rows": 10, "out": tmp_path / "a", "seed": 0, **option})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"b{SUFFIX}").mkdir()  # in the place of the sidecar
    with pytest.raises(StoreError, match=r"b\.synth\.json: cannot be written"):
        synth(10, tmp_path / "b", seed=0)
    assert [*tmp_path.iterdir()] == [tmp_path / f"b{SUFFIX}"], "or the same command would be refused"
    (tmp_path / "train.txt").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"train\.txt: exists"):
        synth(1_000, tmp_path / "train.txt", seed=0)
    assert (tmp_path / "train.txt").read_bytes() == b"precious"


def test_prepared_data_says_how_it_was_made(tmp_path: Path) -> None:
    """The sidecar's facts are in the meta; other bytes under that name, or two files, have none."""
    log = tmp_path / "a.tsv"
    text = _bytes(tmp_path, "a.tsv", taper=0.25)
    meta = prepare([log], tmp_path / "one")
    law = read_law("kaggle").digest
    assert meta.synthetic == Synthetic(rows=3_000, seed=1, like="kaggle", law=law, taper=0.25, flat=False)
    assert read_meta(tmp_path / "one") == meta
    (tmp_path / "b.tsv").write_bytes(text[: text.rindex(b"\n", 0, -1) + 1])
    assert prepare([log, tmp_path / "b.tsv"], tmp_path / "two").synthetic is None
    (tmp_path / "b.tsv").rename(log)
    assert prepare([log], tmp_path / "other").synthetic is None
    (tmp_path / "a.tsv.synth.json").write_text("{}")
    with pytest.raises(DataError, match=r"a\.tsv\.synth\.json: expected what `run.py data synth` wrote"):
        prepare([log], tmp_path / "broken")
