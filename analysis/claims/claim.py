"""Claims of papers, of this project and of users: the section ``claim:`` of a YAML file (docs/EXTENDING.md)."""

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from analysis.claims.expect import (
    EXPECTATIONS,
    Expected,
    Less,
    Provided,
    Scope,
    Signed,
    Study,
    Trend,
    Within,
)
from analysis.claims.figures import Draw, Figure, Line, Panel, drawn
from analysis.claims.measures import MEASURES, Measure, Model, Names, check_columns, results_of
from analysis.claims.own import pareto, seeds, spread, traces, tracker_part
from analysis.claims.papers import accesses, agreement, healing, power, production, quality, resolution, slopes
from analysis.claims.rows import NO_RUN, Row
from analysis.claims.special_figures import draw_production, front, hours, planning
from analysis.load import COLUMNS, NOT_SWEPT, Frame
from analysis.stats import SETTING, STRATEGIES
from harness.config.experiment import load_experiment
from harness.config.plugins import imported
from harness.config.settings import CLAIM
from harness.config.words import expectation, suggest
from harness.config.yaml_file import Document, read_yaml
from harness.core.errors import ConfigError, HarnessError
from harness.sources import with_place

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "claims"
"""The folder with the files of the project's own claims."""

PARTS: Mapping[str, Sequence[str]] = {
    "CPR": (
        *("overhead", "quality", "resolution", "pls", "failures", "target", "fraction", "nodes", "poster", "trackers"),
        "production",
    ),
    "Settings of CPR": ("share", "ssu", "eviction", "mtbf", "hour", "placement", "optimizer", "taper"),
    "Caches": ("accesses", "embedding_share", "lookahead", "wire", "staleness"),
    "Past the papers": (
        *("mirror", "mirror_size", "pareto", "tracker_part", "models", "breaks", "traces", "seeds", "power"),
    ),
}
"""The parts of the page of claims, by heading, each with the names of its claims."""

Judge = Callable[[Frame], list[Row]]
_OF_PAPERS = (accesses, agreement, healing, power, production, quality, resolution, slopes)
JUDGES: Mapping[str, Judge] = {
    each.__name__: each for each in (*_OF_PAPERS, pareto, seeds, spread, tracker_part, traces)
}
"""Judges that a claim can name: functions from results to rows."""
FIGURES: Mapping[str, Draw] = {"front": front, "hours": hours, "planning": planning, "production": draw_production}
"""Figures that a claim can name, as its keys cannot describe them."""


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
    Annotated[Within, Tag("Within")]
    | Annotated[Less, Tag("Less")]
    | Annotated[Trend, Tag("Trend")]
    | Annotated[Signed, Tag("Signed")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message=f"expected a mapping with one of the keys {', '.join(EXPECTATIONS)}",
    ),
]


_FigureOrName = Annotated[
    Annotated[Figure, Tag("drawn")] | Annotated[str, Tag("named")],
    Discriminator(lambda value: "named" if isinstance(value, str) else "drawn"),
]


