"""Failure logs in the original form of each public format, made from the descriptions that the importers cite.

And what a reading of one promises, counted another way.
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from harness.traces.importers import read_log
from harness.traces.importers.findings import FailureLog, LogFormat

BEGAN = datetime(2004, 10, 1)
NUM_NODES = 8
LANL_NAMES = (
    "System,machine type,nodes,procstot,procsinnode,nodenum,nodenumz,node install,node prod,node decom,fru type,mem,"
    "cputype,memtype,num intercon,purpose,Prob Started,Prob Fixed,Down Time,Facilities,Hardware,Human Error,Network,"
    "Undetermined,Software,Same Event"
)


@dataclass(frozen=True, order=True)
class Down:
    """``node`` (0 to 7) was down from minute ``start`` to minute ``end``, since midnight of BEGAN."""

    start: int
    node: int
    end: int | None


MADE = (Down(60, 1, 90), Down(60, 7, 200), Down(300, 1, 301), Down(300, 2, 1500), Down(1000, 4, None))


def events(*events: tuple[float, str, str]) -> str:
    """InfiniteHBD's, of (day, start or end, node)."""
    kind = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}
    return json.dumps(
        [
            {"node_id": node, "event_time": day, "event_type": f"fault_{what}", "fault_type": kind}
            for day, what, node in events
        ],
        indent=4,
    )


def infinitehbd(downs: Sequence[Down]) -> str:
    starts = [(down.start / 1440, "start", f"n{down.node}") for down in downs]
    ends = [(down.end / 1440, "end", f"n{down.node}") for down in downs if down.end is not None]
    return events(*sorted(starts + ends))


def lanl_line(started: str, fixed: str, down_minutes: str, *, node: str = "3", system: int = 20) -> str:
    left = f"{system},cluster,{NUM_NODES},2048,4,{node},{node},1-Oct,1-Dec,current,part,16,2,2,2,compute"
    return f"{left},{started},{fixed},{down_minutes},,CPU,,,,,No"


def us_date(minute: int | None) -> str:
    if minute is None:
        return ""
    moment = BEGAN + timedelta(minutes=minute)
    return f"{moment.month}/{moment.day}/{moment.year} {moment.hour}:{moment.minute:02}"


def lanl(downs: Sequence[Down]) -> str:
    lines = [LANL_NAMES]
    for down in sorted(downs, key=lambda down: down.node):
        minutes = "" if down.end is None else str(down.end - down.start)
        lines.append(lanl_line(us_date(down.start), us_date(down.end), minutes, node=str(down.node)))
    return "\n".join(lines) + "\n"


def bamboo(downs: Sequence[Down]) -> str:
    """All there at 0; an instance that comes back keeps its name."""
    events = [(down.start, "remove", down.node) for down in downs]
    events += [(down.end, "add", down.node) for down in downs if down.end is not None]
    lines = [f"0,add,n{node}" for node in range(NUM_NODES)]
    lines += [f"{minute * 60_000},{what},n{node}" for minute, what, node in sorted(events)]
    return "\r\n".join(lines) + "\r\n"


def counts(downs: Sequence[Down], *, tick: int) -> list[int]:
    """How many nodes are up at every ``tick`` of the first 1,600 minutes."""
    return [
        NUM_NODES - sum(down.start <= minute < (9999 if down.end is None else down.end) for down in downs)
        for minute in range(0, 1600, tick)
    ]


def skypilot(downs: Sequence[Down], *, with_prices: bool = True, tick: int = 10) -> str:
    data = counts(downs, tick=tick)
    log: dict[str, object] = {"metadata": {"gap_seconds": 60 * tick}, "data": data}
    if with_prices:
        log["prices"] = [1.3942] * len(data)
    return json.dumps(log)


def intervals(downs: Sequence[Down], *, per_minute: float = 60, base: float = 0) -> str:
    """In units of which a minute has ``per_minute``."""

    def text(minute: int | None) -> str:
        return "" if minute is None else repr(base + minute * per_minute)

    return "\n".join(["node,start,end", *(f"n{down.node},{text(down.start)},{text(down.end)}" for down in downs)])


def slurm(downs: Sequence[Down]) -> str:
    """As ``sacctmgr show event -P`` prints it."""

    def text(minute: int | None) -> str:
        return "Unknown" if minute is None else (BEGAN + timedelta(minutes=minute)).isoformat()

    lines = ["Cluster|NodeName|TimeStart|TimeEnd|State|Reason|User"]
    for down in downs:
        lines.append(f"lab|n{down.node}|{text(down.start)}|{text(down.end)}|DOWN*|Not responding|slurm(64030)")
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Sequence[Down]], str]] = {
    "infinitehbd": infinitehbd,
    "lanl": lanl,
    "bamboo": bamboo,
    "skypilot": skypilot,
    "slurm": slurm,
    "intervals": intervals,
}


def read(folder: Path, format: str, content: str | bytes, **options: Any) -> FailureLog:
    path = folder / f"made.{format}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_log(path, LogFormat(format=format, **options))


def minutes(log: FailureLog) -> list[Down]:
    """Its outages; the node is the number at the end of the name."""

    def minute(hours: float | None) -> int | None:
        return None if hours is None else round(hours * 60)

    found = [Down(round(outage.start_h * 60), int(outage.node[-1]), minute(outage.end_h)) for outage in log.outages]
    assert all(abs(outage.start_h * 60 - down.start) < 1e-6 for outage, down in zip(log.outages, found, strict=True))
    return found


# --- what a reading promises ------------------------------------------------------------------------------------------


def made(rng: np.random.Generator) -> list[Down]:
    """Twenty outages within a day, overlapping now and then."""
    starts_E = rng.choice(1000, 20, replace=False) + 40
    return sorted(
        Down(int(start), int(rng.integers(8)), int(start + rng.integers(1, 90)) if rng.random() < 0.9 else None)
        for start in starts_E
    )


def count_records(format: str, content: bytes) -> tuple[int, int]:
    """How many records the importer may have read at least and at most, counted another way."""
    text = content.decode("utf-8-sig")
    log: Any = json.loads(text) if format in ("infinitehbd", "skypilot") else None
    match format:
        case "skypilot":
            least = most = sum(max(0, int(before) - int(after)) for before, after in itertools.pairwise(log["data"]))
        case "infinitehbd":
            least, most = sum(event["event_type"] == "fault_start" for event in log), len(log)
        case "slurm":
            least = most = sum(bool(line.replace("|", "").strip()) for line in io.StringIO(text, newline=None)) - 1
        case _:
            rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(field.strip() for field in row)]
            words = [{"".join(filter(str.isalnum, field.lower())) for field in row} for row in rows]
            firsts = [bool(each & {"system", "node", "sameevent"}) for each in words]
            most = sum(format != "bamboo" or row[1].strip() == "remove" for row in rows)
            least = most - sum(firsts)
    return least, most


def check_clean(log: FailureLog, format: str, content: bytes) -> None:
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
