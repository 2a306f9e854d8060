"""What captures say, on stderr: short lines that begin with ``profkit:``.

A warning is said once a process. Notes are not said at all with ``PROFKIT_QUIET=1`` or
``quiet=True``. A stderr that is closed or full never breaks the program.
"""

import contextlib
import os
import sys
from typing import Final

from profkit.errors import ProfkitError

_said: Final[set[str]] = set()


def note(text: str, *, quiet: bool = False) -> None:
    """Say where something is or what comes next.

    Args:
        text: One line.
        quiet: Say nothing.
    """
    if not quiet and os.environ.get("PROFKIT_QUIET", "0") in {"", "0"}:
        _say(text)


def warn(text: str, error: BaseException | None = None) -> None:
    """Say once what profkit could not do, and what helps.

    Args:
        text: What could not be done.
        error: Why. A :class:`~profkit.errors.ProfkitError` speaks for itself.
    """
    if isinstance(error, ProfkitError):
        text = f"{text} {error}"
    elif error is not None:
        text = f"{text} {type(error).__name__}: {error}"
    if text not in _said:
        _said.add(text)
        _say(f"warning: {text}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"profkit: {text}\n")
        sys.stderr.flush()
