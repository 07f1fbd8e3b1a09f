import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data import synth as synth_module
from harness.data.criteo import parse_rows
from harness.data.facts import Facts, measure, read_facts
from harness.data.law import read_law
from harness.data.prepare import prepare
from harness.data.records import Synthetic, read_meta
from harness.data.synth import synth

LARGE_TABLES = (2, 3, 11, 15, 20, 23, 25)
MOST_IDS = (2, 3, 9, 11, 15, 20, 23)  # in Kaggle's sample


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of single tests take the scale of their labels from few samples."""
    monkeypatch.setattr(synth_module, "_FIT_ROWS", 1 << 12)


def _made(folder: Path, like: str, rows: int) -> tuple[Facts, Facts]:
    """The facts of a log like a real one, and those of the real one."""
    synth(rows, folder / "log.tsv", seed=0, like=like)
    prepare([folder / "log.tsv"], folder / "data")
    wanted = read_facts(Path(like))
    return measure(folder / "data", growth_rows=[*wanted.tables[0].distinct_after_rows]), wanted


def test_a_log_like_kaggles_has_the_facts_of_kaggles(tmp_path: Path) -> None:
    """Law: as many rows as were measured have the same ids, skew, batches and spread of click rates, table by table."""
    found, wanted = _made(tmp_path, "kaggle", 137_139)
    for own, its in zip(found.tables, wanted.tables, strict=True):
        assert own.distinct == pytest.approx(its.distinct, rel=0.15), its.column
        assert own.distinct_per_batch_of_128 == pytest.approx(its.distinct_per_batch_of_128, rel=0.15)
        assert own.top_1_percent_share == pytest.approx(its.top_1_percent_share, abs=0.05), its.column
        assert own.seen_once_frac_of_ids == pytest.approx(its.seen_once_frac_of_ids, abs=0.05), its.column
        for number in (10_000, 30_000, 100_000) if its.distinct > 1_000 else ():
            assert own.distinct_after_rows[number] == pytest.approx(its.distinct_after_rows[number], rel=0.15)
    spreads = [
        (mine.ctr_sd_between_ids, theirs.ctr_sd_between_ids)
        for table in {*LARGE_TABLES, *MOST_IDS}
        for mine, theirs in zip(found.tables[table].by_count[1:], wanted.tables[table].by_count[1:], strict=True)
    ]
    assert all(abs(mine - theirs) < 0.03 for mine, theirs in spreads if mine is not None and theirs is not None)
    once = [np.mean([facts.tables[t].accesses_to_seen_once_frac for t in MOST_IDS]) for facts in (found, wanted)]
    assert once[0] == pytest.approx(once[1], abs=0.03)
    assert found.pairs.frac_above_01 == pytest.approx(wanted.pairs.frac_above_01, abs=0.08)
    assert found.pairs.frac_above_05 == pytest.approx(wanted.pairs.frac_above_05, abs=0.04)
    assert found.positives_frac == pytest.approx(wanted.positives_frac, abs=0.01)


def test_a_log_like_terabytes_has_the_facts_of_terabytes(tmp_path: Path) -> None:
    """As above, with the margins that 10,000 rows with 265 clicks allow."""
    found, wanted = _made(tmp_path, "terabyte", 10_000)
    for own, its in zip(found.tables, wanted.tables, strict=True):
        few = its.distinct < 30
        assert few or own.distinct == pytest.approx(its.distinct, rel=0.15), its.column
        assert own.distinct_per_batch_of_128 == pytest.approx(its.distinct_per_batch_of_128, rel=0.15), its.column
        assert own.top_1_percent_share == pytest.approx(its.top_1_percent_share, abs=0.05), its.column
    assert found.pairs.frac_above_01 == pytest.approx(wanted.pairs.frac_above_01, abs=0.08)
    assert found.pairs.frac_above_05 == pytest.approx(wanted.pairs.frac_above_05, abs=0.04)
    assert found.positives_frac == pytest.approx(wanted.positives_frac, abs=0.005)


def test_a_larger_log_is_a_sample_of_the_same_law(tmp_path: Path) -> None:
    """Law: its first 10,000 rows have as many ids as the first 10,000 of a smaller one; more rows have more ids."""
    grown: list[dict[int, int]] = []
    for rows in (30_000, 300_000):
        synth(rows, tmp_path / f"{rows}.tsv", seed=1)
        prepare([tmp_path / f"{rows}.tsv"], tmp_path / f"{rows}")
        facts = measure(tmp_path / f"{rows}")
        sizes = [facts.tables[table].distinct_after_rows for table in LARGE_TABLES]
        grown.append({rows: sum(each[rows] for each in sizes) for rows in sizes[0]})
    few, many = grown
    for rows in (1_000, 10_000, 30_000):
        assert many[rows] == pytest.approx(few[rows], rel=0.05)
    assert many[300_000] > 4 * many[30_000], "the tail is not exhausted"


def _bytes(folder: Path, name: str, rows: int = 3_000, **options: object) -> bytes:
    synth(rows, folder / name, **{"seed": 1, **options})  # pyright: ignore[reportArgumentType]
    return (folder / name).read_bytes()


def test_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    """The same arguments give the same bytes, gzipped too, and nothing else is left; any other argument others."""
    first = _bytes(tmp_path, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.synth.json"]
    assert _bytes(tmp_path, "b") == first
    assert gzip.decompress(_bytes(tmp_path, "c.gz")) == first
    assert _bytes(tmp_path, "d.gz") == (tmp_path / "c.gz").read_bytes()
    assert _bytes(tmp_path, "e", seed=2) != first
    assert _bytes(tmp_path, "f", like="terabyte") != first
    assert _bytes(tmp_path, "h", taper=0.5) != first
    assert _bytes(tmp_path, "i", flat=True) != first
    assert not _bytes(tmp_path, "g", rows=3_001).startswith(first)


def test_chunks_do_not_show(tmp_path: Path) -> None:
    """Rows beyond the first chunk are all there, in the format, and no row repeats."""
    text = _bytes(tmp_path, "a", rows=70_000)
    rows = parse_rows(text, name="a", first_line=1)
    assert len(rows.labels_R) == 70_000
    assert len(set(text.split(b"\n"))) == 70_001


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Stopped in the middle, there is neither a log nor a piece of one."""

    def interrupt(_done: int, _rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth(1_000, tmp_path / "a.gz", seed=0, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    """Someone's real log is safe."""
    (tmp_path / "train.txt").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"train\.txt: exists"):
        synth(1_000, tmp_path / "train.txt", seed=0)
    assert (tmp_path / "train.txt").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("rows", "like", "taper"),
    [(0, "kaggle", 0), (-1, "kaggle", 0), (10, "nosuch", 0), (10, "kaggle", -1), (10, "kaggle", math.nan)],
)
def test_senseless_arguments_are_refused(tmp_path: Path, rows: int, like: str, taper: float) -> None:
    """No rows, a law that is not there, or a taper outside [0, 10], is one line."""
    with pytest.raises(DataError, match=r"^--(rows|like|taper): .*expected"):
        synth(rows, tmp_path / "a", seed=0, like=like, taper=taper)


