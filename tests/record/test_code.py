"""Laws of the fingerprint of the code that computed a result: it is of what was loaded."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.record.code import Code, code_of, current_code, difference_of
from tests.made_runs import made_config, write_run

ROOT = Path(__file__).resolve().parents[2]


def test_every_run_records_the_code_that_computed_it(tmp_path: Path) -> None:
    """env.json has versions and sources; read again they are the present code."""
    write_run(tmp_path / "run", made_config())
    assert code_of(tmp_path / "run") == current_code()
    assert difference_of(tmp_path / "run") is None
    for content in ("{}", "{"):
        (tmp_path / "run" / "env.json").write_text(content)
        assert difference_of(tmp_path / "run") == "code not known"


PROGRAM = """
import sys
from pathlib import Path
from harness.config.plugins import load
load(["mine.py"])
{then}
from harness.record.code import current_code
print(current_code().fingerprint, sys.modules["helper"].RATE)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plugin, and a module that it imports."""
    (tmp_path / "mine.py").write_text("import helper\n\n\ndef late():\n    import other\n")
    (tmp_path / "helper.py").write_text("RATE = 1\n")
    (tmp_path / "other.py").write_text("RATE = 1\n")
    return tmp_path


def said(folder: Path, then: str = "", program: str = PROGRAM) -> str:
    """What the program prints in ``folder``, in a new interpreter that keeps bytecode; its last line if it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command, variables = [sys.executable, "-c", program.replace("{then}", then)], {**kept, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_plugin_that_is_edited_after_its_import_is_recorded_as_it_was_loaded(folder: Path) -> None:
    """The code is that of the bytes that run; the next process has other code."""
    before = said(folder)
    assert said(folder, "Path('mine.py').write_text(Path('mine.py').read_text() + 'EDITED = 1')") == before
    assert said(folder) != before


@pytest.mark.slow
def test_what_a_plugin_imports_is_part_of_the_code(folder: Path) -> None:
    """A constant of another module, and the version of a distribution; no other module of the process."""
    before = said(folder)
    (folder / "helper.py").write_text("RATE = 2\n")
    assert said(folder).split()[0] != before.split()[0]
    (folder / "mine.py").write_text("import helper\nimport yaml\nfrom jinja2 import Template\n")
    shown = said(folder, "from harness.record.code import current_code; print(current_code().versions)")
    assert "'Jinja2': '3." in shown
    assert "'PyYAML': '6." in shown


def test_a_module_that_is_imported_while_a_run_trains_is_refused(folder: Path) -> None:
    """It is in no digest, and the line says what to do."""
    late = "from harness import sources; sources.fix_modules(); import other"
    assert "import it at the plugin's top" in said(folder, late)


BY_HAND = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("helper", "helper.py")
sys.modules["helper"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["helper"])
"""
BY_A_FINDER = """
import importlib.util, sys

class Finder:  # as that of a package installed with `pip install -e`
    def find_spec(fullname, path=None, target=None):
        return importlib.util.spec_from_file_location(fullname, "helper.py") if fullname == "helper" else None

sys.meta_path.insert(0, Finder)
import helper
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("import helper\n", id="by name"),
        pytest.param(BY_HAND, id="by hand"),
        pytest.param(BY_A_FINDER, id="by a finder"),
    ],
)
@pytest.mark.slow
def test_a_source_is_in_the_code_as_it_was_loaded(folder: Path, how: str) -> None:
    """However it is imported: no stale bytecode of equal size and time stamp runs, and an edit is not in the code."""
    (folder / "mine.py").write_text(how)
    before, file = said(folder), folder / "helper.py"
    assert said(folder, "Path('helper.py').write_text('RATE = 3')") == before
    file.write_text("RATE = 1\n")
    assert said(folder) == before
    status = file.stat()
    file.write_text("RATE = 2\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert said(folder)[-1] == "2"
    assert said(folder).split()[0] != before.split()[0]
    edited = how + "file = open('helper.py', 'a'); file.write('EDITED = 1'); file.close()"
    then = "from harness.record.code import current_code; print(current_code().sources['helper'])"
    first = said(folder, then).split()[0]
    (folder / "mine.py").write_text(edited)
    assert said(folder, then).split()[0] == first


PACKAGE = """
import sys
from pathlib import Path
from harness.record.code import current_code
before = current_code()
file = Path("harness/core/lookup.py")
file.write_text(file.read_text() + "EDITED = 1")
{then}
assert current_code() == before
print(sys.modules["harness"].__file__)
"""


def test_a_file_of_the_package_that_is_edited_before_its_import_is_refused(tmp_path: Path) -> None:
    """The code is known before all of it is imported; what is edited in between cannot run under its name."""
    shutil.copytree(ROOT / "harness", tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    refused = "was changed after this command had read it; run the command again"
    assert said(tmp_path, "import harness.core.lookup", PACKAGE).endswith(f"harness/core/lookup.py: {refused}")


@pytest.mark.slow
def test_a_run_imports_nothing_that_is_not_in_its_code() -> None:
    """But for what writes records and shows them."""
    program = "import harness.run.assemble, harness.run.fork_server\n"
    program += "from harness.sources import own_modules\nprint(*own_modules(of_project=True).values())"
    files = [Path(file).relative_to(ROOT).as_posix() for file in said(ROOT, program=program).split()]
    others = {file for file in files if file not in current_code().sources}
    assert {file.split("/")[1] for file in others} == {"record", "wandb"}
    assert "harness/run/trainer.py" in files
    rooms = {"cli", "grid", "jobs", "planning", "record", "wandb"}
    assert rooms.isdisjoint(path.split("/")[1] for path in current_code().sources), "they may change"


def test_a_difference_names_what_differs() -> None:
    """Versions with both values, the first files, and how many more."""
    sources = {f"harness/core/{name}.py": name for name in "abcde"}
    old = Code({"python": "3.11", "torch": "2.12.0"}, sources)
    new = Code({"python": "3.11", "torch": "2.13.0"}, dict.fromkeys(sources, "other"))
    words = "torch 2.12.0 -> 2.13.0, harness/core/a.py, harness/core/b.py, harness/core/c.py, 2 more files"
    assert old.difference(new) == words
    assert old.fingerprint != new.fingerprint
    assert old.difference(replace(old, versions={**old.versions, "mine": "1"})) == "mine None -> 1"
    assert old.difference(old) is None
