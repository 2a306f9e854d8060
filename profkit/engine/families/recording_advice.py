"""How to record other steps, by the interface with which these were recorded."""

from typing import Final

from profkit.engine.context import Context

_FOUND_BY_RUN: Final = frozenset({"loader", "optimizer", "module", "whole"})
"""Definitions of steps that ``profkit run`` finds in a program that marks none."""
_MUCH_LATER: Final = 10


def is_of_run(ctx: Context) -> bool:
    """Return whether ``profkit run`` found the steps, and not the program's own calls of profkit.

    It is not known where the program marks its steps.
    """
    capture = ctx.trace.capture
    return capture is not None and capture.steps in _FOUND_BY_RUN


def record_later(ctx: Context, *, wait: int = 2) -> str:
    """Return how to leave out the first steps, such as ``Record later steps: `…`.``.

    Args:
        wait: Steps that a recording with ``profkit.trace`` leaves out. ``profkit run`` has left
            out as many already.
    """
    if is_of_run(ctx):
        return f"Record later steps: `profkit run --wait {_MUCH_LATER}`."
    return f"Record later steps: `profkit.trace(..., wait={wait}, warmup=1, active=3)`."
