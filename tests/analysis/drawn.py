"""Laws that every figure of a claim keeps."""

from typing import TYPE_CHECKING

from analysis.claims.page import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(found: Finding) -> "Figure":
    """The figure of a finding: an axis that is not linear says so, and no legend lies over a panel."""
    figure = found.figure
    assert figure is not None
    figure.draw_without_rendering()
    legends = [each for each in (*figure.legends, *(axes.get_legend() for axes in figure.axes)) if each is not None]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_scale() == "linear" or "(log" in axis.get_label_text(), axis.get_label_text()
        for legend in legends:
            assert not legend.get_window_extent().overlaps(axes.bbox), "a legend lies over a panel"
    return figure
