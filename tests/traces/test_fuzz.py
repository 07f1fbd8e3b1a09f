"""Damaged logs: a clean result or one clear line, never a traceback, a hang or a wrong count."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import TraceError
from harness.core.seeds import generator
from harness.traces.importers import FORMATS
from harness.traces.importers.findings import FailureLog
from tests.traces import made_logs
from tests.traces.made_logs import Down, read

NUM_FILES = 500
WRITERS = {**made_logs.WRITERS, "skypilot": partial(made_logs.skypilot, tick=10)}

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]

_NUMBER = re.compile(rb"[0-9]+(\.[0-9]+)?")
TOKENS = (
    b"", b"-1", b"0", b"1", b"1e999", b"1e308", b"-1e308", b"9" * 20, b"9" * 400, b"9" * 5000, b"NaN", b"Infinity",
    b"nan", b"null", b"true", b'"x"', b"1_0", b"0x10", b"\xd9\xa1", b"13/32/2001 25:61", b"1/1/9999 1:00",
    b"[" * 500 + b"]" * 500, b"[" * 50_000, b"\x00", b",", b"\t", b'"', b"\\", b"\xff",
)  # fmt: skip


def flip_bytes(content: bytes, rng: Rng) -> bytes:
    """A few bits."""
    damaged = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def cut(content: bytes, rng: Rng) -> bytes:
    """The file ends, or begins, somewhere in the middle."""
    where = int(rng.integers(len(content)))
    return content[:where] if rng.random() < 0.7 else content[where:]


def cut_lines(content: bytes, rng: Rng) -> bytes:
    """Some lines are missing."""
    lines = content.splitlines(keepends=True)
    return b"".join(line for line in lines if rng.random() > 0.2)


def mix_lines(content: bytes, rng: Rng) -> bytes:
    """Lines or records out of order, some twice."""
    with suppress(ValueError, RecursionError):
        log = json.loads(content)
        if isinstance(log, list) and log:
            return json.dumps([log[number] for number in rng.integers(len(log), size=len(log))]).encode()
    lines = content.splitlines(keepends=True)
    return b"".join(lines[number] for number in rng.integers(len(lines), size=len(lines)))


def swap_columns(content: bytes, rng: Rng) -> bytes:
    """Of one line or of all."""
    separator = b"\t" if b"\t" in content else b","
    lines = content.split(b"\n")
    one = int(rng.integers(len(lines))) if rng.random() < 0.5 else None
    for number, line in enumerate(lines):
        fields = line.split(separator)
        if len(fields) > 1 and one in (None, number):
            first, second = rng.choice(len(fields), 2, replace=False)
            fields[first], fields[second] = fields[second], fields[first]
            lines[number] = separator.join(fields)
    return b"\n".join(lines)


def put_token(content: bytes, rng: Rng) -> bytes:
    """In place of a number."""
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = found[rng.integers(len(found))]
    return content[: match.start()] + TOKENS[rng.integers(len(TOKENS))] + content[match.end() :]


def change_digits(content: bytes, rng: Rng) -> bytes:
    """Numbers that are numbers still."""
    damaged = bytearray(content)
    digits = [place for place, byte in enumerate(content) if 48 <= byte < 58]
    for place in rng.choice(digits, min(len(digits), 4)) if digits else ():
        damaged[place] = 48 + int(rng.integers(10))
    return bytes(damaged)


def recode(content: bytes, rng: Rng) -> bytes:
    """Another encoding or other line ends."""
    text = content.decode("utf-8", "replace")
    encodings = ("utf-16", "utf-32", "utf-8-sig", "utf-7")
    choice = int(rng.integers(len(encodings) + 3))
    if choice < len(encodings):
        return text.encode(encodings[choice])
    ends = text.replace("\n", "\r\n"), text.replace("\n", "\r"), text.replace("n", "é")
    return ends[choice - len(encodings)].encode("latin-1", "replace")


def replace_all(content: bytes, rng: Rng) -> bytes:
    """Not this file at all."""
    others = b"", b"\n", b"[]", b"{}", b"null", b"3", b'"', b"[" * 99_999, rng.bytes(200)
    return others[rng.integers(len(others))]


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes, cut, cut_lines, mix_lines, swap_columns, put_token, put_token, change_digits, change_digits, recode,
    replace_all,
)  # fmt: skip


def mutate(content: bytes, rng: Rng) -> bytes:
    """One damage, or two or three."""
    for _ in range(max(1, int(rng.integers(-2, 4)))):
        if content:
            content = MUTATIONS[rng.integers(len(MUTATIONS))](content, rng)
    return content


def made(rng: Rng) -> list[Down]:
    """Twenty outages within a day, overlapping now and then."""
    starts_E = rng.choice(1000, 20, replace=False) + 40
    return sorted(
        Down(int(start), int(rng.integers(8)), int(start + rng.integers(1, 90)) if rng.random() < 0.9 else None)
        for start in starts_E
    )


def count_records(format: str, content: bytes) -> tuple[int, int]:
    """How many records the importer may have read at least and at most, counted another way."""
    text = content.decode("utf-8-sig")
    if format in ("infinitehbd", "skypilot", "philly"):
        return _count_json(format, json.loads(text))
    if format == "fta":
        lines = [line.split("\t") if "\t" in line else line.split() for line in io.StringIO(text, newline=None)]
        down = [fields for fields in lines if len(fields) in (8, 9) and fields[5].strip() not in ("1", "event_type")]
        return 0, len(down)
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(field.strip() for field in row)]
    num_rows = sum(format != "bamboo" or row[1].strip() == "remove" for row in rows)
    num_names = sum(row[0].strip().lower() in ("system", "node") or row[-1].strip() == "Same Event" for row in rows)
    return num_rows - num_names, num_rows


def _count_json(format: str, log: list) -> tuple[int, int]:  # pyright: ignore[reportMissingTypeArgument]
    if format == "skypilot":
        counts = log["data"]  # pyright: ignore
        falls = sum(max(0, int(before) - int(after)) for before, after in itertools.pairwise(counts))
        return falls, falls
    if format == "infinitehbd":
        starts = sum(event["event_type"] == "fault_start" for event in log)
        return starts, len(log)
    tried = [(job, attempt) for job in log for attempt in job["attempts"]]
    failed = [
        max(1, len({detail["ip"].strip() for detail in attempt["detail"]}))
        for job, attempt in tried
        if attempt is not job["attempts"][-1] or job["status"] == "Failed"
    ]
    return sum(failed), sum(failed)


def check_clean(log: FailureLog, format: str, content: bytes) -> None:
    """What a result promises."""
    least, most = count_records(format, content)
    assert least <= log.num_read <= most
    assert 0 <= log.length_h < 24 * 366 * 131
    keys = [(outage.start_h, outage.node) for outage in log.outages]
    assert keys == sorted(keys)
    assert {outage.node for outage in log.outages} <= set(log.nodes)
    assert list(log.nodes) == sorted(set(log.nodes))
    by_node: dict[str, float] = {}
    for outage in log.outages:
        assert math.isfinite(outage.start_h)
        assert by_node.get(outage.node, -1.0) <= outage.start_h
        by_node[outage.node] = outage.start_h if outage.end_h is None else outage.end_h
        assert outage.start_h <= by_node[outage.node] <= log.length_h


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_logs(tmp_path: Path, format: str) -> None:
    """500 of each format: whatever is read keeps its promises, whatever is refused is refused in one line."""
    num_read = num_refused = 0
    for number in range(NUM_FILES):
        rng = generator(11, format, number)
        content = mutate(WRITERS[format](made(rng)).encode(), rng)
        try:
            log = read(tmp_path, format, content)
        except TraceError as error:
            num_refused += 1
            message = str(error)
            assert message.startswith(str(tmp_path / f"made.{format}")), number
            assert message.isprintable(), number
            assert len(message) < len(str(tmp_path)) + 250, number
        else:
            num_read += 1
            check_clean(log, format, content)
    assert num_read > NUM_FILES / 10
    assert num_refused > NUM_FILES / 10


@pytest.mark.parametrize("format", FORMATS)
def test_sound_logs(tmp_path: Path, format: str) -> None:
    """The judge of the damaged ones has nothing against those that are not."""
    for number in range(20):
        content = WRITERS[format](made(generator(11, format, number))).encode()
        check_clean(read(tmp_path, format, content), format, content)
