"""The lines below a table of strategies: cells without a partner, what is compared, cells that are left out."""

from collections.abc import Iterator, Sequence

from analysis.load import Frame, content_notes, plain
from analysis.stats import (
    AUC,
    BASELINE,
    DROP,
    Block,
    Line,
    equal_runs,
    measures_of,
    own_options,
    rounding_text,
    seeds_text,
)
from analysis.tables.builder import show_interval
from analysis.tables.columns import ON_REQUEST, columns_of, has_shared, is_longer_than_the_job, is_swept

CAPTION = (
    "Means over n runs, ± half of the 95 % confidence interval (Student's t; ? with one seed). "
    "ΔAUC to none is paired by seed. Save to total: overhead emulated by the profile, % of the job. "
    "Stall: seconds measured on this machine."
)
_MOST_COPIES = 3  # that have a line of their own
MORE_THAN_THE_JOB = (
    "† The profile's overhead is longer than the job itself, which no real job would accept. See "
    "strategy.interval_samples, the profile and the trace."
)


def footnotes(blocks: Sequence[Block], names: Sequence[str] = (), *, explain: bool = True) -> list[str]:
    """Lines below the table: cells without a partner, differing options, the effect of rounding if known, the mark †.

    ``explain``: adds how the numbers are computed, and the meaning of columns that only some tables have. ``names``: of
    the columns that were asked for.
    """
    rounded: dict[str, list[str]] = {}
    for block in blocks:
        if block.rounding:
            rounded.setdefault(rounding_text(block.rounding, block.measure), []).append(block.title)
    rounding = [f"{', '.join(titles)}: {text}" if len(rounded) > 1 else text for text, titles in rounded.items()]
    is_marked = any(is_longer_than_the_job(line) for block in blocks for line in block.lines)
    there = (column for block in blocks for column in columns_of(block))
    shown = (each.note for each in there if each.note and (each.order < ON_REQUEST or each.name in names))
    found = [
        *(_sweep_notes(blocks) if is_swept(blocks) else ()),
        *_partner_notes(blocks),
        *(f"{block.title}: {line}" if block.title else line for block in blocks for line in comparable(block)),
        *_measure_notes(blocks),
        *_option_notes(blocks),
        *rounding,
        *([MORE_THAN_THE_JOB] if is_marked else []),
    ]
    return [CAPTION, *found, *dict.fromkeys(shown)] if explain else found


def comparable(block: Block) -> list[str]:
    """Lines on what a table compares: the pairs that unequal strategies share, and runs that are equal to the bit."""
    notes: list[str] = []
    if has_shared(block):
        shared = next(line.shared_keys for line in block.lines if line.shared_keys is not None)
        lacking = [line.label for line in block.lines if line.shared is None]
        others = f" but {', '.join(lacking)}" if lacking else ""
        over = f"{len(shared)} pairs of seed and trace that all{others} have ({seeds_text(seed for seed, _ in shared)})"
        what = (
            f"compare them by the column shared, over the {over}" if shared else "none is common to all: compare none"
        )
        notes.append(f"Strategies have unequal seeds or traces; {what}.")
    for line, other, num, of in equal_runs(block):
        binds = ": the budget never binds" * (line.has_budget and other.has_budget)
        cells = f"all {num} cells that both have{binds}" if num == of else f"{num} of {of} cells"
        notes.append(f"{line.label} is equal to {other.label} to the bit in {cells}.")
    return notes


def _sweep_notes(blocks: Sequence[Block]) -> Iterator[str]:
    """Lines on what is equal in all cells of the table of a sweep: the AUC of ``none``, and the number of runs."""
    aucs: dict[str, list[str]] = {}
    for block in blocks:
        for line in block.lines:
            if line.strategy == BASELINE:
                aucs.setdefault(show_interval(line.estimate("auc"), digits=5), []).append(block.title)
    for auc, titles in aucs.items():
        where = f" ({'; '.join(titles)})" if len(aucs) > 1 else ""
        yield f"AUC of {BASELINE}, the runs without failures{where}: {auc}."
    nums = {len(line.cells) for block in blocks for line in block.lines}
    each = f"n = {nums.pop()} runs in each cell. " if len(nums) == 1 else ""
    yield f"{each}ΔAUC: difference to {BASELINE}; total: overhead in % of the job; --columns shows other columns."