def test_what_cannot_be_written_is_refused_before_it_is(tmp_path: Path) -> None:
    """More rows than a disk or a sidecar holds, and a seed that no sidecar holds, are one line; nothing is left."""
    for rows, seed, option in ((10**11, 0, "rows"), (2**40, 0, "rows"), (10, 2**65, "seed")):
        with pytest.raises(DataError, match=rf"^--{option}: "):
            synth(rows, tmp_path / "a", seed=seed)
    assert list(tmp_path.iterdir()) == []


def test_prepared_data_says_how_it_was_made(tmp_path: Path) -> None:
    """The sidecar's facts are in the meta; other bytes under that name, or two files, have none."""
    log = tmp_path / "a.tsv"
    text = _bytes(tmp_path, "a.tsv", taper=0.25)
    meta = prepare([log], tmp_path / "one")
    law = read_law("kaggle").digest
    assert meta.synthetic == Synthetic(rows=3_000, seed=1, like="kaggle", law=law, taper=0.25, flat=False)
    assert read_meta(tmp_path / "one") == meta
    path = tmp_path / "one" / "meta.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "synthetic"}))
    assert read_meta(tmp_path / "one") == meta.model_copy(update={"synthetic": None}), "of a time before sidecars"
    assert prepare([log, log], tmp_path / "two").synthetic is None
    log.write_bytes(text[: text.rindex(b"\n", 0, -1) + 1])
    assert prepare([log], tmp_path / "other").synthetic is None
    (tmp_path / "a.tsv.synth.json").write_text("{}")
    with pytest.raises(DataError, match=r"a\.tsv\.synth\.json: expected what `run.py data synth` wrote"):
        prepare([log], tmp_path / "broken")
