"""The public names, lazily: importing profkit loads neither torch nor pandas."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from profkit.api import analyze as analyze
    from profkit.api import compare as compare
    from profkit.api import render as render
    from profkit.capture.memory.guard import no_leak as no_leak
    from profkit.capture.memory.scope import memory as memory
    from profkit.capture.steps import steps as steps
    from profkit.capture.syncs.guard import no_sync as no_sync
    from profkit.capture.syncs.regions import allow_sync as allow_sync
    from profkit.capture.trace import trace as trace
    from profkit.errors import HostSyncError as HostSyncError
    from profkit.errors import LeakError as LeakError
    from profkit.load.open import load as load
    from profkit.model.report import Report as Report

__version__ = "0.1.0"

_HOMES: Final = {
    "HostSyncError": "profkit.errors",
    "LeakError": "profkit.errors",
    "Report": "profkit.model.report",
    "allow_sync": "profkit.capture.syncs.regions",
    "analyze": "profkit.api",
    "compare": "profkit.api",
    "load": "profkit.load.open",
    "memory": "profkit.capture.memory.scope",
    "no_leak": "profkit.capture.memory.guard",
    "no_sync": "profkit.capture.syncs.guard",
    "render": "profkit.api",
    "steps": "profkit.capture.steps",
    "trace": "profkit.capture.trace",
}
"""Each public name and the module that defines it."""

__all__ = [
    "HostSyncError", "LeakError", "Report", "__version__", "allow_sync", "analyze", "compare",
    "load", "memory", "no_leak", "no_sync", "render", "steps", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401  (a name may stand for anything)
    """Import a public name when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(home)
    if home.startswith("profkit.capture."):
        _teach_captures_to_report()
    value = getattr(module, name)
    if f"{__name__}.{name}" in sys.modules:  # a room of the same name: it answers for the function
        return globals()[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, whether they have been imported yet or not."""
    return sorted(__all__)


def _teach_captures_to_report() -> None:
    """Tell captures, which stand below the analysis and cannot import it, how to reach it."""
    from profkit.capture import reports

    def analyze(paths: list[str]) -> "Report":
        report: Report = __getattr__("analyze")(paths)
        if "IPython" in sys.modules:
            from profkit.integrations.notebook import with_cell_names

            return with_cell_names(report)
        return report

    reports.analyze = analyze
    if "IPython" in sys.modules:
        from profkit.integrations.notebook import begin_anew_with_each_cell

        begin_anew_with_each_cell()


def load_ipython_extension(ipython: Any) -> None:  # noqa: ANN401  (IPython's shell)
    """Give a shell the magic ``%%profkit``: what ``%load_ext profkit`` calls.

    Args:
        ipython: The shell.
    """
    from profkit.integrations.notebook import ProfkitMagics, begin_anew_with_each_cell

    begin_anew_with_each_cell()
    ipython.register_magics(ProfkitMagics)


class _Room(ModuleType):
    """A room that bears the name of a public function, and can be called as the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (the function's own)
        """Call the public function of this name."""
        name = self.__name__.removeprefix(f"{__name__}.")
        return getattr(import_module(_HOMES[name]), name)(*args, **kwargs)


class _Door(ModuleType):
    """This package. ``profkit.load`` is a room, and a function that the user calls.

    Importing a room sets it as an attribute here, in the place of the function, whenever that
    happens. So a room of a public name is made callable at that moment.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
