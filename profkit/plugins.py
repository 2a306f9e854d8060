"""Discovers plugin modules: ours in a package, those of other packages by entry points."""

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
    if _may_be_declared(group):
        from importlib.metadata import entry_points

        for entry in sorted(entry_points(group=group), key=lambda e: e.name):
            yield Plugin(entry.name, partial(_loaded, entry))


def _may_be_declared(group: str) -> bool:
    """Whether an installed package may have entry points of a group.

    ``importlib.metadata`` takes a small file's analysis 30 ms, and most users have no plugins. It
    looks for the same files, and for those in zip files and of other finders of packages.
    """
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_distributions"):
            return True
    folders = [Path(folder) for folder in sys.path]
    if any(folder.is_file() for folder in folders):
        return True
    return any(group.encode() in text for text in _declared(folders))


def _declared(folders: list[Path]) -> Iterator[bytes]:
    """The entry points of each package in some folders; missing folders have none."""
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as found:
            for each in found:
                if each.name.lower().endswith((".dist-info", "egg-info")):
                    with suppress(OSError), open(f"{each.path}/entry_points.txt", "rb") as file:  # noqa: PTH123  (a third of the time)
                        yield file.read()


def discover(package: str, group: str) -> Iterator[ModuleType]:
    """Import and yield all :func:`plugins`.

    Raises:
        PluginError: Another package's module cannot be imported.
    """
    for plugin in plugins(package, group):
        yield plugin.load()


def _loaded(entry: "EntryPoint") -> ModuleType:
    try:
        module = entry.load()
    except Exception as error:
        message = f"The plugin {entry.name} ({entry.value}) cannot be loaded: {error}."
        raise PluginError(message, "Update or uninstall it.") from error
    if isinstance(module, ModuleType):
        return module
    message = f"The plugin {entry.name} ({entry.value}) is not a module."
    raise PluginError(message, f"An entry point of {entry.group} must name a module.")
