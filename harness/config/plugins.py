"""Modules of the user that enter strategies, trackers, kinds of save and other parts in the harness's tables.

They are imported before configurations are made, since the models of these are made from the tables.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from harness.core.errors import ConfigError
from harness.core.strategies import OPTIONS, STRATEGIES, name_options

LOADED: dict[str, Path] = {}
"""File of each module that was loaded, by the name that the user gave."""

ENTRY_POINTS = "cpr_harness.plugins"
"""Group of entry points by which an installed package offers plugins."""

PRELOAD_VARIABLE = "CPR_HARNESS_PLUGINS"
"""Environment variable with the plugins that a new fork server loads, one name a line."""

_MODELS = "harness.config.model"


def load(names: Sequence[str]) -> None:
    """Import modules by the name of an entry point, by dotted name, or by a path that ends in ``.py``.

    An entry point is one of an installed package, in group ``cpr_harness.plugins``. Modules that are loaded already are
    left out.

    A path is relative to the working directory.

    Raises ConfigError for a module that cannot be imported, and if it is too late to enter anything.
    """
    for name in names:
        if name in LOADED:
            continue
        if _MODELS in sys.modules:
            raise ConfigError(f"plugins: {name}: expected before any configuration is made, got it afterwards")
        module = imported(name, "plugins")
        if _MODELS in sys.modules and OPTIONS.keys() != STRATEGIES.keys():
            raise ConfigError(f"plugins: {name}: imports {_MODELS} before it adds a strategy; expected it afterwards")
        LOADED[name] = Path(str(module.__file__)).resolve()
    name_options()


def imported(name: str, key: str) -> ModuleType:
    """The module of an entry point, a dotted name or a path. Raises ConfigError that begins with ``key``."""
    is_path = name.endswith(".py")
    if is_path and not Path(name).is_file():
        raise ConfigError(f"{key}: {name}: no such file; a path is relative to the working directory")
    found = () if is_path else entry_points(group=ENTRY_POINTS, name=name)
    module = next(iter(found)).module if found else name
    try:
        return _from_file(Path(name)) if is_path else importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            expected = "expected an entry point, a module or a path that ends in .py, got no such module"
            raise ConfigError(f"{key}: {name}: {expected}") from error
        raise ConfigError(f"{key}: {name}: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    """Import a file. Its module has a name that no other one has, and that is the same in every process and host."""
    name = f"plugin_{path.stem}_{hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be pickled
    spec.loader.exec_module(module)
    return module
