"""The architecture, read from the source: what may import what, and what may be called where.

Every exemption stands in a table here, with its reason.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: tuple[tuple[str, ...], ...] = (  # bottom to top; parts of one layer do not know each other
    ("harness.native",),
    ("harness.core", "harness.parsing"),
    ("harness.trace_arguments",),
    ("harness.arguments",),
    ("harness.model", "harness.environment", "harness.leash"),
    ("harness.data", "harness.traces", "harness.store", "harness.rundir", "harness.folder", "harness.sink",
     "harness.keys", "harness.yaml_file", "harness.leash_parent", "harness.spawn"),
    ("harness.cluster", "harness.settings", "harness.wandb_sink"),
    ("harness.recovery", "harness.injector", "harness.recorder", "harness.advisor"),
    ("harness.trace_models",),
    ("harness.datapath", "analysis"),
    ("harness.cache", "harness.oracle", "harness.trainer", "harness.blueprint"),
    ("harness.lookahead", "harness.stale"),
    ("harness.job",),
    ("harness.assemble",),
    ("harness.cell", "harness.verify"),
    ("harness.grid",),
    ("harness.console",),
    ("harness.plan_spread",),
    ("harness.plan_command",),
    ("harness.trace_commands",),
    ("harness.commands",),
    ("run",),
)  # fmt: skip
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

CORE_MAY_IMPORT = {
    "bisect", "collections", "csv", "dataclasses", "enum", "fractions", "functools", "hashlib", "harness", "itertools",
    "math", "numba", "numpy", "operator", "pydantic", "re", "torch", "types", "typing",
}  # fmt: skip
"""Values in, values out: nothing that reads a file, a clock, the environment or another process."""

MAY_BRANCH_ON_THE_ENGINE = {
    "harness.assemble": "the one place that knows which engine a run is on",
    "harness.cell": "only a cell on rpc needs a fork server, and starting one is in no result",
    "harness.grid": "how many cells run at once is a matter of this machine and in no result",
    "analysis.fold": "it judges the record's machine part, and only a process has a wait status",
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


def read_modules() -> list[Module]:
    """Every module of the product."""
    paths = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("analysis/**/*.py"), ROOT / "run.py"]
    return [Module(_name(path), path.read_text()) for path in sorted(paths)]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = read_modules()
NAMES = frozenset(module.name for module in MODULES)
EVERY_MODULE = pytest.mark.parametrize("module", MODULES, ids=[module.name for module in MODULES])
LIBRARY = [module for module in MODULES if module.name != "run"]
CORE = [module for module in MODULES if f"{module.name}.".startswith("harness.core.")]


def part_of(name: str) -> str | None:
    """The part of LAYERS that module ``name`` belongs to."""
    return next((part for part in LAYER_OF if f"{name}.".startswith(f"{part}.")), None)


def test_the_files_are_there() -> None:
    """The laws below read the whole product, and every part that has a layer exists."""
    assert len(MODULES) > 50
    assert all(any(part_of(name) == part for name in NAMES) for part in LAYER_OF)


@EVERY_MODULE
def test_imports_point_down_only(module: Module) -> None:
    """A part imports itself and parts of lower layers: not those beside it, not those above, not even lazily."""
    own = part_of(module.name)
    if own is None:
        assert module.name == "harness", f"{module.name}: a new part; enter it in LAYERS where it stands"
    for name in sorted(module.imports(NAMES)):
        if name.partition(".")[0] not in ("harness", "analysis", "experiments", "tests", "benchmarks", "run"):
            continue
        part = part_of(name)
        assert part is not None, f"{module.name} imports {name}, which is no part of the product"
        assert own is not None
        assert part == own or LAYER_OF[part] < LAYER_OF[own], f"{module.name} imports {name}, which is not below it"


def test_no_module_needs_itself() -> None:
    """There is no ring of imports, inside a part or through several."""
    graph = {module.name: (module.imports(NAMES) & NAMES) - {module.name} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_model_knows_the_core_alone() -> None:
    """harness.model is mathematics: of the harness it imports the core and what compiled loops call."""
    names = {name for module in MODULES if part_of(module.name) == "harness.model" for name in module.imports(NAMES)}
    assert {part_of(name) for name in names if name.startswith("harness")} == {
        "harness.core", "harness.model", "harness.native",
    }  # fmt: skip
    assert {name.partition(".")[0] for name in names} - {"harness", "numba", "numpy", "torch"} == {
        "collections", "dataclasses", "itertools", "math", "threading", "typing", "weakref",
    }  # fmt: skip


def test_analysis_reads_records_only() -> None:
    """What judges a run does not share the code that ran it."""
    names = {name for module in MODULES if part_of(module.name) == "analysis" for name in module.imports(NAMES)}
    parts = {part_of(name) for name in names}
    assert parts.isdisjoint(
        {
            "harness.cluster",
            "harness.recovery",
            "harness.trainer",
            "harness.blueprint",
            "harness.job",
            "harness.assemble",
        }
    )
    assert {name for name in names if part_of(name) == "harness.core"}.isdisjoint(
        {"harness.core.pls", "harness.core.strategies"}
    ), "PLS is derived again from the events, not by the ledger that is being checked"


def test_torch_distributed_lives_in_two_files() -> None:
    """torch's communication is used by cluster/group.py (joining, leaving) and cluster/rpc.py (asking) alone."""
    users = {module.name for module in MODULES if module.uses_torch_distributed()}
    assert users == {"harness.cluster.group", "harness.cluster.rpc"}


