"""Damages of the bytes of a file: what disks, editors and hands do to them."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

TOKENS = (
    b"", b"-1", b"0", b"1", b"1e999", b"1e308", b"-1e308", b"9" * 20, b"9" * 400, b"9" * 5000, b"NaN", b"Infinity",
    b"nan", b"null", b"true", b'"x"', b"1_0", b"0x10", b"\xd9\xa1", b"13/32/2001 25:61", b"1/1/9999 1:00",
    b"[" * 500 + b"]" * 500, b"[" * 50_000, b"\x00", b",", b"\t", b"1e400",
    b'"', b"\\", b"\xff", b"\x1b[31m", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xc2\x85", b"\xe2\x80\xa8", b".inf",
    b"!!float x", b"!!bool maybe", b"!!timestamp x", b"!!binary x", b"!!set {x}", b"!x y", b"&a [*a]", b"{a: 1}",
    b"<<: *x", b"[1, 2]", b"- 1", b"|", b">", b"?", b"#", b"~",
)  # fmt: skip
"""What may stand in place of a number."""

OTHERS = (b"", b"\n", b"[]", b"{}", b"null", b"3", b'"', b"[" * 99_999)
"""Files that are not this file at all."""

RECODED: tuple[Callable[[str], bytes], ...] = (
    *(lambda text, name=name: text.encode(name) for name in ("utf-16", "utf-32", "utf-8-sig", "utf-7")),
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.replace("\n", "\r").encode(),
    lambda text: text.replace("n", "é").encode("latin-1", "replace"),
)
"""Other encodings, other line ends."""


def _flip_bits(draw: Draw, content: bytes) -> bytes:
    damaged = bytearray(content)
    for place in draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=5)):
        damaged[place // 8] ^= 1 << place % 8
    return bytes(damaged)


def _cut(draw: Draw, content: bytes) -> bytes:
    """The file ends, or begins, somewhere in the middle."""
    where = draw(st.integers(0, len(content) - 1))
    return content[:where] if draw(st.booleans()) else content[where:]


def _put_number(draw: Draw, content: bytes) -> bytes:
    """Another number, or something else, in place of a number."""
    if not (found := [*re.finditer(rb"[0-9]+(\.[0-9]+)?", content)]):
        return content
    match = found[draw(st.integers(0, len(found) - 1))]
    new = draw(st.sampled_from(TOKENS) | st.integers(0, 10 ** min(len(match[0]), 15)).map(lambda n: b"%d" % n))
    return content[: match.start()] + new + content[match.end() :]


def _move_lines(draw: Draw, content: bytes) -> bytes:
    """Some lines, or items of a JSON list, are missing, doubled or at another place."""
    with suppress(ValueError, RecursionError):
        if isinstance(items := json.loads(content), list):
            return json.dumps(_moved(draw, items)).encode()
    return b"".join(_moved(draw, content.splitlines(keepends=True)))


def _moved(draw: Draw, items: Sequence[Any]) -> list[Any]:
    begin, end, to = (draw(st.integers(0, len(items))) for _ in range(3))
    rest = [*items] if draw(st.booleans()) else [*items[:begin], *items[end:]]
    return [*rest[:to], *items[begin:end], *rest[to:]] if draw(st.booleans()) else rest


def _swap_columns(draw: Draw, content: bytes) -> bytes:
    """Of one line, or of all."""
    separator = b"\t" if b"\t" in content else b","
    lines = [line.split(separator) for line in content.split(b"\n")]
    for fields in lines if draw(st.booleans()) else [lines[draw(st.integers(0, len(lines) - 1))]]:
        one, other = (draw(st.integers(0, len(fields) - 1)) for _ in range(2))
        fields[one], fields[other] = fields[other], fields[one]
    return b"\n".join(map(separator.join, lines))


def _recode(draw: Draw, content: bytes) -> bytes:
    return draw(st.sampled_from(RECODED))(content.decode("utf-8", "replace"))


def _replace(draw: Draw, _: bytes) -> bytes:
    return draw(st.sampled_from(OTHERS) | st.binary(max_size=200))


_DAMAGES = (_put_number, _flip_bits, _move_lines, _swap_columns, _cut, _recode, _replace)


@st.composite
def damaged(draw: Draw, sound: st.SearchStrategy[bytes]) -> bytes:
    """A sound input after one damage, or two or three."""
    content = draw(sound)
    for damage in draw(st.lists(st.sampled_from(_DAMAGES), min_size=1, max_size=3)):
        content = damage(draw, content) if content else content
    return content
