"""Random failure logs of each format, and what a reading of one promises, counted another way."""

import csv
import io
import itertools
import json
import math
from functools import partial

from harness.traces.importers.findings import FailureLog
from tests.damage import Rng
from tests.traces import made_logs
from tests.traces.made_logs import Down

WRITERS = {**made_logs.WRITERS, "skypilot": partial(made_logs.skypilot, tick=10)}


def made(rng: Rng) -> list[Down]:
    """Twenty outages within a day, overlapping now and then."""
    starts_E = rng.choice(1000, 20, replace=False) + 40
    return sorted(
        Down(int(start), int(rng.integers(8)), int(start + rng.integers(1, 90)) if rng.random() < 0.9 else None)
        for start in starts_E
    )


def count_records(format: str, content: bytes) -> tuple[int, int]:
    """How many records the importer may have read at least and at most, counted another way."""
    text = content.decode("utf-8-sig")
    if format in ("infinitehbd", "skypilot", "philly"):
        return _count_json(format, json.loads(text))
    if format == "fta":
        lines = [line.split("\t") if "\t" in line else line.split() for line in io.StringIO(text, newline=None)]
        down = [fields for fields in lines if len(fields) in (8, 9) and fields[5].strip() not in ("1", "event_type")]
        return 0, len(down)
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(field.strip() for field in row)]
    num_rows = sum(format != "bamboo" or row[1].strip() == "remove" for row in rows)
    num_names = sum(row[0].strip().lower() in ("system", "node") or row[-1].strip() == "Same Event" for row in rows)
    return num_rows - num_names, num_rows


def _count_json(format: str, log: list) -> tuple[int, int]:  # pyright: ignore[reportMissingTypeArgument]
    if format == "skypilot":
        counts = log["data"]  # pyright: ignore
        falls = sum(max(0, int(before) - int(after)) for before, after in itertools.pairwise(counts))
        return falls, falls
    if format == "infinitehbd":
        starts = sum(event["event_type"] == "fault_start" for event in log)
        return starts, len(log)
    tried = [(job, attempt) for job in log for attempt in job["attempts"]]
    failed = [
        max(1, len({detail["ip"].strip() for detail in attempt["detail"]}))
        for job, attempt in tried
        if attempt is not job["attempts"][-1] or job["status"] == "Failed"
    ]
    return sum(failed), sum(failed)


def check_clean(log: FailureLog, format: str, content: bytes) -> None:
    """What a result promises."""
    least, most = count_records(format, content)
    assert least <= log.num_read <= most
    assert 0 <= log.length_h < 24 * 366 * 131
    keys = [(outage.start_h, outage.node) for outage in log.outages]
    assert keys == sorted(keys)
    assert {outage.node for outage in log.outages} <= set(log.nodes)
    assert list(log.nodes) == sorted(set(log.nodes))
    by_node: dict[str, float] = {}
    for outage in log.outages:
        assert math.isfinite(outage.start_h)
        assert by_node.get(outage.node, -1.0) <= outage.start_h
        by_node[outage.node] = outage.start_h if outage.end_h is None else outage.end_h
        assert outage.start_h <= by_node[outage.node] <= log.length_h
