"""Figure of claim `hour`."""

from typing import Any

from analysis.figures import against
from analysis.tables import table


def draw(cells: Any, ax: Any) -> None:
    """Each strategy against the swept key."""
    against(table(cells), x="trace.law", y="loss", by="strategy", ax=ax)
    ax.set_xlabel("hour of the failure")
