"""The architecture, read from the source: what may import what, and what may be called where.

Every exemption stands in a table here, with its reason.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARCHITECTURE = " ".join((ROOT / "docs" / "ARCHITECTURE.md").read_text().split())

FLOORS: tuple[tuple[str, ...], ...] = (  # bottom to top; rooms of one floor do not import each other
    ("kernels",),
    ("core",),
    ("files", "sources"),
    ("config", "store"),
    ("data", "model", "traces", "record", "processes"),
    ("cluster", "wandb"),
    ("recovery", "hosts"),
    ("planning", "client"),
    ("analysis", "run"),
    ("grid",),
    ("jobs",),
    ("cli", "api"),
    ("run.py",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

CORE_MAY_IMPORT = {
    "bisect", "collections", "csv", "dataclasses", "enum", "errno", "fractions", "functools", "hashlib", "harness",
    "itertools", "math", "numpy", "operator", "pydantic", "re", "torch", "types", "typing",
}  # fmt: skip
"""Values in, values out: nothing that reads a file, a clock, the environment or another process."""

UPWARD: dict[str, set[str]] = {"harness": {"harness.sources"}}
"""Imports of a room of a higher floor: the package installs the importer of all its rooms."""

OWN_PACKAGES = {"harness", "analysis", "experiments", "tests", "benchmarks", "run"}
IMPURE = ("torch.save", "torch.load", "torch.set_num_threads", ".tofile", ".fromfile", ".memmap")
TORCH_DRAWS = {"torch.manual_seed", "torch.seed", "torch.rand", "torch.randn", "torch.randint", "torch.randperm"}

MAY_BRANCH_ON_THE_ENGINE = {
    "harness.run.assemble": "the one place that knows which engine a run is on",
    "harness.run.spec": "memory can keep checkpoints where the ranks share it, and in no result is where they were",
    "harness.grid.worker": "only a cell on rpc needs a fork server, and starting one is in no result",
    "harness.run.needs": "memory of processes and time of messages are expected of this machine and in no result",
    "harness.grid.runner": "how many cells run at once is a matter of this machine and in no result",
}

IMPORT_BY_A_STRING = {
    "harness.config.plugins": "a user's plugin",
    "harness.cli.commands": "the command that was given: commands.toml names its module, which is of this room",
}


@dataclass(frozen=True)
class Module:
    """A source file, and what it names anywhere, also inside functions.

    Attributes:
        imports: modules; ``from p import m`` is ``p.m`` if that is a module of the product, else ``p``.
        attributes: dotted names that are used, ``a.b.c``; of a call's result just ``.method``.
        calls: names that are called as they stand, ``f(...)``.
        compared: texts with which something is compared, by an operator or by a case.
    """

    name: str
    text: str
    imports: frozenset[str]
    attributes: frozenset[str]
    calls: frozenset[str]
    compared: frozenset[str]

    @property
    def room(self) -> str:
        """The folder of ``harness``, or ``analysis`` or ``run.py``, in which it lies."""
        return room_of(self.name)

    @property
    def roots(self) -> set[str]:
        """Top-level packages of its imports."""
        return {name.partition(".")[0] for name in self.imports}


def read(path: Path, names: Set[str]) -> Module:
    """The module at ``path``. ``names``: of all modules of the product."""
    text = path.read_text()
    imports, attributes, calls, compared = (set[str]() for _ in range(4))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                imports |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                assert node.module is not None, f"{path}: imports are absolute"
                dotted = {f"{node.module}.{alias.name}" for alias in node.names}
                imports |= (dotted & names) or {node.module}
                attributes |= dotted
            case ast.Attribute():
                attributes.add(dotted_name(node))
            case ast.Call(func=ast.Name(id=name)):
                calls.add(name)
            case ast.Compare() | ast.MatchValue():
                compared |= {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)}
    return Module(name_of(path), text, *map(frozenset, (imports, attributes, calls, compared)))


def dotted_name(node: ast.expr) -> str:
    """``a.b.c``; of what is no name the part before the first dot is empty."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def name_of(path: Path) -> str:
    """The dotted name of the module in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    """The room of a module; empty for the package itself."""
    first, _, rest = name.partition(".")
    if first == "harness":
        return rest.partition(".")[0]
    return "run.py" if first == "run" else first


PATHS = sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run.py"])
NAMES = {name_of(path) for path in PATHS}
MODULES = [read(path, NAMES) for path in PATHS]


def users(package: str) -> set[str]:
    """The modules that import a package."""
    return {module.name for module in MODULES if package in module.roots}


def offenders(rooms: Iterable[str], has_broken: Callable[[Module], object]) -> list[str]:
    """Modules of these rooms that break a law, with what broke it."""
    return [f"{module.name}: {found}" for module in MODULES if module.room in rooms and (found := has_broken(module))]


def test_every_file_has_a_room() -> None:
    """The laws below read the whole product; every room of FLOORS exists, and no module stands outside of one."""
    assert len(MODULES) > 50
    assert {room_of(name) for name in NAMES} == {"", *FLOOR_OF}


def test_no_link_is_committed() -> None:
    """A link names a place on the machine of whoever made it."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--stage"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_imports_point_down_only() -> None:
    """A room imports itself and rooms of lower floors, not even lazily any other."""

    def upward(module: Module) -> list[str]:
        ours = {name for name in module.imports if name.partition(".")[0] in OWN_PACKAGES}
        rooms = {room_of(name) for name in ours - UPWARD.get(module.name, set())} - {module.room, ""}
        return sorted(room for room in rooms if FLOOR_OF.get(room, 99) >= FLOOR_OF.get(module.room, 0))

    assert not offenders({"", *FLOOR_OF}, upward)


