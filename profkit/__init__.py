"""The public names, lazily: importing profkit loads neither torch nor pandas."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from profkit.api import analyze as analyze
    from profkit.api import render as render
    from profkit.capture.steps import steps as steps
    from profkit.capture.trace import trace as trace
    from profkit.load.open import load as load
    from profkit.model.report import Report as Report

__version__ = "0.1.0"

_HOMES: Final = {
    "Report": "profkit.model.report",
    "analyze": "profkit.api",
    "load": "profkit.load.open",
    "render": "profkit.api",
    "steps": "profkit.capture.steps",
    "trace": "profkit.capture.trace",
}
"""Each public name and the module that defines it."""

__all__ = ["Report", "__version__", "analyze", "load", "render", "steps", "trace"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (a name may stand for anything)
    """Import a public name when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(home)
    if home.startswith("profkit.capture."):
        _teach_captures_to_report()
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, whether they have been imported yet or not."""
    return sorted(__all__)


def _teach_captures_to_report() -> None:
    """Tell captures, which stand below the analysis and cannot import it, how to reach it."""
    from profkit.capture import reports

    def analyze(path: str) -> "Report":
        report: Report = __getattr__("analyze")(path)
        return report

    reports.analyze = analyze
