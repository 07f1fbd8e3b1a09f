"""Claims of papers, of this project and of users: the section ``claim:`` of a YAML file (docs/EXTENDING.md)."""

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError

from analysis.claims.expect import EXPECTATIONS, Expected, Less, Model, Names, Scope, Trend, Within
from analysis.claims.measures import MEASURES, results_of
from analysis.claims.rows import Row
from analysis.load import COLUMNS, NOT_SWEPT, Frame
from analysis.stats import SETTING
from harness.config.experiment import load_experiment
from harness.config.plugins import imported
from harness.config.settings import CLAIM
from harness.config.words import expectation, suggest
from harness.config.yaml_file import Document, read_yaml
from harness.core.errors import ConfigError, HarnessError
from harness.sources import with_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "claims"
"""The folder with the files of the project's own claims."""

PARTS: Mapping[str, Sequence[str]] = {
    "CPR": ("emulation", "pls", "failures", "target", "nodes", "poster", "trackers", "production"),
    "Settings of CPR": ("mtbf", "hour", "optimizer", "taper"),
    "Caches": ("accesses", "embedding_share", "lookahead", "wire", "staleness"),
    "Past the papers": ("mirror", "mirror_size", "tracker_part", "models"),
}
"""The parts of the page of claims, by heading, each with the names of its claims."""

Judge = Callable[[Frame], list[Row]]
"""``judge`` of a file beside a claim: rows for results (``analysis.claims.measures.results_of``)."""
Draw = Callable[[Frame, "Axes"], None]
"""``draw`` of a file beside a claim: draws results into the axes. It may raise ConfigError."""


class Benchmark(Model):
    """A benchmark: a script, its arguments as a shell reads them, and the key of the list of results in its JSON."""

    script: Path
    arguments: str = ""
    results: str = "results"


def _kind(value: Any) -> str | None:
    """The name of an expectation's class, by its key of ``EXPECTATIONS``; None unless it has exactly one of these."""
    kinds = [kind.__name__ for key, kind in EXPECTATIONS.items() if isinstance(value, Mapping) and key in value]
    return kinds[0] if len(kinds) == 1 else None


_Expectation = Annotated[
    Annotated[Within, Tag("Within")] | Annotated[Less, Tag("Less")] | Annotated[Trend, Tag("Trend")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message=f"expected a mapping with one of the keys {', '.join(EXPECTATIONS)}",
    ),
]


class Section(Model):
    """The section ``claim:`` of a file. ``expect`` and ``judge`` give rows, in this order.

    ``experiment``: a path relative to this file; without it or a ``benchmark``, this file is the experiment too.
    ``by``: the key in which the cells differ; ``as``: the name of this key in the rows. ``judge``: a Python file beside
    this one with a function ``judge`` (``Judge``); ``figure``: one with a function ``draw`` (``Draw``).
    """

    title: str
    source: str
    note: str = ""
    experiment: Path | None = None
    benchmark: Benchmark | None = None
    by: str | None = None
    words: Annotated[str, Field(alias="as")] = ""
    expect: Sequence[_Expectation] = ()
    judge: str | None = None
    figure: str | None = None
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim: its section, the experiment's file or the benchmark, and the functions that judge and draw results."""

    name: str
    path: Path
    section: Section
    experiment: Path | Benchmark
    judge: Judge | None
    draw: Draw | None

    @property
    def is_ours(self) -> bool:
        """Whether the claim is the project's own, by the folder of its file, and not a user's."""
        return self.path.parent == FOLDER

    @property
    def command(self) -> str:
        return f"run.py reproduce {self.name if self.is_ours else self.path}"

    def rows(self, given: Frame | Sequence[Mapping[str, Any]]) -> list[Row]:
        """The rows for results (see ``results_of``); [] without any.

        Raises ConfigError for a judge that raises or returns no rows.
        """
        results = results_of(given)
        if results.empty:
            return []
        scope = Scope(results, self.section.by, self.section.words)
        return [
            *(row for item in self.section.expect for row in item.rows(scope)),
            *(self.judge(results) if self.judge else ()),
        ]


class Sentence(Model):
    """A sentence of a paper's abstract or poster. ``here``: what was measured of it, or why it is not judged.

    ``claim``: the claim that judges it, by its ``rows`` whose name contains one of these texts (none: by all).
    """

    paper: str
    says: str
    here: str
    claim: str | None = None
    rows: Names = ()


def sentences() -> list[Sentence]:
    """The sentences of papers that head the page (``sentences.yaml`` in ``FOLDER``). Raises ConfigError."""
    path = FOLDER / "sentences.yaml"
    return [Sentence.model_validate(each) for each in Document(path.read_bytes(), str(path)).value]


def names() -> list[str]:
    """The names of the project's own claims, in their order on the page."""
    return [name for part in PARTS.values() for name in part]


def find(word: str) -> Claim:
    """The project's claim with the name ``word``, or the claim in the YAML file ``word``.

    Raises ConfigError if there is no such claim, and as :func:`read`.
    """
    if word in names() and not FOLDER.is_dir():
        raise ConfigError(
            f"claim: {word}: expected the project's experiments in {FOLDER}, got no such folder; they are in the "
            "repository: clone it, and run this there, or name a file of your own"
        )
    if word in names():
        return read(FOLDER / f"{word}.yaml")
    if not word.endswith((".yaml", ".yml")):
        hint = suggest(word, names()) or "; `run.py reproduce --dry-run` lists them"
        raise ConfigError(f"claim: expected a file FILE.yaml or the name of a claim, got {word}{hint}")
    return read(Path(word))


