"""A saved wandb workspace with panels for the runs of an experiment, by the package wandb-workspaces.

Panels refer to keys by their names in ``harness.wandb.history`` and ``harness.wandb.facts``.
"""

# ruff: noqa: PLC0415 - wandb-workspaces is imported when it is used, as it may be missing

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.errors import ConfigError, RunFailed, StoreError
from harness.core.events import BUCKETS, STALLS
from harness.files import make_folder, read_json, write_text
from harness.wandb.facts import RunFacts
from harness.wandb.server import WandbError, default_entity, server_problem, server_url, within

_AXIS_TITLES = {"samples": "samples", "hours": "emulated hours, overhead included"}
_COLUMNS = (
    *("run:jobType", "config:seed", "config:engine", "config:trace_name", "config:profile_name"),
    *("summary:auc", "summary:delta_auc", "summary:log_loss", "summary:pls", "summary:update_pls"),
    *("summary:overhead_frac", *(f"summary:{bucket}_frac" for bucket in BUCKETS), "summary:payload_bytes"),
    *("summary:measured_stall_s", "summary:recovery_latency_s", "summary:num_failures", "config:config_hash"),
)
_MAX_RUNS = 200  # in one panel
_SAVED_S = 15.0  # for each request to the server
_MARKER = "wandb-workspace.json"  # where the folder's workspace was saved, and its id

Workspace = Any
"""``wandb_workspaces.workspaces.Workspace``."""


def workspace_of(facts: Sequence[RunFacts]) -> Workspace:
    """The workspace for runs with these facts, in the project and entity that most of them have.

    Raises ConfigError if ``facts`` is empty or wandb-workspaces is not installed.
    """
    if not facts:
        raise ConfigError("dashboard: expected a run that has ended, found none; run the experiment first")
    ws, _ = _packages()
    (project, entity), _ = Counter((one.project, one.entity) for one in facts).most_common(1)[0]
    groups = sorted({one.group for one in facts})
    return ws.Workspace(
        entity=entity or "",
        project=project,
        name=groups[0] if len(groups) == 1 else f"{groups[0]} and {len(groups) - 1} more",
        sections=_sections([one.id for one in facts]),
        settings=ws.WorkspaceSettings(x_axis="samples", max_runs=_MAX_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(
                ws.Metric("Group").isin(groups),
                ws.Config("engine").isin(_values(facts, "engine")),
                ws.Config("trace_name").isin(_values(facts, "trace_name")),
                ws.Config("profile_name").isin(_values(facts, "profile_name")),
            ),
            order=[ws.Ordering(ws.Metric("JobType"), ascending=True)],
            pinned_columns=list(_COLUMNS),
        ),
    )


def left_out(facts: Sequence[RunFacts]) -> str | None:
    """A sentence on the runs that no panel with curves shows; None if there are none. Runs are ordered by strategy."""
    rest = Counter(sorted(one.job_type for one in facts)[_MAX_RUNS:])
    if not rest:
        return None
    words = ", ".join(f"{number} of {strategy}" for strategy, number in rest.items())
    return (
        f"curves, bars and kills show {_MAX_RUNS} of these {len(facts)} runs, and leave out {words}; choose others by "
        "the workspace's filters (engine, trace, profile), or make one of a folder with fewer runs"
    )


def write(workspace: Workspace, path: Path) -> None:
    """Write ``workspace`` to a JSON file, in the server's format. Raises StoreError."""
    make_folder(path.parent)
    write_text(path, json.dumps(_view(workspace), indent=1) + "\n")


def save(workspace: Workspace, folder: Path) -> str:
    """Save ``workspace`` on the wandb server, with a marker file in ``folder``; returns its address.

    It replaces the workspace that was saved for ``folder`` on the same server, entity and project before.

    Raises:
        ConfigError: invalid wandb settings, or no API key.
        RunFailed: the server does not answer or refuses the workspace.
        StoreError: the marker cannot be written.
    """
    server, marker = server_url(), folder / _MARKER
    if problem := server_problem(server):
        raise RunFailed(f"{problem}; nothing was saved")
    try:
        workspace.entity = workspace.entity or within(_SAVED_S, default_entity)
        place = [server, workspace.entity, workspace.project]
        known: dict[str, Any] = {}
        with suppress(StoreError):  # of another file, or none: nothing was saved before
            known = read_json(marker)
        # The same name and id at the same place: the server replaces the workspace.
        workspace._internal_name = f"nw-{hashlib.blake2b(str(folder.resolve()).encode()).hexdigest()[:11]}-v"
        workspace._internal_id = known.get("id", "") if known.get("place") == place else ""
        within(_SAVED_S, workspace.save)
    except WandbError as error:
        raise RunFailed(f"wandb: {server}: the workspace was not saved: {error}") from error
    write_text(marker, json.dumps({"place": place, "id": workspace._internal_id}) + "\n")
    return workspace.url


