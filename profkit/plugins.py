"""Discovers plugin modules: ours in a package, those of other packages by entry points."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from profkit.dataclass import dataclass
from profkit.errors import PluginError


@dataclass(frozen=True)
class Plugin:
    """A module that is installed and not imported yet.

    Attributes:
        name: The name of our module, or of another package's entry point.
        load: Imports it; raises :class:`~profkit.errors.PluginError` if that fails.
    """

    name: str
    load: Callable[[], ModuleType]


def plugins(package: str, group: str) -> Iterator[Plugin]:
    """Yield a package's public modules by name, then those of other packages.

    Args:
        package: Such as ``profkit.detectors``. Modules that begin with an underscore are private.
        group: The entry point group of other packages.
    """
    home = importlib.import_module(package)
    for found in sorted(pkgutil.iter_modules(home.__path__), key=lambda m: m.name):
        if not found.name.startswith("_"):
            yield Plugin(found.name, partial(importlib.import_module, f"{package}.{found.name}"))
    for entry in sorted(entry_points(group=group), key=lambda e: e.name):
        yield Plugin(entry.name, partial(_loaded, entry))


def discover(package: str, group: str) -> Iterator[ModuleType]:
    """Import and yield all :func:`plugins`.

    Raises:
        PluginError: Another package's module cannot be imported.
    """
    for plugin in plugins(package, group):
        yield plugin.load()


def _loaded(entry: EntryPoint) -> ModuleType:
    try:
        module = entry.load()
    except Exception as error:
        message = f"The plugin {entry.name} ({entry.value}) cannot be loaded: {error}."
        raise PluginError(message, "Update or uninstall it.") from error
    if isinstance(module, ModuleType):
        return module
    message = f"The plugin {entry.name} ({entry.value}) is not a module."
    raise PluginError(message, f"An entry point of {entry.group} must name a module.")
