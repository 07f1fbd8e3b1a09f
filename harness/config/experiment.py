"""Configurations of one run or of an experiment's cells, from YAML files and the command line.

An experiment file is a configuration plus ``grids:``, a list of mappings from dotted keys to lists of values. A mapping
stands for all combinations of its values; the cells of all mappings are joined, equal ones merged. Each mistake is one
line of a ConfigError: what, where (``file:line`` or the command-line argument), and what was expected.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.config.build import at, build, fitted, refuse_unknown, tree
from harness.config.keys import IRRELEVANT, complaint, is_irrelevant, list_keys, option_keys
from harness.config.laws import Law
from harness.config.model import Config
from harness.config.profiles import Profile
from harness.config.settings import Setting, read_argument, read_settings, refuse_twice
from harness.config.words import show
from harness.core.choices import CHOICES
from harness.core.errors import ConfigError
from harness.core.strategies import STRATEGIES

_FIXED = ("out", "name")  # the same in every cell
_SLUG_LENGTH = 120  # characters; with the hash well below what file systems take
_ALWAYS_SHOWN = ("engine", "strategy.name", "seed")  # in every slug
_LAW = "trace.law"  # a name stands for all keys of the group
_UNNAMED = ("plugins", "name", "wandb", "store", "jobs")  # in no name of a variant's folder


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: its configuration, a readable name, the hash of all that affects it, its folder."""

    config: Config
    slug: str
    hash: str
    run_dir: Path