def test_no_module_needs_itself() -> None:
    """There is no circle of imports, inside a room or through several."""
    TopologicalSorter({each.name: (each.imports & NAMES) - {each.name} for each in MODULES}).prepare()


def test_the_core_is_pure() -> None:
    """harness.core touches no file, process, clock or compiler: it imports nothing that could."""

    def impure(module: Module) -> Set[str]:
        called = module.calls & {"open", "input", "print", "exec", "eval", "breakpoint"}
        used = {name for name in module.attributes if f".{name}".endswith(IMPURE) or name.startswith(IMPURE)}
        return (module.roots - CORE_MAY_IMPORT) | called | used

    assert not offenders({"core"}, impure)


def test_the_model_is_mathematics() -> None:
    """harness.model imports the core, the config's sizes, and kernels."""
    rooms = {"config", "core", "kernels", "model"}
    ours = {name for each in MODULES if each.room == "model" for name in each.imports if name.startswith("harness")}
    assert {room_of(name) for name in ours} <= rooms


def test_analysis_reads_records_only() -> None:
    """What judges a run does not share the code that ran it: PLS is derived again, from the events."""
    judges = [each for each in MODULES if each.room == "analysis" or each.name == "harness.record.audit"]
    names = {name for judge in judges for name in judge.imports}
    assert {room_of(name) for name in names}.isdisjoint({"processes", "cluster", "hosts", "recovery", "client", "run"})
    assert "harness.core.pls" not in names
    # Order and colours of strategies are those of their registration.
    look = {"analysis.stats.blocks", "analysis.figures.look"}
    assert {judge.name for judge in judges if "harness.core.strategies" in judge.imports} == look


def test_analysis_uses_no_network() -> None:
    """A report waits for no server."""
    ways = {"socket", "ssl", "http", "urllib", "requests", "wandb", "multiprocessing"}
    assert not offenders({"analysis"}, lambda module: module.roots & ways)


def test_torch_distributed_lives_in_the_files_that_the_page_names() -> None:
    """torch's communication, public or private, in the sentence of docs/ARCHITECTURE.md."""
    ways = ("torch.distributed", "torch._C._distributed")
    found = {each.name for each in MODULES if any(n.startswith(ways) for n in each.imports | each.attributes)}
    sentence = ARCHITECTURE[ARCHITECTURE.index("torch's communication is used in") :].partition(" alone.")[0]
    named = re.findall(r"`(harness/[\w/]+)\.py`", sentence)
    assert found == {name.replace("/", ".") for name in named}


