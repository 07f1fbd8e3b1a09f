import gzip
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import xxhash

from harness.core.errors import DataError
from harness.data.digest import refuse_other
from harness.data.facts import measure
from harness.data.leftovers import sweep, temporary_beside
from harness.data.prepare import prepare
from harness.data.records import META_NAME, NUM_TABLES, RECORDS_NAME, Meta, Words, map_records, read_meta, write_meta
from harness.processes.spawn import fork_server
from tests.crashes import LOSSES, Disk
from tests.data.logs import Row, naive_ids, naive_values, random_rows, to_text

SMALL_CHUNK = 3_000  # bytes: about ten rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return random_rows(1_200, seed=11)


def _write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def _words(folder: Path) -> Words:
    return np.array(map_records(folder, read_meta(folder)))


def _left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _file(folder: Path) -> tuple[int, int]:
    """Which file the records are, and when they were written."""
    status = (folder / RECORDS_NAME).stat()
    return status.st_ino, status.st_mtime_ns


SIZES = tuple(range(3, 3 + NUM_TABLES))


@pytest.mark.parametrize("chunk_bytes", [700, SMALL_CHUNK, 1 << 22])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_ind_range": 50},
        {"table_sizes": SIZES},
        {"categories": "hash", "max_ind_range": 1_000},
        {"categories": "hash", "table_sizes": SIZES},
    ],
)
def test_records_are_those_of_the_plainest_reading(
    tmp_path: Path, rows: list[Row], options: dict[str, Any], chunk_bytes: int
) -> None:
    """`number` counts in order of first appearance, after the modulus; `hash` takes values modulo the table's size.

    A table of numbered values has a row for each, and at least as many as are asked for. Labels become 0.0 or 1.0 and
    are counted; integers log(max(x, 0) + 1), so that negative and missing are 0. The meta is the one that the folder
    holds. Asked again, it writes nothing: a source's bytes matter, not its name.
    """
    source, out = _write(tmp_path / "a.tsv.gz", gzip.compress(to_text(rows))), tmp_path / "out"
    meta = prepare([source], out, chunk_bytes=chunk_bytes, **options)
    labels, integers, categories = naive_values(rows)
    if "categories" in options:
        sizes = options.get("table_sizes", (1_000,) * NUM_TABLES)
        ids = np.array(categories) % np.array(sizes)
    else:
        ids, sizes = naive_ids(categories, options.get("max_ind_range"))
        sizes = np.maximum(sizes, options.get("table_sizes", 0)).tolist()
    words = _words(out)
    floats = words[:, :14].view(np.float32)
    assert np.array_equal(words[:, 14:], ids)
    assert floats[:, 0].tolist() == labels
    np.testing.assert_allclose(floats[:, 1:], np.log1p(np.maximum(integers, 0)), rtol=1e-6)
    assert (floats[:, 1:][np.array(integers) <= 0] == 0).all()
    assert (meta.cardinalities, meta.num_positives, meta.num_rows) == (tuple(sizes), sum(labels), len(rows))
    assert [(s.name, s.num_bytes) for s in meta.sources] == [("a.tsv.gz", source.stat().st_size)]
    assert read_meta(out) == meta
    before = _file(out)
    assert prepare([source.rename(tmp_path / "b")], out, **options) == meta
    assert _file(out) == before
    assert (_left_over(tmp_path), _left_over(out)) == (["b", "out"], [META_NAME, RECORDS_NAME])


def test_how_the_rows_reach_it_does_not_matter(tmp_path: Path, rows: list[Row]) -> None:
    """One file, three files, gzip, CRLF, no final newline, any chunk size: the same records and the same digest."""
    text = to_text(rows)
    thirds = [to_text(rows[:500]).removesuffix(b"\n"), to_text(rows[500:501]), to_text(rows[501:])]
    variants: dict[str, tuple[Sequence[bytes], int]] = {
        "whole": ([text], 1 << 22),
        "cut": ([text], SMALL_CHUNK),
        "three": (thirds, SMALL_CHUNK),
        "gz": ([gzip.compress(text)], SMALL_CHUNK),
        "mixed": ([thirds[0], gzip.compress(thirds[1]), thirds[2]], 1 << 22),
        "crlf": ([to_text(rows, "\r\n")], SMALL_CHUNK),
        "open": ([text.removesuffix(b"\n")], SMALL_CHUNK),
    }
    digests, seen = set(), list[tuple[int, int]]()
    for name, (texts, chunk_bytes) in variants.items():
        sources = [_write(tmp_path / f"{name}{index}", part) for index, part in enumerate(texts)]
        seen.clear()
        meta = prepare(
            sources, tmp_path / name / "out", chunk_bytes=chunk_bytes, progress=lambda *done: seen.append(done)
        )
        digests.add(meta.digest)
        total = sum(source.stat().st_size for source in sources)
        assert seen == sorted(seen), "bytes on disk, compressed or not"
        assert seen[-1] == (total, total)
        assert np.array_equal(_words(tmp_path / name / "out"), _words(tmp_path / "whole/out"))
    assert len(digests) == 1