@dataclass(frozen=True)
class Experiment:
    """The cells of an experiment file in order, and the file's contents with all overrides applied (``resolved``).

    ``axes``: the keys of the file's grids, also keys that an override has fixed to one value.
    """

    name: str
    out: Path
    cells: tuple[Cell, ...]
    resolved: dict[str, Any]
    axes: tuple[str, ...] = ()


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration of one run, of a file or (None) of ``overrides`` alone, as ``key=value``. Raises ConfigError.

    ``name`` and ``out`` default to the file's stem and ``runs/<stem>``.
    """
    given = _given(path, overrides)
    return build(fitted([given]))[0]


def load_variant(path: Path, overrides: Sequence[str]) -> Config:
    """As :func:`load_config`, but the values of the overrides are added to ``out``: each variant has its own folder.

    ``out`` stays as given if an override sets it. Values of plugins, name, wandb, store and jobs are not added. At most
    120 characters are.
    """
    config = load_config(path, overrides)
    keys = [setting.key for setting in _arguments(overrides)]
    if "out" in keys:
        return config
    words = _words(config, [key for key in keys if not key.startswith(_UNNAMED)])
    return config.model_copy(update={"out": "-".join([config.out, *words])[: len(config.out) + _SLUG_LENGTH]})


def load_each(path: Path | None, overrides: Sequence[str], strategies: Iterable[str]) -> dict[str, Config]:
    """One configuration per strategy, by name, from one file (None: no file) and one command line.

    The strategies are ``strategies`` and any that the command line names. A configuration has none of the options that
    its strategy lacks.

    Raises ConfigError, also for an option of the command line that none of these strategies has.
    """
    given = _given(path, overrides)
    for setting in given:
        if setting.key == "strategy.name" and setting.value not in [*CHOICES["strategy"]]:
            raise ConfigError(at(setting, complaint(setting.key, setting.value)))
    named = [s.value for s in given if s.key == "strategy.name" and s.argument is not None]
    names = [Setting(key="strategy.name", value=name, where="") for name in dict.fromkeys([*strategies, *named])]
    configs = build(fitted([_join(given, [name]) for name in names]))
    return {config.strategy.name: config for config in configs}


def load_experiment(
    path: Path, overrides: Sequence[str] = (), *, cell_hash: Callable[[Config], str], samples_factor: float = 1.0
) -> Experiment:
    """The experiment in a file. In ``overrides`` a list adds or replaces an axis in each grid; a single value fixes it.

    For keys whose value is itself a list, a list of lists is an axis. ``cell_hash`` gives the hash of all that affects
    a cell's result; equal hashes are one cell. A strategy without failures and saves has one cell for all traces and
    profiles, under the first of them. ``store.keep_finished`` is false by default. ``samples_factor`` multiplies the
    file's ``strategy.interval_samples``, for data of another length.

    Raises:
        ConfigError: one line per mistake, also for cells that differ only in keys that change no result.
        UserError: as ``cell_hash``.
    """
    base, grids = read_settings(path)
    base, *grids = ([_scaled(s, samples_factor) for s in part] for part in [base, *(grids or [[]])])
    arguments = _arguments(overrides)
    base = _join(_defaults(path), [Setting(key="store.keep_finished", value=False, where=str(path))], base)
    refuse_unknown([*base, *itertools.chain(*grids), *arguments])
    for setting in base:
        if isinstance(setting.value, list) and setting.key not in list_keys():
            raise ConfigError(at(setting, f"{complaint(setting.key, setting.value)}; an axis belongs under `grids:`"))
    overridden = {setting.key for setting in arguments}
    axes = [[*(s for s in grid if s.key not in overridden), *arguments] for grid in grids]
    combinations = [list(combination) for grid in axes for combination in itertools.product(*map(_values, grid))]
    fit = fitted([_join(base, combination) for combination in combinations])
    configs = build(fit)
    keys = dict.fromkeys(setting.key for combination in combinations for setting in combination)
    varied = [key for key in keys if len({repr(_value(config, key)) for config in configs}) > 1]
    cells: dict[str, Cell] = {}
    references: dict[str, str] = {}
    merged: list[str] = []
    for config, combination in zip(configs, combinations, strict=True):
        own = {setting.key for setting in combination}
        slug, digest = _slug(config, [key for key in varied if key in own]), cell_hash(config)
        strategy = STRATEGIES[config.strategy.name]
        if not (strategy.injects_failures or strategy.saves_initially):
            digest = references.setdefault(_without_failures(config), digest)
        cell = cells.setdefault(digest, Cell(config, slug, digest, Path(config.out) / f"{slug}-{digest}"))
        merged += _dropped(cell.config, config, combination)
    if merged:
        raise ConfigError("\n".join(dict.fromkeys(merged)))
    return Experiment(
        name=configs[0].name,
        out=Path(configs[0].out),
        cells=tuple(cells.values()),
        resolved=_resolved(base, axes, fit),
        axes=tuple(dict.fromkeys(setting.key for grid in grids for setting in grid)),
    )


def _scaled(setting: Setting, factor: float) -> Setting:
    """The setting; if it is ``strategy.interval_samples``, with its values multiplied by ``factor`` and rounded."""
    if setting.key != "strategy.interval_samples" or factor == 1.0:
        return setting
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    scaled = [value if value is None else round(factor * value) for value in values]
    return replace(setting, value=scaled if isinstance(setting.value, list) else scaled[0])


def _without_failures(config: Config) -> str:
    """What the result of a strategy without failures and saves depends on, and the engine: no trace and no profile."""
    content = config.model_dump(mode="json", exclude=IRRELEVANT | {"trace": True, "profile": True})
    return json.dumps([config.engine, config.num_ps, content])


def _dropped(config: Config, other: Config, settings: Iterable[Setting]) -> Iterator[str]:
    """Error lines on two configurations with the same hash: one for each of ``settings`` in which they differ.

    Equal hashes are one cell, although a setting that changes no result may differ.
    """
    for setting in settings:
        if is_irrelevant(setting.key) and _value(config, setting.key) != _value(other, setting.key):
            yield at(
                setting,
                f"{setting.key}: expected one value, as it changes no result and cells that differ in it alone are one "
                "cell; to time each value, give each an `out` of its own",
            )


def _given(path: Path | None, overrides: Sequence[str]) -> list[Setting]:
    """All settings of one run; the command line's replace the file's. Raises ConfigError."""
    base: list[Setting] = []
    if path is not None:
        settings, grids = read_settings(path)
        if grids is not None:
            raise ConfigError(f"{path}: expected one configuration, got `grids:`, which are for `run.py grid {path}`")
        base = _join(_defaults(path), settings)
    given = _join(base, _arguments(overrides))
    refuse_unknown(given)
    hint = "; a list is an axis of `run.py grid`" if path else ""
    for setting in given:
        if isinstance(setting.value, list) and setting.key not in list_keys():
            raise ConfigError(at(setting, complaint(setting.key, setting.value) + hint))
    return given


def _defaults(path: Path) -> list[Setting]:
    stem = path.stem or "run"
    return [
        Setting(key="name", value=stem, where=str(path)),
        Setting(key="out", value=f"runs/{stem}", where=str(path)),
    ]


def _arguments(overrides: Sequence[str]) -> list[Setting]:
    settings = [setting for argument in overrides for setting in read_argument(argument)]
    refuse_twice(settings)
    return settings


def _join(*parts: Iterable[Setting]) -> list[Setting]:
    """All settings in order; a setting of a later part replaces one of the same key in an earlier part."""
    joined: dict[str, Setting] = {}
    for setting in itertools.chain(*parts):
        joined.pop(setting.key, None)
        joined[setting.key] = setting
    return list(joined.values())


def _values(setting: Setting) -> list[Setting]:
    """One setting for each value of an axis. Raises ConfigError for an empty axis, or one of ``out`` or ``name``."""
    value = setting.value
    is_axis = isinstance(value, list)
    if is_axis and setting.key in list_keys():
        is_axis = bool(value) and all(isinstance(v, list | None) for v in value)
    if not is_axis:
        return [setting]
    if not value:
        raise ConfigError(at(setting, f"{setting.key}: expected at least one value, got an empty list"))
    if setting.key in _FIXED:
        raise ConfigError(at(setting, f"{setting.key}: expected one value for all cells, got the list {show(value)}"))
    return [replace(setting, value=v) for v in value]


def _slug(config: Config, varied: Iterable[str]) -> str:
    """A readable name: engine, strategy, seed, then the other ``varied`` keys; at most 120 characters."""
    others = [key for key in varied if key not in _ALWAYS_SHOWN]
    parts = [config.engine, config.strategy.name, f"seed{config.seed}", *_words(config, others)]
    return "-".join(parts)[:_SLUG_LENGTH]


def _words(config: Config, keys: Iterable[str]) -> list[str]:
    """The values of ``keys`` as parts of a file name, most of them after the key's name; null values are left out."""
    words: list[str] = []
    for key in dict.fromkeys(_LAW if key.startswith(_LAW) else key for key in keys):
        value = _value(config, key)
        if value is None:
            continue
        if isinstance(value, Profile | Law):
            text = value.name.replace("*", "+")
        elif key in ("engine", "strategy.name"):
            text = value
        elif key == "trace.path":
            text = Path(value).stem
        else:
            text = key.rpartition(".")[2] + ("x".join(map(str, value)) if isinstance(value, tuple) else str(value))
        words.append(re.sub(r"[^A-Za-z0-9_.+]+", "_", text).strip("_"))
    return words


def _value(config: Config, key: str) -> Any:
    value: Any = config
    for attribute in key.split("."):
        value = getattr(value, attribute, None)  # None: an option of another strategy, or the base of a profile
    return value


def _resolved(
    base: Iterable[Setting], axes: Iterable[Iterable[Setting]], combinations: Iterable[Iterable[Setting]]
) -> dict[str, Any]:
    """The experiment as the mapping of a file: base settings, then ``grids``; without options that no cell has."""
    options = frozenset[str]().union(*map(option_keys, CHOICES))
    idle = options - {setting.key for settings in combinations for setting in settings}
    axes = [[axis for axis in grid if axis.key not in idle] for grid in axes]
    grids = [{axis.key: [v.value for v in _values(axis)] for axis in grid if axis.key not in _FIXED} for grid in axes]
    fixed = [axis for grid in axes for axis in grid if axis.key in _FIXED]
    return {**tree(setting for setting in _join(base, fixed) if setting.key not in idle), "grids": grids}
