"""Figure of claim `failures`."""

from typing import Any

from analysis.figures import against
from analysis.tables import table


def draw(cells: Any, ax: Any) -> None:
    """Each strategy against the swept key."""
    against(table(cells), x="profile", y="overhead_frac", by="strategy", ax=ax)
    ax.set_xlabel("failures of one of 8 ranks in 56 h")