def test_the_digest_tells_data_apart(tmp_path: Path, rows: list[Row]) -> None:
    """One label, one order, or one way of counting changed: another digest."""
    changed = [["1" if row[0] == "0" else "0", *row[1:]] if index == 1_199 else row for index, row in enumerate(rows)]
    sources = {
        "a": rows,
        "b": changed,
        "c": [rows[1], rows[0], *rows[2:]],
    }
    digests = {
        prepare([_write(tmp_path / name, to_text(some))], tmp_path / f"{name}.out").digest
        for name, some in sources.items()
    }
    digests.add(prepare([tmp_path / "a"], tmp_path / "d.out", max_ind_range=50).digest)
    assert len(digests) == 4


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bad_row", [0, 777, 1_199])
def test_a_bad_row_is_named_and_nothing_is_left(tmp_path: Path, rows: list[Row], packed: bool, bad_row: int) -> None:
    """The line counts from 1 within its own file, also chunks later, in the second source and in gzip."""
    bad = [row[:38] if index == bad_row else row for index, row in enumerate(rows)]
    text = to_text(bad)
    good = _write(tmp_path / "good", to_text(rows[:100]))
    source = _write(tmp_path / "bad", gzip.compress(text) if packed else text)
    with pytest.raises(DataError) as caught:
        prepare([good, source], tmp_path / "out", chunk_bytes=SMALL_CHUNK)
    assert str(caught.value) == f"{source}:{bad_row + 1}: 38 columns, expected 40"
    assert _left_over(tmp_path) == ["bad", "good"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, rows: list[Row]) -> None:
    """Ctrl-C in the middle is as clean as an error."""
    source = _write(tmp_path / "a", to_text(rows))

    def interrupt(done: int, _: int) -> None:
        if done > 50_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([source], tmp_path / "out", chunk_bytes=SMALL_CHUNK, progress=interrupt)
    assert _left_over(tmp_path) == ["a"]


def killed_in_preparation(source: Path, out: Path) -> None:
    """Body of a process that is killed while it writes ``out``."""

    def kill(done: int, _: int) -> None:
        if done > 50_000:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare([source], out, chunk_bytes=SMALL_CHUNK, progress=kill)


@pytest.mark.parametrize("again", ["prepare", "info"])
def test_the_next_command_removes_what_a_killed_one_left(
    tmp_path: Path, rows: list[Row], again: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: it is named with its size. What a process still writes, or another target's, stays."""
    source = _write(tmp_path / "a", to_text(rows))
    if again == "info":
        prepare([source], tmp_path / "data" / "out")
    process = fork_server().Process(target=killed_in_preparation, args=(source, tmp_path / "data" / "out.killed"))
    process.start()
    process.join()
    (left,) = (tmp_path / "data").glob(".*.tmp")
    left = left.rename(left.with_name(left.name.replace("out.killed", "out")))
    with caplog.at_level("INFO", "harness"), temporary_beside(tmp_path / "data" / "out", "folder") as written:
        other = tmp_path / "data" / ".outer.1-ab.tmp"
        other.mkdir()
        if again == "info":
            measure(tmp_path / "data" / "out")
        else:
            prepare([source], tmp_path / "data" / "out")
        assert written.exists()
    assert _left_over(tmp_path / "data") == [other.name, "out"]
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]
    assert re.fullmatch(rf"note: {left}: removed \(\d\.\d MB\), which a process that was killed had left", line)


