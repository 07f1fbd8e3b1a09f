"""What tells cells of equal configs apart: the content of their data and trace, and in the end the config's hash.

A config names data and trace by path. If a file changes under its path, cells of both contents stay in the folder.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

CONTENTS = {"data.digest": "data_digest", "trace.digest": "trace_digest", "config.hash": "config_hash"}
"""Columns that are there, like swept keys, where cells differ in nothing else; the columns with the whole digests.

``data.digest`` and ``trace.digest`` have a value where several contents are on record for one path of data, or one name
of a trace; ``config.hash`` where finished cells of equal columns have other results.
"""

_NAMES = {"data.digest": "data", "trace.digest": "trace"}
_RESULTS = ("auc", "log_loss", "train_loss", "pls")
_UNKNOWN = "unknown"
_DIGITS = 8  # of a digest that is shown
_NUMBER = "-_.0123456789"  # at the end of a file's name: the number of a draw

Row = dict[str, Any]


def tell_apart(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Give finished rows the values of ``CONTENTS`` that tell them apart; returns the columns in use.

    Rows that are equal in all columns and in their results are one cell: all but one get status ``copy``. ``keys``: the
    swept ones. A digest that is not on record, as in older runs, counts as another content where several are known.
    """
    done = [row for row in rows if row["status"] == "done" and row.get("config_hash")]
    for key, name in _NAMES.items():
        for same in _grouped([row for row in done if row[name] is not None], [name]):
            digests = {row[CONTENTS[key]] for row in same}
            if len(digests - {None}) > 1:
                for row in same:
                    row[key] = (row[CONTENTS[key]] or _UNKNOWN)[:_DIGITS]
    identity = ["engine", "strategy", "seed", "trace", "profile", "num_ps", "job_h", *keys, *_NAMES]
    for twins in _grouped(done, identity):
        if len({row.get("config_hash") for row in twins}) > 1:
            _tell_twins_apart(twins)
    return [key for key in CONTENTS if any(row.get(key) for row in done)]


def _tell_twins_apart(twins: Sequence[Row]) -> None:
    *others, last = sorted(twins, key=lambda row: row["began"])
    if len({tuple(row.get(name) for name in _RESULTS) for row in twins}) > 1:
        for row in twins:
            row["config.hash"] = str(row["config_hash"])[:_DIGITS]
    else:
        failure = f"the same setting and result as {last['cell']}; its config hash differs"
        for row in others:
            row |= {"status": "copy", "failure": failure}


def name_laws(rows: Sequence[Row]) -> None:
    """Give each row with a trace its ``trace_law``, a name that draws of the same conditions share with no other trace.

    Draws of ``trace.law``, and random windows, have it from their config. Files are draws of one law if their headers
    differ in the seed only (``Trace.law``): its name is the beginning that all of their names share. Any other file,
    also one of a record that does not have the law, stands for itself.
    """
    files = [row for row in rows if row.get("trace") and not row["trace_law"]]
    by_law = _names_by_law(files).items()
    shared = {law: os.path.commonprefix([*names]) or min(names) for law, names in by_law}  # noqa: RUF071 - of letters
    short = {law: name.rstrip(_NUMBER) or name if law[0] else name for law, name in shared.items()}
    for row in files:
        law = _law_of(row)
        unique = (name[law] for name in (short, shared) if [*name.values()].count(name[law]) == 1)
        row["trace_law"] = next(unique, f"{shared[law]} (law {str(law[0])[:_DIGITS]})")


def _law_of(row: Row) -> tuple[str | None, str]:
    """The digest of a law, or the trace's own name where that is not known."""
    law = row.get("law_digest")
    return law, "" if law else row["trace"]


def _names_by_law(files: Sequence[Row]) -> dict[tuple[str | None, str], set[str]]:
    found: dict[tuple[str | None, str], set[str]] = {}
    for row in files:
        found.setdefault(_law_of(row), set()).add(row["trace"])
    return found


def contents_agree(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two cells may be compared: what either's folder tells its cells apart by is equal."""
    return all(left[column] == right[column] for key, column in CONTENTS.items() if left.get(key) or right.get(key))


def content_notes(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each path of data, or name of a trace, with several contents; one for what nothing tells apart."""
    lines: list[str] = []
    for key, name in _NAMES.items():
        for same in _grouped([cell for cell in cells if cell.get(key)], [name]):
            counts = [(group[0][key], len(group)) for group in _grouped(same, [key])]
            parts = ", ".join(f"{num} by digest {digest}" for digest, num in counts)
            other = "other data" if name == "data" else "another trace"
            lines.append(
                f"{len(same)} cells were computed with {other} under the same path, {name} {same[0][name]}: {parts}; "
                "each content is a setting of its own"
            )
    if twins := [cell for cell in cells if cell.get("config.hash")]:
        parts = ", ".join(f"{cell['strategy']} of seed {cell['seed']} ({cell['config.hash']})" for cell in twins)
        lines.append(
            f"{len(twins)} cells have equal settings but different config hashes and results, and are not paired: "
            f"{parts}; the older ones may be of other data or another trace"
        )
    return lines


def _grouped(rows: Sequence[Any], keys: Sequence[str]) -> list[list[Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return [*groups.values()]
