"""Discovers plugin modules: profkit's in a package, other packages' by their entry points."""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from profkit.dataclass import dataclass
from profkit.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Plugin:
    """A module that is installed and not imported yet.

    Attributes:
        name: The name of profkit's module, or of another package's entry point.
        load: Imports it; raises :class:`~profkit.errors.PluginError` if that fails.
    """

    name: str
    load: Callable[[], ModuleType]


def plugins(package: str, group: str) -> Iterator[Plugin]:
    """Yield a package's public modules by name, then the modules of other packages.

    Args:
        package: Such as ``profkit.detectors``. Modules that begin with an underscore are private.
        group: The entry point group of other packages.
    """
    home = importlib.import_module(package)
    for name in sorted(module.name for module in pkgutil.iter_modules(home.__path__)):
        if not name.startswith("_"):
            yield Plugin(name, partial(importlib.import_module, f"{package}.{name}"))

    if _may_be_declared(group):
        from importlib.metadata import entry_points

        for entry in sorted(entry_points(group=group), key=lambda e: e.name):
            yield Plugin(entry.name, partial(_load, entry))


def _may_be_declared(group: str) -> bool:
    """Return whether an installed package may have entry points of a group.

    ``importlib.metadata`` adds 30 ms to a small file's analysis, and most users have no plugins. It
    reads the same files. Those in zip files and of other finders are assumed to be there.
    """
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_distributions"):
            return True
    folders = [Path(folder) for folder in sys.path]
    if any(folder.is_file() for folder in folders):
        return True
    return any(group.encode() in text for text in _read_entry_points(folders))


def _read_entry_points(folders: list[Path]) -> Iterator[bytes]:
    """Yield the entry points of each package in some folders, which may be missing."""
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as items:
            for item in items:
                if item.name.lower().endswith((".dist-info", "egg-info")):
                    with suppress(OSError), open(f"{item.path}/entry_points.txt", "rb") as file:  # noqa: PTH123  (a third of the time)
                        yield file.read()


def discover(package: str, group: str) -> Iterator[ModuleType]:
    """Import and yield all :func:`plugins`.

    Raises:
        PluginError: Another package's module cannot be imported.
    """
    for plugin in plugins(package, group):
        yield plugin.load()


def _load(entry: "EntryPoint") -> ModuleType:
    try:
        module = entry.load()
    except Exception as error:
        message = f"The plugin {entry.name} ({entry.value}) cannot be loaded: {error}."
        raise PluginError(message, "Update or uninstall it.") from error
    if isinstance(module, ModuleType):
        return module
    message = f"The plugin {entry.name} ({entry.value}) is not a module."
    raise PluginError(message, f"An entry point of {entry.group} must name a module.")
