"""Measures of quality: what a loss is the difference of, and the loss that is accepted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One column of a frame by which strategies are compared.

    ``sign``: 1 where more is worse, -1 where less is: a loss is ``sign`` times the difference to ``none``. ``margin``:
    the largest loss that is accepted, unless another is given.

    The margin of AUC and of log loss is half of 0.001, the difference that papers on click-through rates call
    significant in both (AutoInt, arXiv 1810.11921, section 5.1.2): a strategy that is non-inferior keeps more than half
    of what a better model would gain. That of normalised entropy is the same, divided by the entropy of Kaggle's mean
    label (0.256: 0.57 nats).
    """

    name: str
    column: str
    title: str
    sign: int
    margin: float


DEFAULT_MARGIN = 5e-4
"""Margin of AUC."""

AUC = Measure("auc", "auc", "AUC", -1, DEFAULT_MARGIN)
MEASURES = {
    each.name: each
    for each in (
        AUC,
        Measure("auc_mean10", "auc_mean10", "AUC (mean of 10)", -1, DEFAULT_MARGIN),
        Measure("log_loss", "log_loss", "log loss", 1, 5e-4),
        Measure("ne", "ne", "NE", 1, 9e-4),
    )
}
