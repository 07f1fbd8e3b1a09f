"""Damages of the bytes of a file, for fuzzers: what disks, editors and hands do to them."""

import json
import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]

_NUMBER = re.compile(rb"[0-9]+(\.[0-9]+)?")
TOKENS = (
    b"", b"-1", b"0", b"1", b"1e999", b"1e308", b"-1e308", b"9" * 20, b"9" * 400, b"9" * 5000, b"NaN", b"Infinity",
    b"nan", b"null", b"true", b'"x"', b"1_0", b"0x10", b"\xd9\xa1", b"13/32/2001 25:61", b"1/1/9999 1:00",
    b"[" * 500 + b"]" * 500, b"[" * 50_000, b"\x00", b",", b"\t", b"1e400",
    b'"', b"\\", b"\xff", b"\x1b[31m", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xc2\x85", b"\xe2\x80\xa8", b".inf",
    b"!!float x", b"!!bool maybe", b"!!timestamp x", b"!!binary x", b"!!set {x}", b"!x y", b"&a [*a]", b"{a: 1}",
    b"<<: *x", b"[1, 2]", b"- 1", b"|", b">", b"?", b"#", b"~",
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