def read(path: Path) -> Claim:
    """The claim in a YAML file. Raises ConfigError, which says where the mistake is and what was expected."""
    document = read_yaml(path)
    if document.value.get(CLAIM) is None:
        raise ConfigError(f"{path}: expected a section `{CLAIM}:`, got {', '.join(document.value)}")
    try:
        section = Section.model_validate(document.value[CLAIM])
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, document))) from None
    experiment = section.benchmark or (path.parent / section.experiment if section.experiment else path)
    check = _Check(path, section, document)
    check.names(experiment)
    return Claim(path.stem, path, section, experiment, check.function("judge"), check.function("figure"))


def _complaints(error: ValidationError, document: Document) -> Iterator[str]:
    """A line for each mistake that pydantic found: place, key, and what was expected."""
    for each in error.errors():
        keys, where = document.find((CLAIM, *each["loc"]))  # some of its parts are tags, which are not keys of the file
        name = ".".join(map(str, keys))
        if each["type"] == "extra_forbidden":
            models = (Section, Within, Less, Trend, Benchmark)
            known = {field.alias or name for model in models for name, field in model.model_fields.items()}
            yield f"{where}: {name}: no such key here{suggest(str(keys[-1]), known - {str(keys[-1])})}"
        elif each["type"] == "missing":
            yield f"{where}: {name}: expected a key {each['loc'][-1]}"
        else:
            text = expectation(each["msg"])
            text = f"{text}, got {each['input']!r}" if each["msg"].startswith("Input should be") else text
            yield f"{where}: {name}: {text}"


_FUNCTIONS = {"judge": "judge", "figure": "draw"}
"""The function that a file beside a claim must have, by the key that names the file."""


@dataclass(frozen=True)
class _Check:
    """Checks of the names in a section. Errors have file and line, and the most similar known name."""

    path: Path
    section: Section
    document: Document

    def one_of(self, keys: tuple[Any, ...], name: Any, known: Collection[str], what: str) -> None:
        """Raise ConfigError if ``name`` is none of ``known``. ``keys``: where it is in the section."""
        if name in known:
            return
        _, place = self.document.find((CLAIM, *keys))
        hint = suggest(str(name), known) or f"; there are {', '.join(known) or 'none'}"
        raise ConfigError(f"{place}: {'.'.join(map(str, (CLAIM, *keys)))}: expected {what}, got {name}{hint}")

    def function(self, key: str) -> Any:
        """The function of the file that the section names under ``key``; None if it names none. Raises ConfigError."""
        file, name = getattr(self.section, key), _FUNCTIONS[key]
        if file is None:
            return None
        files = [each.name for each in self.path.parent.glob("*.py")]
        self.one_of((key,), file, files, "a Python file beside the claim")
        found = getattr(imported(str(self.path.parent / file), f"{self.path}: {key}"), name, None)
        _, place = self.document.find((CLAIM, key))
        where = f"{place}: {CLAIM}.{key}: {file}"
        if not callable(found):
            raise ConfigError(f"{where}: expected a function {name} in this file, got none")

        def call(*arguments: Any) -> Any:
            try:
                given = found(*arguments)
            except HarnessError:
                raise
            except Exception as error:
                words = f"{where}: {name} raised {type(error).__name__}: {error}"
                raise ConfigError(with_place(words, traceback.format_exc())) from error
            if key == "judge" and not (isinstance(given, list) and all(isinstance(row, Row) for row in given)):
                raise ConfigError(f"{where}: expected a list of analysis.claims.Row from {name}, got {given!r}")
            return given

        return call

    def names(self, source: Path | Benchmark) -> None:
        """Raise ConfigError if the section names a measure, a strategy or a key that does not exist.

        ``source``: the experiment's file, which has the strategies and keys; or a benchmark, which needs a judge.
        """
        if isinstance(source, Benchmark):
            if self.section.expect or self.section.judge is None:
                _, place = self.document.find((CLAIM,))
                raise ConfigError(f"{place}: {CLAIM}: expected a judge, and no expect, beside a benchmark")
            return
        strategies, axes = _of_experiment(source)
        if self.section.by is not None:
            self.one_of(("by",), self.section.by, [*axes, *SETTING], "a key of the experiment's grids")
        for number, item in enumerate(self.section.expect):
            self._expected(("expect", number), item, strategies, [*COLUMNS, *axes])

    def _expected(self, keys: tuple[Any, ...], item: Expected, arms: Sequence[str], columns: Sequence[str]) -> None:
        for name in item.of:
            self.one_of((*keys, "of"), name, [*MEASURES], "a measure")
        for field in ("strategy", "less", "than"):
            named = getattr(item, field, None) or ()
            for name in (named,) if isinstance(named, str) else named:
                self.one_of((*keys, field), name, arms, "a strategy of the experiment")
        for name in item.where:
            self.one_of((*keys, "where", name), name, columns, "a column of the results")


def _of_experiment(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The strategies of an experiment, and its swept keys. Raises ConfigError."""
    experiment = load_experiment(path, cell_hash=lambda config: config.model_dump_json())
    axes = [key for key in experiment.axes if key not in NOT_SWEPT]
    return [*dict.fromkeys(cell.config.strategy.name for cell in experiment.cells)], axes
