"""How to record other steps, by the interface with which these were recorded."""

from typing import Final

from profkit.engine.context import Context
from profkit.engine.windows import windows_ns
from profkit.units import format_ns, format_share

_FOUND_BY_RUN: Final = frozenset({"loader", "optimizer", "module", "whole"})
"""Definitions of steps that ``profkit run`` finds in a program that marks none."""
_MUCH_LATER: Final = 10


def is_of_run(ctx: Context) -> bool:
    """Return whether ``profkit run`` found the steps, and not the program's own calls of profkit.

    It is not known where the program marks its steps.
    """
    capture = ctx.trace.capture
    return capture is not None and capture.steps in _FOUND_BY_RUN


def extent_ns(ctx: Context) -> int:
    """Return the time that set-up is compared with: of the steps, else of the whole recording.

    Without steps the windows begin with the first device work, and set-up comes before it.
    """
    return windows_ns(ctx) if len(ctx.steps) else ctx.window_ns


def share_of_extent(ctx: Context, ns: int) -> str:
    """``1.20 s of the steps (12%)``, ``1.20 s of the recording (12%)``."""
    extent = "the steps" if len(ctx.steps) else "the recording"
    return f"{format_ns(ns)} of {extent} ({format_share(ns / extent_ns(ctx))})"


def record_later(ctx: Context, *, wait: int = 2) -> str:
    """Return how to leave out the first steps, such as ``Record later steps: `…`.``.

    Args:
        wait: Steps that a recording with ``profkit.trace`` leaves out. ``profkit run`` has left
            out as many already.
    """
    if is_of_run(ctx):
        return f"Record later steps: `profkit run --wait {_MUCH_LATER}`."
    return f"Record later steps: `profkit.trace(..., wait={wait}, warmup=1, active=3)`."
