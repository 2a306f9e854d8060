"""Finding modules: ours by looking into a package, third parties' by entry points."""

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import ModuleType

from profkit.errors import PluginError


def discover(package: str, group: str) -> Iterator[ModuleType]:
    """Yield a package's public modules by name, then those that other packages offer.

    Args:
        package: A package of ours, such as ``profkit.detectors``. Modules that begin with an
            underscore are not public.
        group: The entry point group under which others register modules.

    Raises:
        PluginError: Another package's module cannot be imported.
    """
    home = importlib.import_module(package)
    for found in sorted(pkgutil.iter_modules(home.__path__), key=lambda m: m.name):
        if not found.name.startswith("_"):
            yield importlib.import_module(f"{package}.{found.name}")
    for entry in sorted(entry_points(group=group), key=lambda e: e.name):
        try:
            module = entry.load()
        except Exception as error:
            message = f"The plugin {entry.name} ({entry.value}) cannot be loaded: {error}."
            raise PluginError(message, "Update or uninstall it.") from error
        if isinstance(module, ModuleType):
            yield module
        else:
            message = f"The plugin {entry.name} ({entry.value}) is no module."
            raise PluginError(message, f"An entry point of {group} names a module.")
