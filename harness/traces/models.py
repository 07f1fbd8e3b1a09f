"""``--model fit:TRACE.csv`` and ``empirical:TRACE.csv``, as the command line has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import TraceError
from harness.traces.schedule import read_trace
from harness.traces.spec import GeneratorSpec


def spec_of_model(model: str, asked: Mapping[str, Any]) -> GeneratorSpec | None:
    """Parameters learned from the trace that ``model`` names, but for those in ``asked``; None if it names a law.

    Raises TraceError for another word before the colon, a trace that cannot be read, or too little in it to learn from.
    """
    how, colon, path = model.partition(":")
    if not colon:
        return None
    if how not in ("fit", "empirical") or not path:
        raise TraceError(f"--model: {how}:{path or '…'}; expected fit:TRACE.csv or empirical:TRACE.csv")
    from harness.traces.learn import spec_like  # noqa: PLC0415 - fits, and so scipy's optimisers

    return spec_like(read_trace(Path(path)), how, asked)
