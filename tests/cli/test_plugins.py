"""A strategy with a kind of save of its own, in a file outside the package, is known to every command."""

import json
from pathlib import Path

import pytest

import analysis
from harness.config import plugins
from harness.core.errors import ConfigError
from harness.core.strategies import Partial
from harness.recovery.recoveries import check_declared
from tests import started
from tests.analysis.shown import shown
from tests.extended import PLUGINS
from tests.forked import ran

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
out: out
plugins: [mine.py]
wandb: {{mode: disabled}}
data: {{path: {data}, max_train_samples: 256}}
model: {{size: tiny}}
trainer: {{batch_size: 32}}
profile: busy
cluster: {{num_ps: 4}}
trace: {{path: {trace}}}
store: {{fsync: false}}
"""


@pytest.fixture
def folder(tmp_path: Path, click_data: Path) -> Path:
    """A folder with the plugin, a run and a grid."""
    (tmp_path / "mine.py").write_text((PLUGINS / "incremental.py").read_text())
    config = CONFIG.format(data=click_data, trace=ROOT / "failure_traces" / "two_in_56h.csv")
    (tmp_path / "one.yaml").write_text(config)
    (tmp_path / "grid.yaml").write_text(config + "grids:\n- {strategy.name: [none, incremental]}\n")
    return tmp_path


def command(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of run.py in ``folder``."""
    done = ran(started.command, *arguments, folder=folder, environment=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_grid_with_a_plugin_runs_reports_compares_and_knows_when_it_is_edited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table, report and comparison have its line; after an edit of the file its cells are to do again.

    The file may be called as a package of the project, which it does not replace.
    """
    plugin = (folder / "mine.py").rename(folder / "analysis.py")
    (folder / "grid.yaml").write_text((folder / "grid.yaml").read_text().replace("mine.py", "analysis.py"))
    code, out, errors = command(folder, "grid", "grid.yaml", "trace.path=null")
    assert code == 0, errors
    assert "incremental" in out
    assert "incremental" in (folder / "out" / "report.html").read_text()
    monkeypatch.chdir(folder)
    assert "incremental" in shown(analysis.show_comparison(["out"], "none"))
    plugin.write_text(plugin.read_text() + "\nEDITED = True\n")
    assert command(folder, "grid", "grid.yaml", "trace.path=null", "--dry-run")[1].count("to do") == 2
    assert "incremental" in command(folder, "plan", "cpr56", "plugins=[analysis.py]", "--simulate", "2")[1], "simulated"


@pytest.mark.slow
def test_the_example_of_the_page_is_compared_with_the_others(folder: Path) -> None:
    """The file on the command line adds a strategy: a line of the table, beside those of the package."""
    (folder / "last_hour.py").write_text((PLUGINS / "last_hour.py").read_text())
    asked = ("plugins=[last_hour.py]", "strategy.name=[none,partial,last_hour]")
    code, out, errors = command(folder, "grid", "grid.yaml", *asked)
    assert (code, errors.count("3 cells: 3 run")) == (0, 1), errors
    assert [line.split()[0] for line in out.splitlines() if " 1 " in line][:3] == ["none", "partial", "last_hour"]


def test_the_schema_has_the_options_of_a_plugin(folder: Path) -> None:
    """As text of a key."""
    (folder / "last_hour.py").write_text((PLUGINS / "last_hour.py").read_text())
    code, out, _ = command(folder, "schema", "plugins=[last_hour.py]", "strategy.hours")
    assert (code, out.splitlines()[0]) == (0, "strategy.hours of last_hour: a number > 0 (default: 1.0)")


_EDITS_ITSELF = """
from pathlib import Path

if not Path("edited").exists():
    Path("edited").touch()
    Path(__file__).write_text(Path(__file__).read_text() + "# right after it was imported")
"""


@pytest.mark.slow
def test_a_cell_is_named_by_the_plugin_that_computed_it(folder: Path) -> None:
    """Law: a plugin that is edited after its import is not in the name of the result: that is to do again."""
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + _EDITS_ITSELF)
    asked = ("grid", "grid.yaml", "strategy.name=none", "trace.path=null")
    for _ in range(2):
        assert "1 cell: 1 run, 0 done before" in command(folder, *asked)[2]
    assert "1 cell: 0 run, 1 done before" in command(folder, *asked)[2]


def test_a_plugin_that_imports_while_the_run_trains_is_refused(folder: Path) -> None:
    """In one line, in a rank's process: what it imports would be in no digest."""
    (folder / "helper.py").write_text("")
    late = "    def plan_save(self, progress):\n        import helper\n"
    text = f"from harness.core.strategies import STRATEGIES, Partial\n\n\nclass Late(Partial):\n{late}"
    (folder / "mine.py").write_text(f"{text}\n\nSTRATEGIES['late'] = Late\n")
    asked = ("train", "one.yaml", "strategy.name=late", "engine=rpc")
    code, _, errors = command(folder, *asked, PYTHONPATH=str(folder))
    assert (code, errors.count("import it at the plugin's top")) == (2, 1), errors


def test_a_claim_on_a_grid_of_another_file_has_its_plugins(folder: Path) -> None:
    """They are those that the file of the claim's experiment names."""
    (folder / "sub").mkdir()
    claim = "claim: {title: Saves., source: own, experiment: ../grid.yaml}\n"
    (folder / "sub" / "saves.yaml").write_text(claim)
    code, out, errors = command(folder, "reproduce", "sub/saves.yaml", "--dry-run")
    assert (code, errors[:14]) == (0, "needs: 2 cells")
    assert out == "saves: 2 cells, 0 done, in out\n"


def test_an_installed_package_offers_an_optimizer(folder: Path) -> None:
    """An entry point names the module; its optimizer is an allowed value, and its file is part of the code."""
    code = "from harness.core.optimizers import OPTIMIZERS, Sgd\n\n\nclass Same(Sgd):\n    pass\n\n\n"
    code += "OPTIMIZERS['same'] = Same()\n"
    (folder / "offered.py").write_text(code)
    (folder / "offered-1.dist-info").mkdir()
    (folder / "offered-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1\n")
    (folder / "offered-1.dist-info" / "entry_points.txt").write_text("[cpr_harness.plugins]\nmine = offered\n")
    asked = ("train", "one.yaml", "plugins=[mine]", "engine=rpc", "trainer.optimizer=same")
    exit_code, _, errors = command(folder, *asked, PYTHONPATH=str(folder))
    assert exit_code == 0, errors
    assert "mine" in json.loads((folder / "out-rpc-optimizersame" / "env.json").read_text())["code"]["sources"]


_NO_MODULE = "expected an entry point, a module or a path that ends in .py, got no such module"
_NO_SOURCE = "expected a module of Python source, got one without a file that ends in .py"
_NO_JSON = "Expecting value: line 1 column 1 (char 0)"
_NO_IMPORT = "ModuleNotFoundError: No module named"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.py", "import nothing_there", f"mine.py: {_NO_IMPORT} 'nothing_there' (mine.py, line 1)"),
        ("mine.py", "import harness.core.nothing", f"mine.py: {_NO_IMPORT} 'harness.core.nothing' (mine.py, line 1)"),
        ("mine.py", "1 1", "mine.py: SyntaxError: invalid syntax (mine.py, line 1)"),
        ("mine.py", "\nimport json\njson.loads('')", f"mine.py: JSONDecodeError: {_NO_JSON} (mine.py, line 3)"),
        ("none.py", "", "none.py: no such file; a path is relative to the working directory"),
        ("mine_of_nobody", "", f"mine_of_nobody: {_NO_MODULE}"),
        ("sys", "", f"sys: {_NO_SOURCE}"),
        ("_struct", "", f"_struct: {_NO_SOURCE}"),
        ("a_folder", "", f"a_folder: {_NO_SOURCE}"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    """The module, the reason and the line of its source, or what a plugin may be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("a_folder").mkdir()
    Path("mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        plugins.imported(name, "plugins")
    assert str(caught.value) == f"plugins: {message}"


@pytest.mark.parametrize("declared", [("means",), None])
def test_an_unknown_kind_of_recovery_is_refused(declared: object) -> None:
    """In one line, when the plugin is loaded."""
    odd = type("Odd", (Partial,), {"recoveries": declared})
    with pytest.raises(ConfigError, match=r"^strategy odd: recoveries: expected a tuple of initial, .*; got"):
        check_declared({"odd": odd})


_SIGNATURES = "expected the arguments self, lost, progress, got self, lost (mine.py, line 9)"
_EARLY = "import harness.config.model\n"
_ODD = """
from harness.core.plans import RecoveryPlan
from harness.core.strategies import STRATEGIES, Partial


class Odd(Partial):
    recoveries = ("checkpoint",)

    def plan_recovery(self, lost, progress):
        return RecoveryPlan(kinds=dict.fromkeys(lost, "means"))


STRATEGIES["odd"] = Odd
"""


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (_EARLY + _ODD, 2, "error: plugins: mine.py: imports harness.config.model before it adds a strategy"),
        (_ODD.replace("lost, progress", "lost"), 2, f"plugins: strategy odd: plan_recovery: {_SIGNATURES}"),
        ('"""Adds no strategy."""', 2, "; no such strategy is added by the plugins mine.py (strategy.name=odd on the"),
        (_ODD, 1, "plan of Odd: ps1: expected one of its recoveries (checkpoint), got 'means'"),
    ],
)
def test_a_plugin_that_does_not_do_as_it_says_is_refused(folder: Path, text: str, code: int, message: str) -> None:
    """In one line: where it imports too early, or where a plan names what its strategy does not declare."""
    (folder / "mine.py").write_text(text)
    (folder / "one.csv").write_text("hour,rank\n20,ps1\n")
    found, _, errors = command(folder, "train", "one.yaml", "strategy.name=odd", "trace.path=one.csv")
    assert found == code
    assert message in errors.splitlines()[-1]


def test_a_plugin_with_a_client_may_add_a_model_before_it(folder: Path) -> None:
    """A client's file imports the configuration, which knows a model that was added before; after it, it is refused."""
    client, model = ((PLUGINS / name).read_text() for name in ("blocking.py", "logistic.py"))
    for text, code in ((client, 0), (model + client, 0), (client + model, 2)):
        (folder / "mine.py").write_text(text)
        found, out, errors = command(folder, "schema", "cache.mode", "plugins=[mine.py]")
        assert (found, "blocking" in out, "before it adds a model" in errors) == (code, code == 0, code == 2), errors


def test_an_error_in_a_plugin_names_the_line(folder: Path) -> None:
    """Law: a cell that a plugin ends says the file and the line, on both engines, also of an error in a library.

    An error that several cells have is one line at the end.
    """
    (folder / "mine.py").write_text(_ODD.replace("return Rec", "progress.nothing  # line 10\n        return Rec"))
    (folder / "one.csv").write_text("hour,rank\n20,ps1\n")
    asked = ("engine=[local,rpc]", "seed=[0,1]", "strategy.name=odd", "trace.path=one.csv")
    _, _, errors = command(folder, "grid", "grid.yaml", *asked)
    failed = [line for line in errors.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2, errors
    assert all(line.endswith("; the same in 1 more cell") for line in failed), errors
    assert all(line.count("AttributeError: ") == 1 and " (mine.py, line 10)" in line for line in failed), errors