def test_the_picture_and_the_files_of_the_page_are_those_of_the_source() -> None:
    """docs/architecture.svg is what its script draws now; each file that docs/ARCHITECTURE.md names exists."""
    drawn = subprocess.run(
        [sys.executable, "-c", "import architecture, sys; sys.stdout.write(architecture.picture())"],
        cwd=ROOT / "docs", capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "architecture.svg").read_text() == drawn, "run: python docs/architecture.py"
    named = {name.removeprefix("harness/") for name in re.findall(r"`([a-z_/]+/[\w]*\.py)`", ARCHITECTURE)}
    assert named, "the page names files"
    places = (ROOT / "harness", ROOT)
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


def test_compilers_and_views_are_fenced_in() -> None:
    """numba is imported in kernels alone, wandb in one file, ray in a program of its own: all else runs without."""
    assert {room_of(name) for name in users("numba")} == {"kernels"}
    assert users("wandb") == {"harness.wandb.server"}
    assert users("ray") == {"harness.hosts.ray_tasks"}


def test_all_chance_is_derived() -> None:
    """No global generator: numpy's are made in core/seeds.py from (seed, labels), and torch's and Python's unused."""

    def draws(module: Module) -> Set[str]:
        allowed = {"np.random", "np.random.Generator"}
        if module.name == "harness.core.seeds":
            allowed |= {"np.random.PCG64"}
        used = {name for name in module.attributes if name.startswith(("np.random", "numpy.random"))} - allowed
        modules = {name for name in module.imports if name in ("random", "uuid") or name.startswith("numpy.rand")}
        return used | (TORCH_DRAWS & module.attributes) | modules

    assert not offenders({"", *FLOOR_OF}, draws)


def test_the_library_neither_prints_nor_exits() -> None:
    """Only the console writes to the terminal, by rich, and only run.py ends the process: no exemptions."""

    def speaks(module: Module) -> Set[str]:
        streams = {"sys.stdout", "sys.stderr", "sys.stdout.write", "sys.stderr.write"}
        forbidden = {"sys.exit"} | (streams if module.name != "harness.cli.console" else set())
        called = module.calls & {"print", "exit", "quit", "breakpoint", "input"}
        return called | (forbidden & module.attributes)

    assert not offenders({"", *FLOOR_OF} - {"run.py"}, speaks)


def test_a_kill_is_sigkill() -> None:
    """``terminate`` and SIGTERM, which a process may outlive or clean up after, are used for no rank."""
    assert not offenders(
        {"", *FLOOR_OF}, lambda each: [name for name in each.attributes if name.endswith(".terminate")]
    )
    said = {each.name for each in MODULES if each.room in ("processes", "cluster", "hosts") and "SIGTERM" in each.text}
    assert said == {"harness.processes.parent_death"}, "which ignores it"


def test_one_file_knows_the_engine() -> None:
    """No code branches on the engine's name but what the table names, each with its reason."""
    branching = {each.name for each in MODULES if each.compared & {"rpc", "local"}}
    assert branching == MAY_BRANCH_ON_THE_ENGINE.keys()


def test_imports_can_be_read() -> None:
    """Nothing is imported by a string, which would hide it from this file, but by these modules."""

    def hides(module: Module) -> Set[str]:
        called = module.calls & {"__import__", "import_module", "resolve_name"}
        return called | {name for name in module.attributes if name.endswith((".import_module", ".resolve_name"))}

    assert {module.name for module in MODULES if hides(module)} == IMPORT_BY_A_STRING.keys()
    commands = tomllib.loads((ROOT / "harness/cli/commands.toml").read_text())
    called = {f"harness.cli.{each['call'].partition(':')[0]}" for each in commands.values() if "call" in each}
    assert called < NAMES, "all of its own room"