class Section(Model):
    """The section ``claim:`` of a file. ``study``, ``expect`` and ``judge`` give rows, in this order.

    ``experiment``: a path relative to this file; without it or a ``benchmark``, this file is the experiment too.
    ``by``: the key in which the results differ; ``as``: words for it; ``names``: words for its values. ``judge``: names
    in ``JUDGES``, or functions of a module beside the file: ``mine.py:function``. ``figure``: a description, a name in
    ``FIGURES``, or such a function.
    """

    title: str
    source: str
    note: str = ""
    experiment: Path | None = None
    benchmark: Benchmark | None = None
    by: str | None = None
    words: Annotated[str, Field(alias="as")] = ""
    names: Mapping[str, str] = {}
    measures: Mapping[str, Measure] = {}
    study: Annotated[Study | None, BeforeValidator(lambda own: {"of": own} if isinstance(own, str | list) else own)] = (
        None
    )
    expect: Sequence[_Expectation] = ()
    judge: Names = ()
    figure: _FigureOrName | None = None
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim: its section, the experiment's file or the benchmark, and the functions that judge and draw results."""

    name: str
    path: Path
    section: Section
    experiment: Path | Benchmark
    judges: Sequence[Judge]
    draw: Draw | None

    @property
    def is_ours(self) -> bool:
        """Whether the claim is the project's own, by the folder of its file, and not a user's."""
        return self.path.parent == FOLDER

    @property
    def command(self) -> str:
        return f"run.py reproduce {self.name if self.is_ours else self.path}"

    @property
    def measures(self) -> Mapping[str, Measure]:
        """The project's measures and those that the claim defines, by name."""
        return {**MEASURES, **self.section.measures}

    def rows(self, given: Frame | Sequence[Mapping[str, Any]]) -> list[Row]:
        """The rows for results (see ``results_of``).

        Raises ConfigError for a formula with an unknown column or without numbers, and for a user's judge that raises
        or returns no rows.
        """
        section, results = self.section, results_of(given)
        for own in section.measures.values() if len(results) else ():
            for formula in own.of:
                check_columns(formula, results)
        scope = Scope(results, self.measures, section.by, section.words, section.names)
        items = [*([section.study] if section.study else []), *section.expect]
        return [
            *(row for item in items for row in ([*item.rows(scope)] or _without_results(item, results))),
            *(row for judge in self.judges for row in judge(results)),
        ]


def _without_results(item: Study | Expected, results: Frame) -> Iterator[Row]:
    """A row for an expectation whose ``where`` no result meets; none for a study, and none without any results."""
    if isinstance(item, Expected) and len(results):
        where = ", ".join(f"{key}={value}" for key, value in item.where.items())
        yield Row(" and ".join(item.of) + f"; {where}" * bool(where), item.paper, "–", 0, "cannot be told", NO_RUN)


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
    draw = check.function(("figure",), section.figure, FIGURES) if isinstance(section.figure, str) else None
    judges = [check.function(("judge", number), name, JUDGES) for number, name in enumerate(section.judge)]
    claim = Claim(path.stem, path, section, experiment, judges, draw)
    if isinstance(section.figure, Figure):
        return replace(claim, draw=drawn(section.figure, claim.measures, section.by, section.names))
    return claim


