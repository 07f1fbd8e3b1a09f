"""Validation of settings: each mistake becomes one line of a ConfigError, with its place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.config.keys import (
    complaint,
    group_keys,
    leaf_keys,
    names_of,
    no_option,
    option_keys,
    part_keys,
    unknown,
)
from harness.config.model import Config
from harness.config.settings import CLAIM, GRIDS, Setting
from harness.config.words import options_of
from harness.config.yaml_file import read_yaml
from harness.core.choices import CHOICES, DEFAULTS
from harness.core.errors import ConfigError
from harness.files import expanded


def refuse_unknown(settings: Iterable[Setting]) -> None:
    """Raise ConfigError for keys that do not exist, one line each."""
    known = leaf_keys().keys() | group_keys()
    of_file = (GRIDS, CLAIM)
    wrong = [
        at(setting, unknown(setting.key, of_file if setting.argument is None else ()))
        for setting in settings
        if setting.key not in known
    ]
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))


def fitted(combinations: Sequence[list[Setting]]) -> list[list[Setting]]:
    """Each combination of settings without the options that its strategy, or its model, does not have.

    Raises ConfigError for an option that no combination's strategy (model) has. Exception: an option of the file is
    dropped without an error if the command line or a caller names the strategy (model), since the file may have been
    written for another one.
    """
    fit = [*combinations]
    for group in CHOICES:
        fit = _fitted(group, fit)
    return fit


def _fitted(group: str, combinations: Sequence[list[Setting]]) -> list[list[Setting]]:
    chosen, every = f"{group}.name", option_keys(group)
    names = [next((s.value for s in settings if s.key == chosen), DEFAULTS[group]) for settings in combinations]
    known = list(dict.fromkeys(name for name in names if isinstance(name, str) and name in CHOICES[group]))
    options = frozenset[str]().union(*(part_keys(group, name) for name in known))
    if len(known) == len({repr(name) for name in names}):
        wrong = [
            at(setting, no_option(setting.key, known))
            for settings in combinations
            for setting in settings
            if setting.key in every - options and (setting.argument is not None or not _is_renamed(settings, chosen))
        ]
        if wrong:
            raise ConfigError("\n".join(dict.fromkeys(wrong)))
    return [
        [s for s in settings if s.key not in every or name not in known or s.key in part_keys(group, name)]
        for name, settings in zip(names, combinations, strict=True)
    ]


def _is_renamed(settings: Iterable[Setting], chosen: str) -> bool:
    """Whether the key ``chosen`` comes from the command line or from a caller, and not from the file."""
    return any(s.key == chosen and (s.argument is not None or not s.where) for s in settings)


def build(combinations: Sequence[Sequence[Setting]]) -> list[Config]:
    """The validated configurations. Raises ConfigError with all distinct mistakes, one line each."""
    configs: list[Config] = []
    mistakes: dict[str, None] = {}
    for combination in combinations:
        settings = [each for setting in combination for each in _constants(setting)]
        try:
            refuse_unknown(settings)
            configs.append(Config.model_validate(_tuples(tree(settings)), strict=True))
        except ValidationError as error:
            mistakes |= dict.fromkeys(_sentences(error, settings))
        except ConfigError as error:
            mistakes[str(error)] = None
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return configs


def config_of(values: Mapping[str, Any]) -> Config:
    """The validated configuration of nested mappings. Raises ConfigError as :func:`build`, without places."""
    settings = [*_settings_of(values, "")]
    refuse_unknown(settings)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(dict.fromkeys(_sentences(error, settings)))) from error


def _settings_of(values: Mapping[str, Any], prefix: str) -> Iterator[Setting]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in group_keys():
            yield from _settings_of(value, f"{key}.")
        else:
            yield Setting(key=key, value=value, where="")


def _constants(setting: Setting) -> list[Setting]:
    """A group with names, given as a mapping or as the YAML file of one, as a setting for each key; others unchanged.

    Raises ConfigError for a file that cannot be read.
    """
    if setting.key not in leaf_keys().keys() & group_keys():
        return [setting]
    inner: list[Setting] = []
    if isinstance(setting.value, dict):
        inner = [replace(setting, key=f"{setting.key}.{key}", value=value) for key, value in setting.value.items()]
    elif isinstance(setting.value, str) and setting.value.endswith(".yaml"):
        document = read_yaml(Path(expanded(setting.value)))
        for key, value in document.value.items():
            inner.append(Setting(key=f"{setting.key}.{key}", value=value, where=document.find((key,))[1]))
    return [replace(setting, value=names_of(setting.key)[0]), *inner] if inner else [setting]


def tree(settings: Iterable[Setting]) -> dict[str, Any]:
    """The settings as nested mappings. ``profile: NAME`` beside ``profile.x`` becomes ``profile.base``.

    Raises ConfigError for a plain value of a group of keys.
    """
    root: dict[str, Any] = {}
    for setting in settings:
        if setting.key in group_keys() or setting.key.endswith(".base"):
            _check_group(setting)
        *groups, leaf = setting.key.split(".")
        target = root
        for group in groups:
            inner = target.get(group)
            target[group] = {"base": inner} if isinstance(inner, str) else dict(inner or {})
            target = target[group]
        target[leaf] = setting.value
    return root


def _check_group(setting: Setting) -> None:
    group, value = setting.key.removesuffix(".base"), setting.value
    is_null = value is None and {"type": "null"} in options_of(leaf_keys().get(setting.key, {}))
    if value not in names_of(group) and not is_null:
        raise ConfigError(at(setting, complaint(setting.key, value)))


def _tuples(value: Any) -> Any:
    """Lists as tuples: YAML gives lists, strict validation expects tuples."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def _sentences(error: ValidationError, settings: Sequence[Setting]) -> Iterable[str]:
    given = {setting.key: setting for setting in settings}
    for problem in error.errors():
        parts, message = [str(part) for part in problem["loc"]], problem["msg"].removeprefix("Value error, ")
        part = None
        if parts and parts[0] in CHOICES:  # the name that chose the options stands second; without it, it is at fault
            part = parts[1] if len(parts) > 1 else None
            parts[1:2] = [] if part else ["name"]
        if problem["type"] == "value_error" and ".".join(parts) in group_keys():  # of several keys of a group
            sentence = ".".join([*parts, message])
            key = sentence.partition(":")[0]
            yield at(given[key], sentence) if key in given else sentence
            continue
        key = next((k for k in (".".join(parts[:n]) for n in range(len(parts), 0, -1)) if k in given), None)
        if key is None:  # found by a validator of the whole configuration
            yield f"{'.'.join(parts)}: {message}".removeprefix(": ")
        elif problem["type"] == "extra_forbidden":  # in nested mappings of a caller
            dotted = f"{key}: expected a mapping in a mapping, got a dotted key"
            yield at(given[key], no_option(key, [part]) if part else dotted)
        elif problem["type"] == "path":
            yield at(given[key], f"{key}: {message}")
        else:
            yield at(given[key], complaint(key, given[key].value, part))


def at(setting: Setting, sentence: str) -> str:
    """The error line ``sentence`` with the place of ``setting``: file and line, the command-line argument, or none."""
    if setting.argument is None:
        return f"{setting.where}: {sentence}" if setting.where else sentence
    return f"{sentence} ({setting.argument} on the command line)"
