"""Bodies of processes that tests fork. The processes import this file, and not pytest."""

import importlib
import os
import runpy
import sys
from pathlib import Path

from harness.cluster import wire

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = {"analysis", "benchmarks", "harness", "run", "tests"}


def command(*words: str) -> None:
    """Run ``run.py`` with these words: nothing of the project is imported yet, the libraries are."""
    _forget_project()
    sys.argv = ["run.py", *words]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")


def program(code: str) -> None:
    """Run ``code``, with the project imported."""
    sys.argv = ["-c"]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def fresh_program(code: str) -> None:
    """Run ``code``: nothing of the project is imported yet, the libraries are."""
    _forget_project()
    program(code)


def examples(config: str, out: str) -> None:
    """Run the examples of docs/EXTENDING.md: nothing of the project is imported yet, the libraries are."""
    _forget_project()
    importlib.import_module("tests.extended").check_all(config, Path(out))


def _forget_project() -> None:
    """Let the next import of a module of the project be the first one."""
    wire._LIBRARY._destroy()  # torch knows it by its name
    for name in [name for name in sys.modules if name.partition(".")[0] in _PROJECT]:
        del sys.modules[name]
