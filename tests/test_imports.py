"""The architecture, read from the source: what may import what, and what may be called where.

Every exemption stands in a table here, with its reason.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
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


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its syntax tree."""
        return list(ast.walk(ast.parse(self.text)))

    def imports(self, modules: frozenset[str] = frozenset()) -> set[str]:
        """What it imports anywhere, also inside functions; ``from p import m`` is ``p.m`` if that is in ``modules``."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{self.name}: imports are absolute"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (names & modules) or {node.module}
        return found

    def attributes(self) -> Iterator[str]:
        """Every dotted name that is used, ``a.b.c``; of a call's result just ``.method``."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                parts = [node.attr]
                value = node.value
                while isinstance(value, ast.Attribute):
                    parts.append(value.attr)
                    value = value.value
                yield ".".join(reversed([*parts, value.id if isinstance(value, ast.Name) else ""]))

    def builtins_called(self) -> set[str]:
        """Names that are called as they stand, ``f(...)``."""
        return {n.func.id for n in self.nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}

    def branches_on_engine(self) -> bool:
        """Whether something is compared with an engine's name, by an operator or by a case."""
        compared = [
            value
            for node in self.nodes
            if isinstance(node, ast.Compare | ast.MatchValue)
            for value in ast.walk(node)
            if isinstance(value, ast.Constant)
        ]
        return any(value.value in ("rpc", "local") for value in compared)

    def uses_torch_distributed(self) -> bool:
        """Whether torch's communication, public or private, is imported or named."""
        used = [*self.imports(), *self.attributes()]
        froms = [
            f"{node.module}.{alias.name}"
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        return any(name.startswith(("torch.distributed", "torch._C._distributed")) for name in [*used, *froms])


def roots(names: Iterable[str]) -> set[str]:
    """Their top-level packages."""
    return {name.partition(".")[0] for name in names}


def read_modules() -> list[Module]:
    """Every module of the product."""
    paths = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run.py"]
    return [Module(_name(path), path.read_text()) for path in sorted(paths)]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = read_modules()
NAMES = frozenset(module.name for module in MODULES)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports, by name."""
    return {module.name: module.imports(NAMES) for module in MODULES}


def room_of(name: str) -> str:
    """The folder of ``harness``, or ``analysis`` or ``run.py``, that module ``name`` lies in."""
    first, _, rest = name.partition(".")
    if first == "harness":
        return rest.partition(".")[0]
    return "run.py" if first == "run" else first


def modules_in(*rooms: str) -> list[Module]:
    """All modules of these rooms."""
    return [module for module in MODULES if room_of(module.name) in rooms]


def offenders(modules: Iterable[Module], has_broken: Callable[[Module], object]) -> list[str]:
    """Modules that break a law, with what broke it."""
    return [f"{module.name}: {found}" for module in modules if (found := has_broken(module))]


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle of imports, the first again as the last; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


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
        own = room_of(module.name)
        ours = {name for name in imports()[module.name] if name.partition(".")[0] in OWN_PACKAGES}
        ours -= UPWARD.get(module.name, set())
        rooms = {room_of(name) for name in ours} - {own, ""}
        return sorted(room for room in rooms if FLOOR_OF.get(room, 99) >= FLOOR_OF.get(own, 0))

    assert not offenders(MODULES, upward)


def test_no_module_needs_itself() -> None:
    """There is no circle of imports, inside a room or through several."""
    assert circle_in({name: (names & NAMES) - {name} for name, names in imports().items()}) == []


def test_the_core_is_pure() -> None:
    """harness.core touches no file, process, clock or compiler: it imports nothing that could."""

    def impure(module: Module) -> set[str]:
        imported = {name.partition(".")[0] for name in imports()[module.name]} - CORE_MAY_IMPORT
        called = module.builtins_called() & {"open", "input", "print", "exec", "eval", "breakpoint"}
        used = {name for name in module.attributes() if f".{name}".endswith(IMPURE) or name.startswith(IMPURE)}
        return imported | called | used

    assert not offenders(modules_in("core"), impure)


def test_the_model_is_mathematics() -> None:
    """harness.model imports the core, the config's sizes, and kernels."""
    rooms = {room_of(name) for m in modules_in("model") for name in imports()[m.name] if name.startswith("harness")}
    assert rooms <= {"config", "core", "kernels", "model"}


def test_analysis_reads_records_only() -> None:
    """What judges a run does not share the code that ran it: PLS is derived again, from the events."""
    judges = ("harness.record.audit", *(module.name for module in modules_in("analysis")))
    names = {name for judge in judges for name in imports()[judge]}
    assert {room_of(name) for name in names}.isdisjoint({"processes", "cluster", "hosts", "recovery", "client", "run"})
    assert "harness.core.pls" not in names
    # Order and colours of strategies are those of their registration.
    look = {"analysis.stats.blocks", "analysis.figures.look"}
    assert {judge for judge in judges if "harness.core.strategies" in imports()[judge]} == look


def test_torch_distributed_lives_in_the_files_that_the_page_names() -> None:
    """torch's communication, in the sentence of docs/ARCHITECTURE.md."""
    users = {module.name.replace(".", "/") + ".py" for module in MODULES if module.uses_torch_distributed()}
    sentence = ARCHITECTURE[ARCHITECTURE.index("torch's communication is used in") :].partition(" alone.")[0]
    assert users == set(re.findall(r"`(harness/[\w/]+\.py)`", sentence))


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
    """numba is imported in kernels alone, wandb in one file, ray in a program of its own.

    All else runs without.
    """
    assert {room_of(name) for name, names in imports().items() if "numba" in roots(names)} == {"kernels"}
    assert {name for name, names in imports().items() if "wandb" in roots(names)} == {"harness.wandb.server"}
    assert {name for name, names in imports().items() if "ray" in roots(names)} == {"harness.hosts.ray_tasks"}


def test_analysis_uses_no_network() -> None:
    """A report waits for no server."""
    ways = {"socket", "ssl", "http", "urllib", "requests", "wandb", "multiprocessing"}
    assert not offenders(modules_in("analysis"), lambda module: roots(imports()[module.name]) & ways)


def test_all_chance_is_derived() -> None:
    """No global generator: numpy's are made in core/seeds.py from (seed, labels), and torch's and Python's unused."""

    def draws(module: Module) -> set[str]:
        allowed = {"np.random", "np.random.Generator"}
        if module.name == "harness.core.seeds":
            allowed |= {"np.random.PCG64"}
        used = [*module.attributes()]
        numpy_draws = {name for name in used if name.startswith(("np.random", "numpy.random"))} - allowed
        modules = {
            name for name in imports()[module.name] if name in ("random", "uuid") or name.startswith("numpy.rand")
        }
        return numpy_draws | (TORCH_DRAWS & {*used}) | modules

    assert not offenders(MODULES, draws)


def test_the_library_neither_prints_nor_exits() -> None:
    """Only the console writes to the terminal, by rich, and only run.py ends the process: no exemptions."""

    def speaks(module: Module) -> set[str]:
        streams = {"sys.stdout", "sys.stderr", "sys.stdout.write", "sys.stderr.write"}
        forbidden = {"sys.exit"} | (streams if module.name != "harness.cli.console" else set())
        called = module.builtins_called() & {"print", "exit", "quit", "breakpoint", "input"}
        return called | (forbidden & {*module.attributes()})

    assert not offenders([module for module in MODULES if module.name != "run"], speaks)


def test_a_kill_is_sigkill() -> None:
    """``terminate`` and SIGTERM, which a process may outlive or clean up after, are used for no rank."""
    assert not offenders(MODULES, lambda module: [n for n in module.attributes() if n.endswith(".terminate")])
    ignores_it = "harness.processes.parent_death"
    assert [module.name for module in modules_in("processes", "cluster", "hosts") if "SIGTERM" in module.text] == [
        ignores_it
    ]


def test_one_file_knows_the_engine() -> None:
    """No code branches on the engine's name but what the table names, each with its reason."""
    assert {module.name for module in MODULES if module.branches_on_engine()} == MAY_BRANCH_ON_THE_ENGINE.keys()


def test_imports_can_be_read() -> None:
    """Nothing but a user's plugin is imported by a string, which would hide it from this file."""

    def hides(module: Module) -> set[str]:
        if module.name == "harness.config.plugins":
            return set()
        called = module.builtins_called() & {"__import__", "import_module"}
        return called | {name for name in module.attributes() if name.endswith(".import_module")}

    assert not offenders(MODULES, hides)


def test_the_reader_sees_what_the_laws_ask() -> None:
    """Lazy imports, methods of results, bare calls, comparisons of every kind, circles: found; look-alikes are not."""
    for text in (
        "import torch.distributed",
        "from torch import distributed as d",
        "import torch\ndef f(): return torch.distributed.rpc",
        "from torch._C import _distributed_rpc",
    ):
        assert Module("x", text).uses_torch_distributed(), text
    lazy = Module("x", "def f():\n    from harness.run import assemble\n    return assemble")
    assert lazy.imports(frozenset({"harness.run.spec", "harness.run.assemble"})) == {"harness.run.assemble"}
    calls = Module("x", "make(3).terminate()\nprint(1)\nconsole.print(2)\nnp.random.rand(3)")
    assert {".terminate", "console.print", "np.random.rand"} <= {*calls.attributes()}
    assert calls.builtins_called() == {"make", "print"}
    for text in ("a.engine == 'rpc'", "x = 1 if 'local' != e else 2", "e in ('rpc',)", "match e:\n case 'rpc': pass"):
        assert Module("x", text).branches_on_engine(), text
    assert not Module("x", "for engine in ('local', 'rpc'): run(engine)").branches_on_engine()
    assert len(circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == 4
