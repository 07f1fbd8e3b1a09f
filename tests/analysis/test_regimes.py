"""Which strategy for which regime: the cheapest that is shown to be harmless, and nothing below the noise."""

from analysis.blocks import Block, Line
from analysis.regimes import Regime, regime_html, regime_table, regimes
from analysis.stats import Estimate, estimate
from tests.analysis.shown import shown


def line(strategy: str, overhead: float, *differences: float) -> Line:
    """A strategy with its emulated overhead and its paired differences of AUC."""
    costs: dict[str, Estimate | None] = {"overhead_frac": estimate([overhead] * max(1, len(differences)))}
    return Line(strategy, strategy, [], estimate(differences), costs)


def block(title: str, *lines: Line) -> Block:
    """A setting with its reference."""
    return Block({}, title, [line("none", 0.0, 0.0, 0.0, 0.0), line("never_save", 0.001, -0.1, -0.1, -0.1), *lines])


RARE = block(
    "trace rare",
    line("full", 0.08, 0.0, 0.0, 0.0),
    line("cpr_vanilla", 0.0049, -2e-3, -2.1e-3, -1.9e-3),
    line("cpr_mfu", 0.0053, -1e-4, 2e-4, -2e-4),
    line("cpr_ssu", 0.0054, -1e-4, 2e-4, -1e-4),
)
DENSE = block("trace dense", line("full", 0.2, 0.0, 0.0, 0.0), line("cpr_mfu", 0.1, -5e-3, -5.1e-3, -5.2e-3))
OPEN = block(
    "trace open",
    line("full", 0.08, 0.0, 0.0, 0.0),
    line("partial", 0.04, -2e-4, -3e-4, -4e-4),
    line("cpr_vanilla", 0.0049, -3e-3, 1e-3, -1e-3),
    line("cpr_mfu", 0.05, -3e-3, 1e-3, -1e-3),
)
SINGLE = block("trace single", line("full", 0.2, 0.0), line("cpr_mfu", 0.1, -5e-3))


def names(regime: Regime) -> tuple[list[str], list[str], list[str]]:
    """Taken, open, harmful."""
    taken, undecided, harmful = (
        [each.strategy for each in group] for group in (regime.taken, regime.open, regime.harmful)
    )
    return taken, undecided, harmful


def test_the_cheapest_harmless_strategies_are_taken() -> None:
    """A cheaper one that is seen to lose AUC is named as such; equal costs are ties; controls are no choice."""
    rare, dense = regimes([RARE, DENSE])
    assert names(rare) == (["cpr_mfu", "cpr_ssu"], [], ["cpr_vanilla"])
    assert names(dense) == (["full"], [], ["cpr_mfu"])


def test_a_wide_interval_is_no_proof_of_harmlessness() -> None:
    """One that reaches 0 and beyond the tolerated loss is open, however cheap, and named only if it is the cheaper one;
    a loss that is certain but within what is tolerated does not stand in the way.
    """
    (regime,) = regimes([OPEN])
    assert names(regime) == (["partial"], ["cpr_vanilla"], [])


def test_one_seed_tells_nothing() -> None:
    """Without an interval nothing is taken."""
    (single,) = regimes([SINGLE])
    assert single.unsure
    assert single.taken == ()


def test_the_table_needs_two_regimes() -> None:
    """With one there is nothing to choose by; with more, console and report say the same."""
    assert regime_table([RARE]) is None
    assert regime_html([RARE]) == ""
    table = regime_table([RARE, DENSE, SINGLE])
    assert table is not None
    text, page = shown(table), regime_html([RARE, DENSE, SINGLE])
    for words in ("cpr_mfu, cpr_ssu", "too few seeds", "8.00"):
        assert words in text
        assert words in page
