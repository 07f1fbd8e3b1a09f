import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.data import synth as synth_module
from harness.data.criteo import parse_rows
from harness.data.info import Info, info
from harness.data.prepare import prepare
from harness.data.records import Synthetic, read_meta
from harness.data.synth import SynthReport, synth
from harness.data.teacher import LARGE_TABLES

DEFAULT_ROWS = 250_000


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> tuple[SynthReport, Info]:
    """A log of the size that the demo uses, prepared."""
    folder = tmp_path_factory.mktemp("synth")
    report = synth(DEFAULT_ROWS, folder / "log.tsv", seed=0)
    prepare([folder / "log.tsv"], folder / "prepared")
    return report, info(folder / "prepared")


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of single tests take the scale of their labels from few samples. The log ``default`` is made before."""
    monkeypatch.setattr(synth_module, "_FIT_ROWS", 1 << 12)


def test_access_is_as_skewed_as_in_real_logs(default: tuple[SynthReport, Info]) -> None:
    """The top 1 % of rows get >= 90 % of accesses overall, >= 60 % in each large table, whichever rows are counted."""
    report, measured = default
    assert measured.tracked_tables == LARGE_TABLES
    assert measured.top1_seen_share >= 0.90
    nominal_frac = 0.01 * sum(report.cardinalities) / measured.num_table_rows
    assert nominal_frac >= 0.01  # so the nominal top 1 % holds at least the rows of the top 1 % seen
    for table in LARGE_TABLES:
        assert 0.65 <= measured.tables[table].top1_seen_share <= 0.75
        assert measured.tables[table].num_seen <= report.cardinalities[table] + 1


def test_labels_are_like_clicks(default: tuple[SynthReport, Info]) -> None:
    """About a quarter are positive, and no model can do better than about 0.80, as on Criteo's logs."""
    report, measured = default
    assert measured.num_positives == report.num_positives
    assert 0.24 <= measured.positive_frac <= 0.26
    assert report.bayes_auc is not None
    assert 0.79 <= report.bayes_auc <= 0.81


def test_tables_are_kaggles_scaled_down(default: tuple[SynthReport, Info]) -> None:
    """Tables of a few hundred rows and less are met whole; a missing value adds one row."""
    report, measured = default
    for size, table in zip(report.cardinalities, measured.tables, strict=True):
        assert table.num_rows <= size + 1
        if size < 1_000:
            assert table.num_rows >= size


def _bytes(folder: Path, name: str, rows: int = 3_000, **options: float | int) -> bytes:
    synth(rows, folder / name, **{"seed": 1, "scale": 0.0005, **options})  # pyright: ignore[reportArgumentType]
    return (folder / name).read_bytes()


def test_is_a_function_of_its_arguments(tmp_path: Path) -> None:
    """The same arguments give the same bytes, gzipped too, and nothing else is left; any other argument others."""
    first = _bytes(tmp_path, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.synth.json"]
    assert _bytes(tmp_path, "b") == first
    assert gzip.decompress(_bytes(tmp_path, "c.gz")) == first
    assert _bytes(tmp_path, "d.gz") == (tmp_path / "c.gz").read_bytes()
    assert _bytes(tmp_path, "e", seed=2) != first
    assert _bytes(tmp_path, "f", scale=0.001) != first
    assert _bytes(tmp_path, "h", taper=0.5) == first
    assert _bytes(tmp_path, "i", taper=0.0) != first
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
        synth(1_000, tmp_path / "a.gz", seed=0, scale=0.0005, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    """Someone's real log is safe."""
    (tmp_path / "train.txt").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"train\.txt: exists"):
        synth(1_000, tmp_path / "train.txt", seed=0)
    assert (tmp_path / "train.txt").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("rows", "scale", "taper"),
    [(0, 0.1, 0), (-1, 0.1, 0), (10, 0.0, 0), (10, 1.5, 0), (10, float("nan"), 0), (10, 0.1, -1), (10, 0.1, math.nan)],
)
def test_senseless_arguments_are_refused(tmp_path: Path, rows: int, scale: float, taper: float) -> None:
    """No rows, a scale outside (0, 1], or a taper outside [0, 10], is one line."""
    with pytest.raises(DataError, match=r"^--(rows|table-rows|taper): .*expected"):
        synth(rows, tmp_path / "a", seed=0, scale=scale, taper=taper)


def test_prepared_data_says_how_it_was_made(tmp_path: Path) -> None:
    """The sidecar's facts are in the meta and in `info`; other bytes under that name, or two files, have none."""
    log = tmp_path / "a.tsv"
    text = _bytes(tmp_path, "a.tsv", taper=0.25)
    meta = prepare([log], tmp_path / "one")
    assert meta.synthetic == Synthetic(rows=3_000, seed=1, scale=0.0005, taper=0.25)
    assert read_meta(tmp_path / "one") == meta
    found = info(tmp_path / "one")
    assert (found.scale, found.taper) == (0.0005, 0.25)
    path = tmp_path / "one" / "meta.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "synthetic"}))
    assert read_meta(tmp_path / "one") == meta.model_copy(update={"synthetic": None}), "of a time before sidecars"
    assert prepare([log, log], tmp_path / "two").synthetic is None
    log.write_bytes(text[: text.rindex(b"\n", 0, -1) + 1])
    assert prepare([log], tmp_path / "other").synthetic is None
    assert info(tmp_path / "other").taper is None
    (tmp_path / "a.tsv.synth.json").write_text("{}")
    with pytest.raises(DataError, match=r"a\.tsv\.synth\.json: expected what `run.py data synth` wrote"):
        prepare([log], tmp_path / "broken")


def test_effects_drift_along_the_file(tmp_path: Path) -> None:
    """The rows that are popular on the first day are mostly, not entirely, those of the last."""
    text = _bytes(tmp_path, "a", rows=60_000)
    values = parse_rows(text, name="a", first_line=1).categories_RF[:, 2]
    first, last = (set(_most_common(part, 40)) for part in (values[:10_000], values[-10_000:]))
    again = set(_most_common(values[10_000:20_000], 40))
    assert 10 <= len(first & last) < len(first & again)


def _most_common(values: np.ndarray, number: int) -> list[int]:
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[np.argsort(counts)[-number:]].tolist()
