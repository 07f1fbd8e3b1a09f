"""The notebook of docs/ runs, on a small log instead of the demo's."""

import json
from pathlib import Path

from tests import started
from tests.forked import ran

ROOT = Path(__file__).resolve().parents[1]


def test_the_notebook_runs_a_grid_and_draws_two_figures(click_data: Path, tmp_path: Path) -> None:
    """Law: its cells, in a process in its own folder as in Jupyter's; then in the folder above, where all is done."""
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    assert code.count("plt.subplots()") == 2
    for name in ("failure_traces", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "data").symlink_to(click_data)
    count = "\nprint([len(axes.lines) for axes in map(plt.Figure.gca, map(plt.figure, plt.get_fignums()))])"
    count += "\nprint([outcome.status for outcome in outcomes])"
    for folder, status in ((tmp_path / "docs", "done"), (tmp_path, "skipped")):
        done = ran(started.program, code + count, folder=folder, environment={"MPLBACKEND": "agg"})
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["[4, 3]", str([status] * 6)]
