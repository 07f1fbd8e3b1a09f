"""Figure of claim `target`."""

from typing import Any

from analysis.figures import against
from analysis.tables import table


def draw(cells: Any, ax: Any) -> None:
    """Each strategy against the swept key."""
    against(table(cells), x="strategy.pls_target", y="overhead_frac", by="strategy", ax=ax)
    ax.set_xlabel("target of lost samples (PLS), fraction")