def _view(workspace: Workspace) -> dict[str, Any]:
    view = workspace._to_model()
    spec = view.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"entity": view.entity, "project": view.project, "displayName": view.display_name, "spec": spec}


def _values(facts: Iterable[RunFacts], key: str) -> list[str]:
    return sorted({str(one.config[key]) for one in facts})


def _packages() -> tuple[Any, Any]:
    """The modules ``workspaces`` and ``reports.v2``. Raises ConfigError if wandb-workspaces is not installed."""
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # its own, on pydantic
            import wandb_workspaces.reports.v2 as panels  # pyright: ignore[reportMissingImports]
        from wandb_workspaces import workspaces  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            "dashboard: expected the package wandb-workspaces, which is missing; "
            "pip install -r requirements-dashboard.txt"
        ) from error
    return workspaces, panels


def _sections(ids: Sequence[str]) -> list[Any]:
    """The sections of panels. Curves and bars show a mean for each strategy, with a band of one standard deviation."""
    ws, wr = _packages()
    most = {"max_runs_to_show": _MAX_RUNS}
    groups = {"groupby": wr.Metric("JobType"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev", **most}
    hours = _AXIS_TITLES["hours"]

    def curves(title: str, key: str) -> list[Any]:  # of each strategy, by samples and by hours
        return [
            wr.LinePlot(title=f"{title} by {text.partition(',')[0]}", x=axis, y=[key], title_x=text, **groups)
            for axis, text in _AXIS_TITLES.items()
        ]

    def marks(title: str, key: str) -> Any:  # a point for each kill or recovery of a run
        points = {f"{run_id}:{key}": "points" for run_id in ids}
        return wr.LinePlot(title=title, x="hours", y=[key], title_x=hours, line_marks=points, **most)

    def bars(title: str, *keys: str) -> Any:  # for each strategy and key of the summary
        return wr.BarPlot(title=title, metrics=[*map(wr.SummaryMetric, keys)], **groups)

    def scatter(title: str, x: str, y: str) -> Any:  # a point for each run
        return wr.ScatterPlot(title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric(y))

    panels = {
        "AUC and loss": [
            *curves("AUC on a part of the test set", "curve/auc"),
            *curves("Training loss", "train/loss"),
            *curves("Log loss on a part of the test set", "curve/log_loss"),
        ],
        "Overhead and quality": [
            *curves("Drop of AUC at failures, summed", "drop/sum"),
            bars("Overhead by bucket, share of the job", *(f"{bucket}_frac" for bucket in BUCKETS)),
            scatter("AUC against overhead", "overhead_frac", "auc"),
            scatter("Difference of AUC from none against overhead", "overhead_frac", "delta_auc"),
            scatter("AUC against PLS", "pls", "auc"),
            scatter("AUC against lost updates", "update_pls", "auc"),
            scatter("Difference of AUC from none against lost updates", "update_pls", "delta_auc"),
        ],
        "Kills and recoveries": [
            marks("Kills: PS rank", "kill/rank"),
            marks("Recoveries: PS rank", "recovery/rank"),
            marks("Recoveries: restored rows", "recovery/rows"),
            marks("Recoveries: latency, measured seconds", "recovery/latency_s"),
            marks("Recoveries: planned (1) or not (0)", "recovery/is_planned"),
            *curves("PLS", "failures/pls"),
        ],
        "Stall and recovery latency (measured)": [
            bars("Stall, seconds", "measured_stall_s"),
            bars("Stall by bucket, seconds", *(f"measured_{bucket}_s" for bucket in STALLS)),
            bars("Recovery latency, seconds", "recovery_latency_s", "max_recovery_latency_s"),
        ],
    }
    return [ws.Section(name=name, panels=found, is_open=True) for name, found in panels.items()]
