"""Laws of the fingerprint of the code that computed a result."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.record import code
from harness.record.code import Code, code_of, current_code, difference_of, roots_of
from tests.made_runs import made_config, write_run

SOURCE = '''"""Text."""

STEP = 2  # of a size
"""Text of a value."""


def half(x: int) -> int:
    """Text."""
    return x // STEP
'''


@pytest.mark.parametrize(
    ("old", "new", "is_other"),
    [
        ("Text", "Other text", False),
        ("  # of a size", "", False),
        ("STEP = 2", "STEP = 3", True),
        ("x // STEP", "STEP // x", True),
        ("half", "part", True),
    ],
)
def test_statements_count_and_text_does_not(tmp_path: Path, old: str, new: str, is_other: bool) -> None:
    """A digest differs where a statement does; comments and docstrings may change."""
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text(SOURCE.replace(old, new))
    assert (code._digest(tmp_path / "a.py") != code._digest(tmp_path / "b.py")) is is_other


def test_every_run_records_the_code_that_computed_it(tmp_path: Path) -> None:
    """env.json has versions and sources; read again they are the present code."""
    write_run(tmp_path / "run", made_config())
    assert code_of(tmp_path / "run") == current_code()
    assert difference_of(tmp_path / "run") is None
    (tmp_path / "run" / "env.json").write_text("{}")
    assert difference_of(tmp_path / "run") == "code not recorded"
    (tmp_path / "run" / "env.json").write_text("{")
    assert (difference_of(tmp_path / "run") or "").startswith(f"code not known: {tmp_path}/run/env.json: not JSON")


OF_RUNS = ("core/strategies.py", "kernels/products.py", "run/trainer.py", "store/__init__.py")


@pytest.mark.parametrize(
    ("launcher", "among", "not_among"),
    [
        ("fork", "cluster/rank_process.py", "data/prepare.py"),
        ("hosts", "hosts/agent.py", "hosts/ray_launcher.py"),
        ("ray", "hosts/ray_launcher.py", "record/recorder.py"),
    ],
)
def test_code_is_what_a_run_imports(launcher: str, among: str, not_among: str) -> None:
    """An edit of a module makes those results stale that it may have decided, and no others.

    The command line, the grid's runner and the planner may change; strategies, kernels and the trainer may not. The
    digest of the data says what its preparation made.
    """
    hosts = ["one"] if launcher == "hosts" else []
    config = made_config(cluster={"num_ps": 4, "launcher": launcher, "hosts": hosts})
    sources = current_code(roots_of(config)).sources.keys()
    assert {f"harness/{name}" for name in (*OF_RUNS, among)} <= sources
    assert f"harness/{not_among}" not in sources
    rooms = {"cli", "grid", "planning"} | ({"hosts", "record"} if launcher == "fork" else set())
    assert rooms.isdisjoint(path.split("/")[1] for path in sources)


def test_the_code_of_a_benchmark_has_what_judges_and_plans() -> None:
    """A claim on a benchmark is stale after an edit of any module that its script imports."""
    assert "harness/planning/simulate.py" in current_code(("benchmarks.production",)).sources
    assert "benchmarks/_common.py" in current_code(("benchmarks.power",)).sources
    assert "harness/run/trainer.py" not in current_code(("benchmarks.power",)).sources


def test_a_difference_names_what_differs() -> None:
    """Versions with both values, the first files, and how many more; under another Python only the version."""
    sources = {f"harness/core/{name}.py": name for name in "abcde"}
    old = Code({"python": "3.11", "torch": "2.12.0"}, sources)
    new = Code({"python": "3.11", "torch": "2.13.0"}, dict.fromkeys(sources, "other"))
    words = "torch 2.12.0 -> 2.13.0, harness/core/a.py, harness/core/b.py, harness/core/c.py, 2 more files"
    assert old.difference(new) == words
    assert old.fingerprint != new.fingerprint
    assert old.difference(replace(new, versions={**old.versions, "python": "3.12"})) == "python 3.11 -> 3.12"
    assert old.difference(old) is None
