"""The public names, lazily: importing profkit loads neither torch nor pandas."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from profkit._version import __version__ as __version__

if TYPE_CHECKING:
    from profkit.api import analyze as analyze
    from profkit.api import check as check
    from profkit.api import compare as compare
    from profkit.api import history as history
    from profkit.api import render as render
    from profkit.api import what_if as what_if
    from profkit.api import what_if_ranks as what_if_ranks
    from profkit.capture.live.listener import listen as listen
    from profkit.capture.memory.guard import no_leak as no_leak
    from profkit.capture.memory.scope import memory as memory
    from profkit.capture.recording.steps import steps as steps
    from profkit.capture.recording.trace import trace as trace
    from profkit.capture.syncs.guard import allow_sync as allow_sync
    from profkit.capture.syncs.guard import no_sync as no_sync
    from profkit.errors import HostSyncError as HostSyncError
    from profkit.errors import LeakError as LeakError
    from profkit.model.report import Report as Report
    from profkit.readers.open import load as load

_MODULES: Final = {
    "HostSyncError": "profkit.errors",
    "LeakError": "profkit.errors",
    "Report": "profkit.model.report",
    "allow_sync": "profkit.capture.syncs.guard",
    "analyze": "profkit.api",
    "check": "profkit.api",
    "compare": "profkit.api",
    "history": "profkit.api",
    "listen": "profkit.capture.live.listener",
    "load": "profkit.readers.open",
    "memory": "profkit.capture.memory.scope",
    "no_leak": "profkit.capture.memory.guard",
    "no_sync": "profkit.capture.syncs.guard",
    "render": "profkit.api",
    "steps": "profkit.capture.recording.steps",
    "trace": "profkit.capture.recording.trace",
    "what_if": "profkit.api",
    "what_if_ranks": "profkit.api",
}
"""Each public name and the module that defines it."""

_BLOCKS: Final = {
    "allow_sync": 'profkit.allow_sync("reason")',
    "memory": 'profkit.memory("epoch")',
    "no_leak": "profkit.no_leak()",
    "no_sync": "profkit.no_sync()",
    "trace": 'profkit.trace("step")',
}
"""The functions that open a block, and how they are called."""

__all__ = [
    "HostSyncError", "LeakError", "Report", "__version__", "allow_sync", "analyze", "check",
    "compare", "history", "listen", "load", "memory", "no_leak", "no_sync", "render", "steps",
    "trace", "what_if", "what_if_ranks",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401  (a function, class or string)
    """Import a public name on first access."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES[name])
    if _MODULES[name].startswith("profkit.capture."):
        _connect_captures_to_analysis()
        if os.environ.get("PROFKIT_LISTEN"):
            from profkit.capture.live.listener import begin_if_wanted

            begin_if_wanted()
    value = globals()[name] = _public(name, getattr(module, name))
    return value


def _public(name: str, value: Any) -> Any:  # noqa: ANN401  (a function, class or string)
    """Wrap a public function, so that an error of wrong use says how it is used."""
    if isinstance(value, type) or not callable(value):
        return value

    from profkit.arguments import PublicBlock, PublicFunction

    full_name = f"{__name__}.{name}"
    if name in _BLOCKS:
        return PublicBlock(value, full_name, _BLOCKS[name])
    return PublicFunction(value, full_name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted(__all__)


def _connect_captures_to_analysis() -> None:
    """Set the function by which captures, which cannot import the analysis, get their reports."""
    from profkit.capture.recording import reporting

    def analyze(paths: list[str]) -> "Report":
        report: Report = __getattr__("analyze")(paths)
        if "IPython" in sys.modules:
            from profkit.integrations.notebook import with_cell_names

            return with_cell_names(report)
        return report

    reporting.analyze = analyze
    if "IPython" in sys.modules:
        from profkit.integrations.notebook import reset_limits_with_each_cell

        reset_limits_with_each_cell()


def load_ipython_extension(ipython: Any) -> None:  # noqa: ANN401  (IPython's shell)
    """Register the magic ``%%profkit``: called by ``%load_ext profkit``."""
    from profkit.integrations.notebook import ProfkitMagics, reset_limits_with_each_cell

    reset_limits_with_each_cell()
    ipython.register_magics(ProfkitMagics)