def test_wandb_lives_in_one_file() -> None:
    """wandb is a view: one file imports it, and everything else runs without."""
    users = {m.name for m in MODULES if any(name.partition(".")[0] == "wandb" for name in m.imports())}
    assert users == {"harness.wandb_sink"}


@pytest.mark.parametrize("module", CORE, ids=[module.name for module in CORE])
def test_the_core_is_pure(module: Module) -> None:
    """harness.core touches no file, process or clock: it imports nothing that could, and calls no such builtin."""
    assert {name.partition(".")[0] for name in module.imports()} <= CORE_MAY_IMPORT
    assert module.builtins_called().isdisjoint({"open", "input", "print", "exec", "eval", "breakpoint"})
    forbidden = ("torch.save", "torch.load", "torch.set_num_threads", ".tofile", ".fromfile", ".memmap")
    used = [*module.attributes()]
    assert not [name for name in used if f".{name}".endswith(forbidden) or name.startswith(forbidden)]


@EVERY_MODULE
def test_all_chance_is_derived(module: Module) -> None:
    """No global generator: numpy's are made in core/seeds.py from (seed, labels), and torch's and Python's unused."""
    allowed = {"np.random", "np.random.Generator"}
    if module.name == "harness.core.seeds":
        allowed |= {"np.random.PCG64"}
    used = {name for name in module.attributes() if name.startswith(("np.random", "numpy.random"))}
    assert used <= allowed
    torch_draws = {"torch.manual_seed", "torch.seed", "torch.rand", "torch.randn", "torch.randint", "torch.randperm"}
    assert torch_draws.isdisjoint(module.attributes())
    assert {"random", "uuid"}.isdisjoint(module.imports())
    assert not [name for name in module.imports() if name.startswith("numpy.random")]


@pytest.mark.parametrize("module", LIBRARY, ids=[module.name for module in LIBRARY])
def test_the_library_neither_prints_nor_exits(module: Module) -> None:
    """Only the console writes to the terminal, by rich, and only run.py ends the process: no exemptions."""
    assert module.builtins_called().isdisjoint({"print", "exit", "quit", "breakpoint", "input"})
    assert "sys.exit" not in module.attributes()
    if module.name != "harness.console":
        assert {"sys.stdout", "sys.stderr", "sys.stdout.write", "sys.stderr.write"}.isdisjoint(module.attributes())


@EVERY_MODULE
def test_nothing_dies_politely(module: Module) -> None:
    """A kill is SIGKILL: ``terminate`` and SIGTERM, which a process may outlive or clean up after, appear nowhere."""
    assert not [name for name in module.attributes() if name.endswith(".terminate")]
    if part_of(module.name) == "harness.cluster":
        assert "SIGTERM" not in module.text


@EVERY_MODULE
def test_nobody_asks_which_engine(module: Module) -> None:
    """No code branches on the engine's name outside assemble, whatever is in the table with its reason."""
    assert module.branches_on_engine() == (module.name in MAY_BRANCH_ON_THE_ENGINE)


@EVERY_MODULE
def test_imports_can_be_read(module: Module) -> None:
    """Nothing is imported by a string, which would hide it from this file."""
    assert module.builtins_called().isdisjoint({"__import__", "import_module"})
    assert not [name for name in module.attributes() if name.endswith(".import_module")]


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed",
        "from torch import distributed as d",
        "import torch\ndef f(): return torch.distributed.rpc",
        "from torch.distributed.rpc import api",
        "from torch._C import _distributed_rpc",
        "from torch._C._distributed_c10d import Store",
    ],
)
def test_the_reader_sees_torch_distributed(text: str) -> None:
    """Every way to spell it is found."""
    assert Module("x", text).uses_torch_distributed()


def test_the_reader_sees_the_rest() -> None:
    """Lazy imports, methods of results, bare calls and every kind of comparison are found; look-alikes are not."""
    lazy = Module("x", "def f():\n    from harness import assemble\n    return assemble")
    assert lazy.imports(frozenset({"harness.blueprint", "harness.job", "harness.assemble"})) == {"harness.assemble"}
    calls = Module("x", "make(3).terminate()\nprint(1)\nconsole.print(2)\nnp.random.rand(3)")
    assert {".terminate", "console.print", "np.random.rand"} <= {*calls.attributes()}
    assert calls.builtins_called() == {"make", "print"}
    for text in ("a.engine == 'rpc'", "x = 1 if 'local' != e else 2", "e in ('rpc',)", "match e:\n case 'rpc': pass"):
        assert Module("x", text).branches_on_engine(), text
    assert not Module("x", "for engine in ('local', 'rpc'): run(engine)").branches_on_engine()
