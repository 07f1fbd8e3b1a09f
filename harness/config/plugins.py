"""Plugins: modules of the user that add strategies, trackers, kinds of save and other parts to the harness's tables.

They are imported before the configuration's models, which are built from these tables. They and all that they import
are part of the code that a result names (``harness/record/code.py``).
"""

# ruff: noqa: PLC0415 - `requested` runs before every command

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from harness import sources
from harness.core.errors import ConfigError
from harness.files import expanded

LOADED: dict[str, ModuleType] = {}
"""Each plugin that was loaded, by the name that the user gave."""

DIGESTS: dict[str, str] = {}
"""Digest of each plugin, by the same name, and of each other own module (``harness/sources.py``), by its own name."""

DISTRIBUTIONS: list[str] = []
"""Installed distributions whose objects or modules those modules hold."""

ENTRY_POINTS = "cpr_harness.plugins"
"""Group of entry points by which an installed package offers plugins."""

_MODELS = "harness.config.model"
_KEY = "plugins"


def requested(paths: Sequence[Path], overrides: Sequence[str]) -> Sequence[str]:
    """The plugins that the last override of the key ``plugins`` names; without one, those that the files name.

    A file of a claim adds the plugins of the experiment that it names. Imports nothing heavy. Mistakes in overrides
    and files are ignored here; they are reported with their place when the configuration is read.
    """
    for word in reversed(overrides):
        if word.startswith(f"{_KEY}="):
            return _names(_value_of(word.removeprefix(f"{_KEY}=").encode(errors="surrogatepass")))
    names: list[str] = []
    for path in paths:
        values = _content(path)
        claim = values.get("claim")
        beside = claim.get("experiment") if isinstance(claim, dict) else None
        files = [values, *([_content(path.parent / beside)] if isinstance(beside, str) else [])]
        names += [name for each in files for name in _names(each.get(_KEY))]
    return names


def _content(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file that contains the text ``plugins`` or ``experiment:``; empty for any other file."""
    with suppress(OSError):
        if _KEY.encode() in (text := path.read_bytes()) or b"experiment:" in text:
            return value if isinstance(value := _value_of(text), dict) else {}
    return {}


def _value_of(text: bytes) -> Any:
    """The value of a YAML text; None if the text is not valid."""
    from harness.config.yaml_file import Document

    with suppress(ConfigError):
        return Document(text, "").value
    return None


def _names(value: Any) -> list[str]:
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]


def load(names: Sequence[str]) -> None:
    """Import plugins: each is an entry point, a dotted module name, or a path that ends in ``.py``.

    An entry point belongs to an installed package, in group ``cpr_harness.plugins``. A path is relative to the working
    directory. Plugins that are loaded already are skipped.

    Raises ConfigError for a module that cannot be imported, or if the configuration's models are imported already.
    """
    from harness.core.strategies import OPTIONS, STRATEGIES, name_options

    for name in map(expanded, names):
        if name in LOADED:
            continue
        if _MODELS in sys.modules:
            raise ConfigError(f"plugins: {name}: expected before any configuration is made, got it afterwards")
        module = imported(name, "plugins")
        if what := _added_too_late():
            raise ConfigError(f"plugins: {name}: imports {_MODELS} before it adds a {what}; expected it afterwards")
        LOADED[name] = module
    for name in STRATEGIES.keys() - OPTIONS.keys():
        _check_signatures(name, STRATEGIES[name])
    name_options()
    if LOADED:
        _note_code()


def _check_signatures(name: str, strategy: type) -> None:
    """Raise ConfigError if a method of ``strategy`` does not take the arguments of the same method of ``Strategy``."""
    from harness.core.strategies import Strategy

    for method, base in vars(Strategy).items():
        own = getattr(strategy, method, None)
        if inspect.isfunction(base) and inspect.isfunction(own):
            wanted, given = inspect.signature(base).parameters, inspect.signature(own)
            try:
                given.bind(*wanted)
            except TypeError as error:
                got, place = ", ".join(given.parameters), Path(own.__code__.co_filename).name
                raise ConfigError(
                    f"plugins: strategy {name}: {method}: expected the arguments {', '.join(wanted)}, got {got} "
                    f"({place}, line {own.__code__.co_firstlineno})"
                ) from error


def _added_too_late() -> str | None:
    """What was added after the configuration's models were built, if anything: ``strategy`` or ``model``."""
    from harness.core.choices import CHOICES
    from harness.core.strategies import OPTIONS, STRATEGIES

    if (config := sys.modules.get(_MODELS)) is None:
        return None
    if OPTIONS.keys() != STRATEGIES.keys():
        return "strategy"
    known = get_args(get_args(config.ModelChoice)[0])
    return "model" if {*CHOICES["model"].values()} != {*known} else None


def _note_code() -> None:
    """Fill ``DIGESTS`` and ``DISTRIBUTIONS`` by what this process has imported until now."""
    plugins = {str(module.__file__): name for name, module in LOADED.items()}
    files = sources.own_modules(of_project=False)
    DIGESTS.update({plugins.get(file, name): sources.digest_of(file) for name, file in files.items()})
    DIGESTS.update({name: sources.digest_of(file) for file, name in plugins.items()})  # installed ones
    modules = [*LOADED.values(), *(sys.modules[name] for name in files)]
    own = {name.partition(".")[0] for name in files}
    DISTRIBUTIONS[:] = sorted(_distributions(modules) - own)


def _distributions(modules: Iterable[ModuleType]) -> set[str]:
    """Names of the installed distributions of the modules and of the types of objects in these modules' namespaces."""
    from importlib import metadata

    found: set[str] = set()
    values = [value for module in modules for value in vars(module).values()]
    names = [each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", None) for each in values]
    for name in {name.partition(".")[0] for name in names if isinstance(name, str)} - sys.stdlib_module_names:
        try:
            found.add(metadata.distribution(name).name)
        except metadata.PackageNotFoundError:  # it may have another name, which takes 0.7 s to find
            found |= {*metadata.packages_distributions().get(name, ())}
    return found


def imported(name: str, key: str) -> ModuleType:
    """Import the plugin ``name`` and return its module. Raises ConfigError, whose message begins with ``key``."""
    from importlib.metadata import entry_points

    is_path = name.endswith(".py")
    if is_path and not Path(name).is_file():
        raise ConfigError(f"{key}: {name}: no such file; a path is relative to the working directory")
    found = () if is_path else entry_points(group=ENTRY_POINTS, name=name)
    module = next(iter(found)).module if found else name
    try:
        plugin = _from_file(Path(name)) if is_path else importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            expected = "expected an entry point, a module or a path that ends in .py, got no such module"
            raise ConfigError(f"{key}: {name}: {expected}") from error
        words = f"{key}: {name}: {type(error).__name__}: {error}"
        raise ConfigError(sources.with_place(words, traceback.format_exc())) from error
    if not str(getattr(plugin, "__file__", None)).endswith(".py"):  # its source is part of the code of a run
        raise ConfigError(f"{key}: {name}: expected a module of Python source, got one without a file that ends in .py")
    return plugin


def _from_file(path: Path) -> ModuleType:
    """Import a file as a module whose name holds a hash of the content: unique, and equal in every process and host."""
    name = f"plugin_{path.stem}_{hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest()}"
    loader = sources.Loader(name, str(path.resolve()))
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be pickled
    loader.exec_module(module)
    return module