def _complaints(error: ValidationError, document: Document) -> Iterator[str]:
    """A line for each mistake that pydantic found: place, key, and what was expected."""
    models = (Section, Study, Within, Less, Trend, Signed, Provided, Figure, Panel, Line, Measure, Benchmark)
    for each in error.errors():
        keys, where = document.find((CLAIM, *each["loc"]))  # some of its parts are tags, which are not keys of the file
        name = ".".join(map(str, keys))
        if each["type"] == "extra_forbidden":
            known = {field.alias or name for model in models for name, field in model.model_fields.items()}
            yield f"{where}: {name}: no such key here{suggest(str(keys[-1]), known - {str(keys[-1])})}"
        elif each["type"] == "missing":
            yield f"{where}: {name}: expected a key {each['loc'][-1]}"
        else:
            text = expectation(each["msg"])
            text = f"{text}, got {each['input']!r}" if each["msg"].startswith("Input should be") else text
            yield f"{where}: {name}: {text}"


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
        hint = suggest(str(name), known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"{place}: {'.'.join(map(str, (CLAIM, *keys)))}: expected {what}, got {name}{hint}")

    def function(self, keys: tuple[Any, ...], name: str, known: Mapping[str, Any]) -> Any:
        """The function of this name: one of ``known``, or ``FILE.py:NAME`` beside the claim. Raises ConfigError."""
        file, colon, function = name.partition(":")
        if not colon:
            self.one_of(keys, name, known, "a name or FILE.py:FUNCTION")
            return known[name]
        if not (self.path.parent / file).is_file():
            self.one_of(
                keys, Path(file).stem, [each.stem for each in self.path.parent.glob("*.py")], "a file beside it"
            )
        module = imported(str(self.path.parent / file), f"{self.path}: {keys[0]}")
        self.one_of(
            keys, function, [each for each in vars(module) if not each.startswith("_")], f"a function of {file}"
        )
        found = getattr(module, function)
        if not callable(found):
            raise ConfigError(f"{self.path}: {CLAIM}.{keys[0]}: expected a function, got {name}, which is none")
        return self._guarded(found, f"{self.path}: {CLAIM}.{'.'.join(map(str, keys))}: {name}", keys[0] == "judge")

    def _guarded(self, function: Callable[..., Any], where: str, judges: bool) -> Callable[..., Any]:
        """A user's ``function``, which raises ConfigError for its exceptions, and for a judge that returns no rows."""

        def call(*arguments: Any) -> Any:
            try:
                given = function(*arguments)
            except HarnessError:
                raise
            except Exception as error:
                words = f"{where} raised {type(error).__name__}: {error}"
                raise ConfigError(with_place(words, traceback.format_exc())) from error
            if judges and not (isinstance(given, list) and all(isinstance(row, Row) for row in given)):
                raise ConfigError(f"{where}: expected a list of analysis.claims.Row, got {given!r}")
            return given

        return call

    def names(self, source: Path | Benchmark) -> None:
        """Raise ConfigError if the claim's section names a measure, a strategy or a key that does not exist.

        ``source``: the experiment's file, which has the strategies and keys. Keys of a benchmark are not checked.
        """
        section = self.section
        measures = [*section.measures, *MEASURES]
        strategies, axes = ([*STRATEGIES], ()) if isinstance(source, Benchmark) else _of_experiment(source)
        columns = None if isinstance(source, Benchmark) else [*COLUMNS, *axes]
        for name, own in section.measures.items():
            for formula in own.of if columns is not None else ():
                try:
                    check_columns(formula, columns or ())
                except ConfigError as error:
                    _, place = self.document.find((CLAIM, "measures", name))
                    raise ConfigError(f"{place}: {CLAIM}.measures.{name}: {error}") from None
        items: list[tuple[tuple[Any, ...], Any]] = [((), section)]
        items += [(("study",), section.study)] if section.study else []
        items += [(("expect", number), each) for number, each in enumerate(section.expect)]
        if isinstance(section.figure, Figure):
            items += [(("figure", *keys), panel) for keys, panel in section.figure.places]
        if columns is not None:
            self._selections([*items, *((("measures", name), own) for name, own in section.measures.items())], columns)
        for keys, item in items:
            for field in ("of", "also", "y"):
                for name in getattr(item, field, ()):
                    self.one_of((*keys, field), name, measures, "a measure")
            if getattr(item, "provided", None):
                self.one_of((*keys, "provided", "of"), item.provided.of, measures, "a measure")
            named = (*(getattr(item, "strategy", None) or ()), *getattr(item, "less", ()), getattr(item, "than", None))
            for name in (each for each in named if isinstance(each, str)):
                field = next(each for each in ("strategy", "less", "than") if name in (getattr(item, each, None) or ()))
                self.one_of((*keys, field), name, strategies, "a strategy of the experiment")
            keys_of = columns and [*axes, *SETTING]
            for field, known in (("by", keys_of), ("x", columns and [*columns, *measures])):
                if known is not None and (name := getattr(item, field, None)) is not None:
                    self.one_of((*keys, field), name, known, "a key of the experiment's grids")

    def _selections(self, items: Sequence[tuple[tuple[Any, ...], Any]], columns: Collection[str]) -> None:
        """Raise ConfigError for a selection of results by a column that they lack."""
        for keys, item in items:
            for field in ("where", "against", "reference"):
                for name in getattr(item, field, ()):
                    self.one_of((*keys, field, name), name, columns, "a column of the results")


def _of_experiment(path: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The strategies of an experiment, and its swept keys. Raises ConfigError."""
    experiment = load_experiment(path, cell_hash=lambda config: config.model_dump_json())
    axes = [key for key in experiment.axes if key not in NOT_SWEPT]
    return [*dict.fromkeys(cell.config.strategy.name for cell in experiment.cells)], axes
