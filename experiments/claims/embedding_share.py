"""Judge of claim `embedding_share`: the part of a step that embedding access takes."""

from typing import Any

from analysis.claims import Row, measured, middle

_PAPER = "about 75 (65 to 85) [read]"


def judge(results: Any) -> list[Row]:
    """Rows for a plain DLRM in one process, and for 2 PS ranks without a cache. A result is a round of a variant."""
    plain, rpc = (results[results["variant"] == name] for name in ("plain", "rpc"))
    rows: list[Row] = []
    if len(plain):
        what = "plain DLRM in one process: lookups, their gradients and updates, % of a step"
        rows.append(_row(what, 100 * plain["embedding"] / plain["step"], plain, ""))
    if len(rpc):
        what = "`rpc`, 2 ranks, no cache: all but the dense network, % of a step"
        requests = (100 * (rpc["start"] + rpc["finish"]) / rpc["step"]).to_list()
        share = 100 * (rpc["step"] - rpc["dense"]) / rpc["step"]
        rows.append(_row(what, share, rpc, f"; requests alone {middle(requests)} %"))
    return rows


def _row(what: str, share: Any, own: Any, why: str) -> Row:
    step = f"step {middle(own['step'].to_list())} ms"
    return measured(what, _PAPER, share.to_list(), 65, 85, why=step + why)