def test_two_at_once_prepare_the_same_data(tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: who comes second has what the first one made; another preparation is refused."""
    source = _write(tmp_path / "a.tsv", to_text(rows))
    both = Barrier(2, timeout=60)

    def write_meta_together(folder: Path, meta: Meta) -> None:
        write_meta(folder, meta)
        both.wait()

    monkeypatch.setattr("harness.data.prepare.write_meta", write_meta_together)
    with ThreadPoolExecutor(2) as threads:
        same = [threads.submit(prepare, [source], tmp_path / "out") for _ in range(2)]
        assert same[0].result() == same[1].result() == read_meta(tmp_path / "out")
        others = [threads.submit(prepare, [source], tmp_path / "other", max_ind_range=size) for size in (50, 60)]
        refused = [str(error) for each in others if (error := each.exception()) is not None]
    assert refused == [f"{tmp_path / 'other'}: exists and is not this preparation; remove it or choose another folder"]
    assert _left_over(tmp_path) == ["a.tsv", "other", "out"]


def test_a_folder_that_another_process_sweeps_before_it_is_locked_is_made_again(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: two that prepare the same data at once do not take each other's new folder for one of a killed process."""
    source, real, opened = _write(tmp_path / "a.tsv", to_text(rows)), os.open, list[str]()

    def opening(path: str | Path, flags: int, *args: Any, **how: Any) -> int:
        if str(path).endswith(".tmp") and not opened:
            opened.append(str(path))
            sweep(tmp_path / "out")
        return real(path, flags, *args, **how)

    monkeypatch.setattr("harness.data.leftovers.os.open", opening)
    assert prepare([source], tmp_path / "out") == read_meta(tmp_path / "out")
    assert opened
    assert _left_over(tmp_path) == ["a.tsv", "out"]


def test_another_preparation_is_not_overwritten(tmp_path: Path, rows: list[Row]) -> None:
    """A folder with other rows, another way of counting, or foreign files is refused and left alone."""
    source = _write(tmp_path / "a", to_text(rows))
    other = _write(tmp_path / "b", to_text(rows[:-1]))
    prepare([source], tmp_path / "out")
    before = (tmp_path / "out" / META_NAME).read_bytes()
    flipped = _write(tmp_path / "c", to_text([["1" if rows[0][0] == "0" else "0", *rows[0][1:]], *rows[1:]]))
    for sources, size in (([other], None), ([flipped], None), ([source], 50), ([source, source], None)):
        with pytest.raises(DataError, match=r"out: exists and is not this preparation"):
            prepare(sources, tmp_path / "out", max_ind_range=size)
    with pytest.raises(DataError, match=r"out: exists and is not this preparation"):
        prepare([source], tmp_path / "out", table_sizes=SIZES)
    prepare([source], tmp_path / "hashed", categories="hash", table_sizes=SIZES)
    with pytest.raises(DataError, match=r"hashed: exists and is not this preparation"):
        prepare([source], tmp_path / "hashed", categories="hash", table_sizes=SIZES[::-1])
    assert (tmp_path / "out" / META_NAME).read_bytes() == before
    (tmp_path / "home").mkdir()
    _write(tmp_path / "home/letter.txt", b"dear")
    for out in (tmp_path / "home", source):
        with pytest.raises(DataError, match=r"exists and is not this preparation"):
            prepare([source], out)
    assert _left_over(tmp_path / "home") == ["letter.txt"]


ONE_OF = "--max-ind-range, --table-rows: expected one of them for --categories hash"
WRONG: list[tuple[bytes | None, dict[str, Any], str]] = [
    *((content, {}, "a: expected at least one row") for content in (b"", gzip.compress(b""))),
    (gzip.compress(b"0\t" * 1_000)[:-9], {}, "a: damaged gzip file"),
    (gzip.compress(b"x")[:5], {}, "a: damaged gzip file"),
    (b"x" * 100_000, {}, "a:1: expected a row and its line end, got over 65536 bytes"),
    (b"\xff\xfe" * 50, {}, "a:1: 1 columns, expected 40"),
    (None, {}, "a: no such file"),
    (None, {"sources": []}, "expected at least one file"),
    (None, {"sources": [Path(__file__).parent]}, "is not a file"),
    (
        b"",
        {"categories": "hash"},
        f"{ONE_OF}, got none",
    ),
    (
        b"",
        {"categories": "hash", "max_ind_range": 5, "table_sizes": [5] * NUM_TABLES},
        f"{ONE_OF}, got both",
    ),
    *(
        (b"", {"categories": "hash", "max_ind_range": wrong}, f"--max-ind-range: expected 1 to 2147483647, got {wrong}")
        for wrong in (0, -5, 2**31)
    ),
]


@pytest.mark.parametrize(("content", "options", "message"), WRONG, ids=range(len(WRONG)))  # gzip holds the time
def test_what_cannot_be_prepared_is_one_line(
    tmp_path: Path, content: bytes | None, options: dict[str, Any], message: str
) -> None:
    """Empty, torn, foreign and missing files and senseless options are refused by name, and nothing is left."""
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError) as caught:
        prepare(**{"sources": [tmp_path / "a"], "out": tmp_path / "out", **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert _left_over(tmp_path) == ["a"] * (content is not None)


def test_a_crash_at_any_call_leaves_whole_data_or_none(tmp_path: Path, rows: list[Row]) -> None:
    """Law: wherever a process or the power ends, the folder is whole or is not there; once it is made, it stays."""
    root, left = tmp_path / "disk", tmp_path / "left"
    root.mkdir()
    source = tmp_path / "log.tsv"
    source.write_bytes(to_text(rows))
    made: list[Meta] = []

    def check() -> None:
        for loss in LOSSES:
            data = disk.after(loss, left) / "data"
            assert not made or data.exists()
            if data.exists():
                refuse_other(data, meta := read_meta(data), xxhash.xxh3_128((data / RECORDS_NAME).read_bytes()))
                assert meta.num_rows == len(rows)

    disk = Disk(root, check)
    with disk.installed():
        made.append(prepare([source], root / "data", chunk_bytes=2000))
    assert disk.num_calls > 5
