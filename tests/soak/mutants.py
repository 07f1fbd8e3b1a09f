"""Mutation testing by hand: small errors, drawn by seed, of which the tests should find each.

    python tests/soak/mutants.py --tree SCRATCH --draw 60 --seed 1 --out before.json
    python tests/soak/mutants.py --tree SCRATCH --again before.json --killed-by tests/core --out after.json

SCRATCH is a copy of the repository whose files nobody else uses: each mutant is written there, and removed again.
A mutant is found by the text of its lines, so ``--again`` works for each commit that still has this text.
"""

import argparse
import ast
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOMS = ("core", "recovery", "store", "client")
NO_CODE = "criteo_sizes.py"  # a table of data
THEN = ("tests/core", "tests/golden", "tests/client", "tests/recovery", "tests/store", "tests/run")
SWAPPED = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr)),
)
OPERATORS: dict[type, Any] = {
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    **dict(SWAPPED),
    **{right: left for left, right in SWAPPED},
}


@dataclass(frozen=True)
class Mutant:
    """One change: whole lines ``before``, at ``line`` of ``file`` when it was drawn, become ``after``."""

    file: str
    line: int
    before: str
    after: str


def changes(node: ast.AST) -> Iterator[str]:
    """Source text of ``node`` (of its condition, if it has one) with one error, each."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in OPERATORS:
            yield ast.unparse(ast.Compare(left, [OPERATORS[type(operator)]()], [right]))
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            yield f"({ast.unparse(ast.BinOp(left, OPERATORS[type(operator)](), right))})"
        case ast.BoolOp(operator, values):
            yield f"({ast.unparse(ast.BoolOp(OPERATORS[type(operator)](), values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield f"not ({ast.unparse(test)})"
        case ast.Constant(bool()):
            yield str(not node.value)
        case ast.Constant(int() | float()):
            yield from (f"({node.value} + 1)", f"({node.value} - 1)")
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All code below ``node``: without annotations, decorators, assertions, texts and the messages of errors."""
    skipped = ast.Assert | ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_code = name not in ("annotation", "returns", "decorator_list") and not isinstance(child, skipped)
            if isinstance(child, ast.AST) and is_code:
                yield child
                yield from nodes(child)


def mutants_of(root: Path, file: str) -> Iterator[Mutant]:
    """Every mutant of one module."""
    source = (root / file).read_text(encoding="utf-8")
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for node in nodes(ast.parse(source)):
        place: Any = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
        for change in changes(node):
            first, last = place.lineno - 1, place.end_lineno - 1
            tail = lines[last][place.end_col_offset :]
            after = lines[first][: place.col_offset] + change.encode() + tail
            yield Mutant(file, first + 1, b"".join(lines[first : last + 1]).decode(), after.decode())


def applied(source: str, mutant: Mutant) -> str:
    """``source`` with the mutant, at the place of its text that is nearest to its line."""
    starts = [k for k in range(len(source)) if source.startswith(mutant.before, k) and source[k - 1 : k] in ("", "\n")]
    if not starts:
        raise SystemExit(f"{mutant.file}:{mutant.line}: has no more the text {mutant.before.strip()!r}")
    start = min(starts, key=lambda k: abs(source.count("\n", 0, k) + 1 - mutant.line))
    return source[:start] + mutant.after + source[start + len(mutant.before) :]


class FirstFailure:
    """A plug-in of pytest: tests in the order of ``folders``, and the name of the first that fails."""

    def __init__(self, folders: list[str], killer: Path, skips: list[str]) -> None:
        self.folders = folders
        self.killer = killer
        self.skips = skips

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests of one process first: they find most, and cost least."""

        def rank(item: pytest.Item) -> tuple[bool, int]:
            return "rpc" in item.name, [item.nodeid.startswith(folder) for folder in self.folders].index(True)

        items[:] = sorted((item for item in items if not any(skip in item.nodeid for skip in self.skips)), key=rank)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.killer.exists():
            self.killer.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def judge(root: Path, mutant: Mutant, folders: list[str], skips: list[str], limit_s: int) -> dict[str, Any]:
    """Whether tests find the mutant: which one, or ``time`` where they come to no end in their processor time."""
    path, killer = root / mutant.file, root / f"killer-{os.getpid()}"
    source, started = path.read_text(encoding="utf-8"), time.monotonic()
    killer.unlink(missing_ok=True)
    path.write_text(applied(source, mutant), encoding="utf-8")
    try:
        if not (pid := os.fork()):
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *folders], [FirstFailure(folders, killer, skips)])
            os._exit(code)
        status = os.waitpid(pid, 0)[1]
        seconds = round(time.monotonic() - started, 1)
        ended = {0: "survived", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "killed")
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            ended = "time"
        return {
            **asdict(mutant),
            "ended": ended,
            "by": killer.read_text() if killer.exists() else "",
            "seconds": seconds,
        }
    finally:
        path.write_text(source, encoding="utf-8")
        killer.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a scratch copy of the repository")
    parser.add_argument("--out", type=Path, required=True, help="the JSON of verdicts, written after each mutant")
    parser.add_argument("--draw", type=int, default=60, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, help="the mutants of this file instead of drawn ones")
    parser.add_argument(
        "--killed-by", nargs="*", default=(), help="of those, such as a test whose name starts so killed"
    )
    parser.add_argument("--limit-s", type=int, default=150, help="processor time of the tests of one mutant")
    parser.add_argument("--tests", nargs="*", default=THEN, help="folders, after that of the mutant's own room")
    parser.add_argument("--skip", nargs="*", default=[], help="parts of the names of tests that are left out")
    args = parser.parse_args()
    root = args.tree.resolve()
    os.chdir(root)
    sys.path.insert(0, str(root))
    for name in ("harness", "numba", "torch", "pydantic"):
        __import__(name)  # once, and not for each mutant
    if args.again:
        rows = json.loads(args.again.read_text(encoding="utf-8"))
        chosen = [row for row in rows if not args.killed_by or row["by"].startswith(tuple(args.killed_by))]
        drawn = [Mutant(**{name: row[name] for name in Mutant.__annotations__}) for row in chosen]
    else:
        paths = [path for room in ROOMS for path in sorted((root / "harness" / room).glob("*.py"))]
        files = [str(path.relative_to(root)) for path in paths if path.name != NO_CODE]
        drawn = random.Random(args.seed).sample([m for file in files for m in mutants_of(root, file)], args.draw)
    verdicts = []
    for mutant in drawn:
        own = f"tests/{Path(mutant.file).parts[1]}"
        verdicts.append(judge(root, mutant, [own, *(f for f in args.tests if f != own)], args.skip, args.limit_s))
        args.out.write_text(json.dumps(verdicts, indent=1), encoding="utf-8")
        row = verdicts[-1]
        print(row["ended"], f"{row['seconds']}s", f"{mutant.file}:{mutant.line}", row["by"], flush=True)  # noqa: T201
    print({end: sum(row["ended"] == end for row in verdicts) for end in ("killed", "time", "survived")})  # noqa: T201


if __name__ == "__main__":
    main()
