"""Judge and figure of claim `emulation`: overhead and quality of one job and strategy are one row."""

import math
from typing import Any

from analysis.claims import MEASURES, Row, Verdict, joined, matching, shown, within, worst
from analysis.figures import front
from analysis.stats import AUC, BASELINE, DROP, regimes_of, verdicts_of
from analysis.tables import table

_ARMS = ("cpr_mfu", "cpr_ssu")
_DIVIDES = "strategy.interval_counts_ranks"
_QUALITY: dict[str, Verdict] = {"inferior": "not reproduced", "open": "cannot be told"}


def judge(cells: Any) -> list[Row]:
    """A row for each profile and CPR strategy. A row has one verdict, the worst of up to four verdicts.

    For the poster's job: the part of the overhead of ``full`` that the strategy removes, and its log loss. For every
    job: non-inferiority by final AUC, and by drops of AUC if they are on record.
    """
    own = matching(cells, {"strategy": [BASELINE, "full", *_ARMS]})
    quality: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measure in (AUC, DROP):
        blocks = regimes_of(own, measure)
        for block, verdicts in zip(blocks, verdicts_of(blocks), strict=True):
            job = block.setting["profile"], block.setting.get(_DIVIDES) is not False
            for each in verdicts:
                if each.strategy in _ARMS:
                    quality.setdefault((*job, each.strategy), {})[measure.name] = each
    return [
        _row(own, {"profile": profile, "strategy": name, _DIVIDES: [True, None] if is_divided else [False]}, found)
        for (profile, is_divided, name), found in sorted(quality.items(), key=_place)
    ]


def _place(of: tuple[tuple[str, bool, str], Any]) -> tuple[str, bool, int]:
    (profile, is_divided, name), _ = of
    return profile, not is_divided, _ARMS.index(name)


def _row(cells: Any, arm: dict[str, Any], quality: dict[str, Any]) -> Row:
    runs = matching(cells, arm)
    parts: list[tuple[str, str, Verdict, str]] = []  # name, ours, verdict, reason
    published = "quality on par [read]"
    if arm["profile"] == "poster50":
        published = "over 91 % removed, log loss at most 0.8·10⁻³ worse, on par [read]"
        for name, words, low, high in (
            ("removed", "removed {} %", 91, math.inf),
            ("log_loss_more", "log loss {}·10⁻³ worse", -math.inf, 0.8),
        ):
            part = within(name, "", MEASURES[name].mean(runs, cells), low, high)
            parts.append((words.partition(" {")[0], words.format(part.ours), part.verdict, part.why))
    for name, each in quality.items():
        words = "AUC loss" if name == "auc" else "drops"
        if _is_known(runs, name):
            verdict = _QUALITY.get(each.verdict, "reproduced")
            parts.append((words, f"{words} {shown(each.loss, 1e3)}·10⁻³", verdict, each.sentence))
    what = f"`{arm['strategy']}`, `{arm['profile']}`" + ", interval not divided by k" * (arm[_DIVIDES] == [False])
    why = [f"{name}: {verdict}" + f" ({reason})" * bool(reason) for name, _, verdict, reason in parts]
    why += [] if _is_known(runs, "drop") else ["drops are not on record"]
    return Row(
        what,
        published,
        "; ".join(ours for _, ours, *_ in parts),
        len(runs),
        worst(each[2] for each in parts),
        joined(*why),
    )


def _is_known(runs: Any, column: str) -> bool:
    return bool(runs[column].notna().any())


def draw(cells: Any, ax: Any) -> None:
    """Loss against overhead of the job of the poster, its interval divided by k."""
    own = matching(cells, {"profile": "poster50", _DIVIDES: [True, None]})
    front(table(own), x="overhead_frac", y="loss", by="strategy", ax=ax)
