import bz2
import gzip
import io
import lzma
import os
import re
import signal
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xxhash

from harness.core.errors import DataError
from harness.data.delimited import AVAZU
from harness.data.prepare import prepare
from harness.data.records import (
    META_NAME,
    NUM_TABLES,
    RECORDS_NAME,
    Meta,
    Schema,
    Words,
    read_meta,
    refuse_other,
)
from harness.data.sources import by_numbers
from tests.crashes import LOSSES, Disk
from tests.data.logs import Row, naive_ids, naive_values, random_rows, to_text
from tests.forked import forked

SMALL_CHUNK = 3_000  # bytes: about ten rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return random_rows(1_200, seed=11)


def _write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def _words(folder: Path) -> Words:
    return np.fromfile(folder / RECORDS_NAME, np.int32).reshape(-1, read_meta(folder).num_columns)


def _left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


SIZES = tuple(range(3, 3 + NUM_TABLES))


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
def test_records_are_those_of_the_plainest_reading(tmp_path: Path, rows: list[Row], options: dict[str, Any]) -> None:
    """`number` counts in order of first appearance, after the modulus; `hash` takes values modulo the table's size.

    A table of numbered values has a row for each, and at least as many as are asked for. Labels become 0.0 or 1.0 and
    are counted; integers log(max(x, 0) + 1), so that negative and missing are 0. The meta is the one that the folder
    holds. Asked again, it writes nothing: a source's bytes matter, not its name.
    """
    source, out = _write(tmp_path / "a.tsv.gz", gzip.compress(to_text(rows))), tmp_path / "out"
    meta = prepare([source], out, chunk_bytes=SMALL_CHUNK, **options)
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
    before = (out / RECORDS_NAME).stat()
    assert prepare([source.rename(tmp_path / "b")], out, **options) == meta
    after = (out / RECORDS_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (_left_over(tmp_path), _left_over(out)) == (["b", "out"], [META_NAME, RECORDS_NAME])


def test_how_the_rows_reach_it_does_not_matter(tmp_path: Path, rows: list[Row]) -> None:
    """One file, three files, gzip, CRLF, no final newline, any chunk size: the same records and the same digest."""
    text = to_text(rows)
    thirds = [to_text(rows[:500]).removesuffix(b"\n"), to_text(rows[500:501]), to_text(rows[501:])]
    variants: dict[str, tuple[Sequence[bytes], int]] = {
        "whole": ([text], 1 << 22),
        "three": (thirds, 700),
        "mixed": ([thirds[0], gzip.compress(thirds[1]), thirds[2]], 1 << 22),
        "crlf": ([gzip.compress(to_text(rows, "\r\n"))], SMALL_CHUNK),
        "open": ([text.removesuffix(b"\n")], SMALL_CHUNK),
    }
    digests = set[str]()
    for name, (texts, chunk_bytes) in variants.items():
        sources = [_write(tmp_path / f"{name}{index}", part) for index, part in enumerate(texts)]
        seen = list[tuple[int, int]]()
        out = tmp_path / name / "out"
        meta = prepare(sources, out, chunk_bytes=chunk_bytes, progress=lambda *done, seen=seen: seen.append(done))
        digests.add(meta.digest)
        total = sum(source.stat().st_size for source in sources)
        assert seen == sorted(seen), "bytes on disk, compressed or not"
        assert seen[-1] == (total, total)
        assert np.array_equal(_words(out), _words(tmp_path / "whole/out"))
    assert len(digests) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_row_is_named_and_nothing_is_left(
    tmp_path: Path, rows: list[Row], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line counts from 1 within its own file, also chunks later, in the second source and in gzip.

    Ctrl-C in the middle is as clean as an error.
    """
    monkeypatch.setattr("harness.data.sources._HEAD_BYTES", SMALL_CHUNK)  # else it is found before the first is packed
    text = to_text([row[:38] if index == 777 else row for index, row in enumerate(rows)])
    sources = [tmp_path / "good", _write(tmp_path / "bad", gzip.compress(text) if packed else text)]
    _write(sources[0], to_text(rows[-100:]))
    with pytest.raises(DataError) as caught:
        prepare(sources, tmp_path / "out", chunk_bytes=SMALL_CHUNK)
    assert str(caught.value) == f"{sources[1]}:778: 38 columns, expected 40 separated by tabs"

    def interrupt(done: int, _: int) -> None:
        if done > 20_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(sources, tmp_path / "out", chunk_bytes=SMALL_CHUNK, progress=interrupt)
    assert _left_over(tmp_path) == ["bad", "good"]


def killed_in_preparation(source: Path, out: Path) -> None:
    """Body of a process that is killed while it writes ``out``."""

    def kill(done: int, _: int) -> None:
        if done > 50_000:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare([source], out, chunk_bytes=SMALL_CHUNK, progress=kill)


def test_the_next_command_replaces_what_a_killed_one_left(tmp_path: Path, rows: list[Row]) -> None:
    """Law: the same command succeeds, and nothing is left beside its folder."""
    source, out = _write(tmp_path / "a", to_text(rows)), tmp_path / "data" / "out"
    _, status = os.waitpid(forked(partial(killed_in_preparation, source, out)), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert _left_over(out.parent) == [".out.unfinished"]
    assert prepare([source], out) == read_meta(out)
    assert _left_over(out.parent) == ["out"]


def test_two_at_once_do_not_write_the_same_folder(tmp_path: Path, rows: list[Row]) -> None:
    """Law: who comes second is refused, and the first one is not disturbed."""
    source, refused = _write(tmp_path / "a.tsv", to_text(rows)), list[str]()

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            with pytest.raises(DataError) as caught:
                prepare([source], tmp_path / "out")
            refused.append(str(caught.value))

    assert prepare([source], tmp_path / "out", progress=meanwhile) == read_meta(tmp_path / "out")
    assert refused[0] == f"{tmp_path / 'out'}: another process is writing it; wait for it to end"
    assert _left_over(tmp_path) == ["a.tsv", "out"]


def test_the_current_folder_is_not_replaced(tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: an empty one is refused by its name."""
    source = _write(tmp_path / "a.tsv", to_text(rows))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(DataError, match=r"^\.: expected the name of a folder, got the current folder"):
        prepare([source], Path())


def test_another_preparation_is_not_overwritten(tmp_path: Path, rows: list[Row]) -> None:
    """A folder with other rows, another way of counting, or foreign files is refused and left alone."""
    flipped = ["1" if rows[0][0] == "0" else "0", *rows[0][1:]]
    source, other = _write(tmp_path / "a", to_text(rows)), _write(tmp_path / "b", to_text([flipped, *rows[1:]]))
    (tmp_path / "home").mkdir()
    _write(tmp_path / "home/letter.txt", b"dear")
    meta = prepare([source], tmp_path / "out")
    prepare([source], tmp_path / "hashed", categories="hash", table_sizes=SIZES)
    refused: list[tuple[list[Path], str, dict[str, Any]]] = [
        ([other], "out", {}),
        ([source, source], "out", {}),
        ([source], "out", {"max_ind_range": 50}),
        ([source], "out", {"table_sizes": SIZES}),
        ([source], "hashed", {"categories": "hash", "table_sizes": SIZES[::-1]}),
        ([source], "home", {}),
        ([source], "a", {}),
    ]
    for sources, out, options in refused:
        with pytest.raises(DataError, match=rf"{out}: exists and is not this preparation"):
            prepare(sources, tmp_path / out, **options)
    assert read_meta(tmp_path / "out") == meta
    assert _left_over(tmp_path / "home") == ["letter.txt"]


def test_numbers_in_names_give_the_order() -> None:
    """Law: the shell's order, in which day_10 comes before day_9, is not that of the rows.

    Names that differ in more than numbers, or in no number, and files of several folders have no order.
    """

    def ordered(*names: str) -> list[str]:
        return [str(path) for path in by_numbers([*map(Path, names)])]

    assert ordered("d/day_0.gz", "d/day_10", "d/day_11.gz", "d/day_9.gz") == [
        *("d/day_0.gz", "d/day_9.gz", "d/day_10", "d/day_11.gz")
    ]
    assert ordered("2014-11-2.csv", "2014-11-10.csv", "2014-9-30.csv")[0] == "2014-9-30.csv"
    assert ordered("train.txt") == ["train.txt"]
    for names in ("test.txt train.txt", "day_1 day_1.gz", "day_1 day_01", "a/day_1 b/day_0", "a_1 a_2 b_3"):
        with pytest.raises(DataError, match=r"^.*, .*: numbers in these names do not tell which rows are earlier; "):
            ordered(*names.split())
    for names in ("x x", "day_1 day_2 day_1"):
        with pytest.raises(DataError, match=r"^(\S+): begins with the same rows as \1, which would be taken twice; "):
            ordered(*names.split())


def test_the_same_rows_are_not_taken_twice(tmp_path: Path, rows: list[Row]) -> None:
    """Law: two sources whose first megabyte is equal, packed or not, are refused before any row is packed.

    Both are named. Shorter logs that begin alike and are not equal are taken.
    """
    text = to_text(rows)
    alike = text[: text.rindex(b"\n", 0, 80_000) + 1]
    plain, other = _write(tmp_path / "day_0", text), _write(tmp_path / "other", alike)
    (tmp_path / "link").symlink_to(plain)
    twins = [
        plain,
        tmp_path / "link",
        _write(tmp_path / "day_0.gz", gzip.compress(text)),
        _write(tmp_path / "crlf", to_text(rows, "\r\n")),
        _write(tmp_path / "open", text.removesuffix(b"\n")),
    ]
    for twin in twins:
        with pytest.raises(
            DataError, match=f"^{twin}: begins with the same rows as {plain}, which would be taken twice; "
        ):
            prepare([plain, other, twin], tmp_path / "out", progress=lambda *_: pytest.fail("packed"))
    assert prepare([plain, other], tmp_path / "out").num_rows == 1_200 + alike.count(b"\n")
    small = [_write(tmp_path / name, to_text(rows[:2])) for name in "ab"]
    with pytest.raises(DataError, match=f"^{small[1]}: begins with the same rows as {small[0]}"):
        prepare(small, tmp_path / "small")


def test_the_space_is_checked_before_a_row_is_packed(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the need is said, estimated by the beginnings of the files; a disk with less free space is refused.

    The estimate is within 2 %, packed or not, if later rows are as long as the first ones.
    """
    sources = [
        _write(tmp_path / "a.gz", gzip.compress(to_text(rows) * 8)),
        _write(tmp_path / "b", to_text(rows[::-1]) * 10),
    ]
    monkeypatch.setattr("harness.data.sources._HEAD_BYTES", 1 << 18)
    with caplog.at_level("INFO", "harness"):
        meta = prepare(sources, tmp_path / "out")
    _, line = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]
    found = re.fullmatch(rf"note: {tmp_path / 'out'}: about ([\d,]+) samples, 0\.00 GB \(.* GB free\)", line)
    assert found is not None
    assert int(found[1].replace(",", "")) == pytest.approx(meta.num_rows, rel=0.02)
    monkeypatch.setattr("harness.data.prepare.free_bytes", lambda _: 160 * 16_000)
    error = (
        rf"^{tmp_path / 'full'}: about [\d,]+ samples, 0\.00 GB, and 0\.00 GB are free; choose a folder on another disk"
    )
    with pytest.raises(DataError, match=error):
        prepare(sources, tmp_path / "full", progress=lambda *_: pytest.fail("packed"))
    assert _left_over(tmp_path) == ["a.gz", "b", "out"]


ONE_OF = "--max-ind-range, --table-rows: expected one of them for --categories hash"
WRONG: list[tuple[bytes | None, dict[str, Any], str]] = [
    *((content, {}, "a: expected at least one row") for content in (b"", gzip.compress(b""))),
    *((gzip.compress(b"0\t" * 1_000)[:size], {}, "a: damaged gzip file") for size in (-9, 5)),
    (b"x" * 100_000, {}, "a:1: expected a row and its line end, got over 65536 bytes"),
    (b"\xff\xfd" * 50, {}, "a:1: 1 columns, expected 40 separated by tabs; --format csv --schema FILE.yaml reads"),
    (None, {}, "a: no such file"),
    (None, {"sources": []}, "expected at least one file"),
    (None, {"sources": [Path(__file__).parent]}, "is not a file"),
    (b"", {"categories": "hash"}, f"{ONE_OF}, got none"),
    (b"", {"categories": "hash", "max_ind_range": 5, "table_sizes": [5] * NUM_TABLES}, f"{ONE_OF}, got both"),
    *((b"", {"max_ind_range": size}, f"--max-ind-range: expected 1 to 2147483647, got {size}") for size in (0, 2**31)),
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


def _archive(text: bytes, mode: Literal["w", "w:gz"]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        member = tarfile.TarInfo("train.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return file.getvalue()


def _zipped(text: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("train.txt", text)
    return file.getvalue()


KINDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "tar": (lambda text: _archive(text, "w"), "a tar archive, expected text, plain or gzip; `tar -xf '{}'` unpacks it"),
    "tar.gz": (lambda text: _archive(text, "w:gz"), "a tar archive, .*; `tar -xf '{}'` unpacks it"),
    "zip": (_zipped, "a zip archive, .*; `unzip '{}'` unpacks it"),
    "bz2": (bz2.compress, "a bzip2 file, .*; `bunzip2 -k '{}'` unpacks it"),
    "xz": (lzma.compress, "an xz file, .*; `unxz -k '{}'` unpacks it"),
    "zst": (lambda text: b"\x28\xb5\x2f\xfd" + text, "a zstd file, .*; `unzstd '{}'` unpacks it"),
    "parquet": (lambda text: b"PAR1\x15\x04" + text, "a Parquet file, .*; pandas' read_parquet and to_csv write it"),
    "utf16": (lambda text: text.decode().encode("utf-16"), "text in UTF-16, .*; `iconv -f UTF-16 -t UTF-8 '{}' > NEW`"),
    "gz.gz": (lambda text: gzip.compress(gzip.compress(text)), "a gzip file within gzip, .*; `gzip -cd '{}' > NEW`"),
    "zip.gz": (lambda text: gzip.compress(_zipped(text)), "a zip archive within gzip, .*; `gzip -cd '{}' > NEW`"),
    "lfs": (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS, .*; `git lfs pull`"),
    "html": (lambda _: b"<!DOCTYPE html>\n<html>\n", "a web page, .*; download the log again"),
    "bin": (lambda text: b"x" + bytes(9) + text, "a binary file, expected text, plain or gzip; "),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_no_text_is_refused_by_its_kind(tmp_path: Path, rows: list[Row], kind: str) -> None:
    """Law: whatever the format, one line names the kind and the next command, before any row of any file is packed.

    The last schema would read the rows of a tar archive: the archive's head is in a column that it does not name.
    """
    make, message = KINDS[kind]
    source = _write(tmp_path / f"a log.{kind}", make(to_text(rows)))
    good = _write(tmp_path / "good", to_text(rows))
    last = Schema(separator="\t", header=False, label="2", categories=("30",))
    for sources, columns in ([good, source], None), ([source], AVAZU), ([source], last):
        with pytest.raises(DataError, match=f"^{source}: {message.format(source)}"):
            prepare(sources, tmp_path / "out", columns=columns, progress=lambda *_: pytest.fail("packed"))
    assert _left_over(tmp_path) == [source.name, "good"]


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
