"""Messages of captures on stderr: short lines that begin with ``profkit:``.

A warning is printed once per process. Notes are not printed with ``PROFKIT_QUIET=1`` or
``quiet=True``. A stderr that is closed or full does not break the program.
"""

import contextlib
import os
import sys
from typing import Final

from profkit.errors import ProfkitError

_printed: Final[set[str]] = set()


def note(text: str, *, quiet: bool = False) -> None:
    """Print one line, such as where a file is."""
    if not quiet and os.environ.get("PROFKIT_QUIET", "0") in {"", "0"}:
        _print(text)


def warn(text: str, error: BaseException | None = None) -> None:
    """Print a warning once, with the cause.

    Args:
        text: What failed.
        error: The cause. The text of a :class:`~profkit.errors.ProfkitError` needs no type name.
    """
    if isinstance(error, ProfkitError):
        text = f"{text} {error}"
    elif error is not None:
        text = f"{text} {type(error).__name__}: {error}"
    # A loop would repeat it in every step.
    if text not in _printed:
        _printed.add(text)
        _print(f"warning: {text}")


def _print(text: str) -> None:
    # In one call, so that lines of several processes are not mixed.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"profkit: {text}\n")
        sys.stderr.flush()
