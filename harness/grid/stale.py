"""Finished runs whose result other code computed: which they are, and what is done about them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from harness.core.errors import UserError
from harness.record.code import difference_of

Stale = Literal["fail", "rerun", "keep"]
"""What to do about stale runs: refuse, run them anew (the old result stands until then), or take them as they are."""

CHOICES: tuple[Stale, ...] = get_args(Stale)
_log = logging.getLogger(__name__)
_MAX_LISTED = 8
_HINT = (
    "--stale rerun runs them anew (an old result stands until the new one is finished), --stale keep takes them as "
    "they are, --stale fail (the default) stops here"
)


def stale_runs(done: Iterable[Path]) -> dict[Path, str]:
    """Of finished runs, those that other code computed than the present code; how that code differs, in words."""
    return {run_dir: words for run_dir in done if (words := difference_of(run_dir)) is not None}


def to_run_anew(done: Sequence[Path], choice: Stale) -> frozenset[Path]:
    """Of finished runs, those to run anew. With ``fail``, raises UserError if any is stale; it names them."""
    return chosen(stale_runs(done), len(done), choice)


def chosen(stale: Mapping[Path, str], num_done: int, choice: Stale) -> frozenset[Path]:
    """Of ``stale`` runs, with the words of how their code differs, those to run anew. Raises as :func:`to_run_anew`."""
    if not stale or choice == "rerun":
        return frozenset(stale)
    lines = [f"{run_dir}: {words}" for run_dir, words in stale.items()]
    shown = lines[:_MAX_LISTED] + ([f"and {len(lines) - _MAX_LISTED} more"] if len(lines) > _MAX_LISTED else [])
    if choice == "keep":
        _log.info("%d of %d finished runs are kept though other code computed them: %s", len(stale), num_done, lines[0])
        return frozenset()
    raise UserError(
        "\n".join([f"{len(stale)} of {num_done} finished runs were computed by other code:", *shown, _HINT])
    )
