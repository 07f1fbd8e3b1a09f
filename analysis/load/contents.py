"""Columns that distinguish cells of equal configs: digests of data and trace, and as a last resort the config's hash.

A config names data and trace by path. If a file changes under its path, the folder keeps cells of both contents.
"""

import os
from collections.abc import Sequence
from typing import Any

Frame = Any
"""A pandas DataFrame. Its own annotations leave open what indexing returns."""

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


def tell_apart(frame: Frame, keys: Sequence[str]) -> list[str]:
    """Fill the columns ``CONTENTS`` where finished rows differ only in content; returns the columns with values.

    Of rows that are equal in all columns and in their results, all but one get status ``copy``. ``keys``: the swept
    keys. If several digests are known, a row without one, as of older runs, counts as yet another content.
    """
    done = frame[(frame["status"] == "done") & frame["config_hash"].notna()]
    for key, name in _NAMES.items():
        several = done.groupby(name)[CONTENTS[key]].transform("nunique") > 1
        frame[key] = done.loc[several, CONTENTS[key]].fillna(_UNKNOWN).str[:_DIGITS]
    frame["config.hash"] = None
    identity = ["engine", "strategy", "seed", "trace", "profile", "num_ps", "job_h", *keys, *_NAMES]
    done = frame.loc[done.index]
    for _, twins in done[done.duplicated(identity, keep=False)].groupby(identity, dropna=False, sort=False):
        if twins["config_hash"].nunique() > 1:
            if twins.duplicated([*_RESULTS], keep=False).all() and len(twins.drop_duplicates([*_RESULTS])) == 1:
                *others, last = twins["began"].sort_values(kind="stable").index
                failure = f"the same setting and result as {frame.loc[last, 'cell']}; its config hash differs"
                frame.loc[others, ["status", "failure"]] = ["copy", failure]
            else:
                frame.loc[twins.index, "config.hash"] = twins["config_hash"].str[:_DIGITS]
    return [key for key in CONTENTS if frame[key].notna().any()]


def name_laws(frame: Frame) -> None:
    """Fill the column ``trace_law``: a name that all draws of one law share, and that no other trace has.

    Draws of ``trace.law``, and random windows, have the name from their config. Trace files are draws of one law if
    their headers differ only in the seed (:attr:`Trace.law`); the law's name is the common beginning of their names.
    Any other file is a law of its own.
    """
    files = frame[frame["trace"].notna() & frame["trace_law"].isna()]
    law = files["law_digest"].fillna("")
    names = files["trace"].groupby([law, files["trace"].where(law == "", "")], sort=False)
    shared = {key: os.path.commonprefix([*own]) or min(own) for key, own in names}  # noqa: RUF071 - of letters
    draws = {key: own.nunique() for key, own in names}
    short = {key: name.rstrip(_NUMBER) or name if draws[key] > 1 else name for key, name in shared.items()}
    for key, own in names:
        unique = (each[key] for each in (short, shared) if [*each.values()].count(each[key]) == 1)
        frame.loc[own.index, "trace_law"] = next(unique, f"{shared[key]} (law {(key[0] or str(None))[:_DIGITS]})")


def content_notes(frame: Frame) -> list[str]:
    """One line for each data path or trace name with several contents; one for cells that only hashes tell apart."""
    lines: list[str] = []
    for key, name in _NAMES.items():
        for own, same in frame[frame[key].notna()].groupby(name, sort=False) if key in frame else ():
            counts = same.groupby(key, sort=False).size()
            parts = ", ".join(f"{num} by digest {digest}" for digest, num in counts.items())
            other = "other data" if name == "data" else "another trace"
            lines.append(
                f"{len(same)} cells were computed with {other} under the same path, {name} {own}: {parts}; "
                "each content is a setting of its own"
            )
    twins = frame[frame["config.hash"].notna()] if "config.hash" in frame else frame[:0]
    if len(twins):
        rows = twins[["strategy", "seed", "config.hash"]].itertuples(index=False)
        parts = ", ".join(f"{strategy} of seed {seed} ({digest})" for strategy, seed, digest in rows)
        lines.append(
            f"{len(twins)} cells have equal settings but different config hashes and results, and are not paired: "
            f"{parts}; the older ones may be of other data or another trace"
        )
    return lines