def _measure_notes(blocks: Sequence[Block]) -> list[str]:
    """Lines on cells whose record lacks a measure that is shown."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    if not blocks:
        return []
    cells: Frame = pd.concat([line.cells for block in blocks for line in block.lines])
    notes: list[str] = []
    for each in dict.fromkeys((blocks[0].measure, *measures_of(cells))):
        if each is not AUC and (lacking := int(cells[each.name].isna().sum())):
            why = ": of some failure no drop was recorded" if each is DROP else ""
            why = ": they never got there, and means are of the others" if each.in_hours else why
            notes.append(f"{each.title} is not on record for {lacking} of {len(cells)} cells{why}.")
    return notes


def _option_notes(blocks: Sequence[Block]) -> list[str]:
    """A line for each strategy option whose value differs between strategies."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    cells = plain(pd.concat([line.cells for block in blocks for line in block.lines])) if blocks else pd.DataFrame()
    notes: list[str] = []
    for key in own_options(cells):
        values = cells[["strategy", key]].dropna().set_index("strategy")[key].to_dict()
        if len(set(values.values())) > 1:
            words = (f"{value} for {strategy}" for strategy, value in values.items())
            notes.append(f"{key} differs between strategies: {', '.join(words)}.")
    return notes


def _partner_notes(blocks: Sequence[Block]) -> list[str]:
    """A line for each strategy with cells that have no partner of strategy ``none``, with the reasons."""
    lines = [(block, line) for block in blocks for line in block.lines if line.unpaired and line.strategy != BASELINE]
    if lines and not any(line.strategy == BASELINE for block in blocks for line in block.lines):
        hint = f"the same grid with strategy.name={BASELINE} adds them"
        return [f"ΔAUC is unknown: there is no finished cell of {BASELINE}; {hint}."]
    return [_partner_note(block.title if len(blocks) > 1 else "", line) for block, line in lines]


def _partner_note(title: str, line: Line) -> str:
    where, num = f"{title}: " if title else "", len(line.cells)
    reasons: dict[str, list[int]] = {}
    for seed, why in line.unpaired:
        reasons.setdefault(why, []).append(seed)
    parts = "; ".join(f"{why} for {seeds_text(seeds)}" for why, seeds in reasons.items())
    kept = f"is over {num - len(line.unpaired)} of {num} cells" if len(line.unpaired) < num else "is unknown"
    return f"{where}ΔAUC of {line.label} {kept}: {parts}."


def missing(frame: Frame) -> list[str]:
    """Lines on cells that are not done, results of different code, data or trace, and records with a contradiction.

    Of many copies the first three have a line of their own.
    """
    named = frame[~frame["status"].isin(["done", "copy"])]
    rows = named[["status", "cell", "failure"]].astype(object).fillna("").itertuples(index=False)
    lines = [f"{status}: {cell}" + (f": {failure}" if failure else "") for status, cell, failure in rows]
    lines += copies(frame)
    codes = frame.loc[frame["status"] == "done", "code"].fillna("code not recorded").value_counts(sort=False)
    if len(codes) > 1:
        counts = ", ".join(
            f"{count} by {code}" for code, count in codes.sort_values(ascending=False, kind="stable").items()
        )
        lines.append(
            f"mixed: {counts}: these results were computed by different code; the grid's command, with `plugins` and "
            "all strategies, makes them equal"
        )
    lines += content_notes(frame)
    disagreeing = frame.loc[frame["disagreement"].notna(), ["cell", "disagreement"]]
    return lines + [f"disagrees: {cell}: {problem}" for cell, problem in disagreeing.itertuples(index=False)]


def copies(*frames: Frame) -> list[str]:
    """Lines on older runs of cells, which do not count: the first three are named, the others counted."""
    each = [frame.loc[frame["status"] == "copy", ["cell", "failure"]] for frame in frames]
    lines = [f"copy: {cell}: {why}" for own in each for cell, why in own.itertuples(index=False)]
    num_more = len(lines) - _MOST_COPIES
    more = [f"copy: {num_more} more older runs of cells that have a newer result"] if num_more > 0 else []
    return lines[:_MOST_COPIES] + more


def damaged_cells(*frames: Frame) -> list[str]:
    """One line for each damaged cell: the file, and what is wrong with it."""
    return [failure for frame in frames for failure in frame.loc[frame["status"] == "damaged", "failure"]]
