"""Finding modules: ours by looking into a package, third parties' by entry points."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from profkit.errors import PluginError


@dataclass(frozen=True)
class Offer:
    """A module that is there and need not be imported yet.

    Attributes:
        name: Of ours the module's own name, of others the entry point's.
        load: Imports it; raises :class:`~profkit.errors.PluginError` where it cannot.
    """

    name: str
    load: Callable[[], ModuleType]


def offers(package: str, group: str) -> Iterator[Offer]:
    """Yield a package's public modules by name, then those that other packages offer.

    Args:
        package: A package of ours, such as ``profkit.detectors``. Modules that begin with an
            underscore are not public.
        group: The entry point group under which others register modules.
    """
    home = importlib.import_module(package)
    for found in sorted(pkgutil.iter_modules(home.__path__), key=lambda m: m.name):
        if not found.name.startswith("_"):
            yield Offer(found.name, partial(importlib.import_module, f"{package}.{found.name}"))
    for entry in sorted(entry_points(group=group), key=lambda e: e.name):
        yield Offer(entry.name, partial(_loaded, entry))


def discover(package: str, group: str) -> Iterator[ModuleType]:
    """Yield the modules that :func:`offers` names.

    Args:
        package: As there.
        group: As there.

    Raises:
        PluginError: Another package's module cannot be imported.
    """
    for offer in offers(package, group):
        yield offer.load()


def _loaded(entry: EntryPoint) -> ModuleType:
    try:
        module = entry.load()
    except Exception as error:
        message = f"The plugin {entry.name} ({entry.value}) cannot be loaded: {error}."
        raise PluginError(message, "Update or uninstall it.") from error
    if isinstance(module, ModuleType):
        return module
    message = f"The plugin {entry.name} ({entry.value}) is no module."
    raise PluginError(message, f"An entry point of {entry.group} names a module.")
