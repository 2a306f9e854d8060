"""Keeps one line of Kineto off stderr: it complains of the thread that prepares its first profiler.

The line says ``ERROR: External init callback must run in same thread as registerClient``, of any
profiler that is first used in another thread than the one that imported torch. Its client, which
has nothing to set up for a recording, is left alone then, and the recording is complete.

Source: ``LibkinetoApi::initClientIfRegistered`` in ``libkineto.cpp``, which prints the line
with ``fprintf``, whatever the log level.
"""

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from typing import Final

_STDERR: Final = 2
_LINE: Final = rb"ERROR: External init callback must run in same thread as registerClient[^\n]*\n?"


class _ProcessState:
    """What was done in this process.

    Attributes:
        is_prepared: Whether a profiler was prepared: only the first one prints the line.
    """

    is_prepared: bool = False


_state: Final = _ProcessState()


@contextlib.contextmanager
def without_thread_error() -> Iterator[None]:
    """Prepare a profiler in this block without the line; everything else is printed after it."""
    is_first, _state.is_prepared = not _state.is_prepared, True
    if not is_first or threading.current_thread() is threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as stack:
        # A program may have closed its stderr, or may have no file descriptor left.
        with contextlib.suppress(OSError):
            stack.enter_context(_filtered())
        yield


@contextlib.contextmanager
def _filtered() -> Iterator[None]:
    """Collect what is written to stderr in this block, and write it without the line at the end."""
    with tempfile.TemporaryFile(buffering=0) as written:
        # By its descriptor: Kineto writes in C, and knows nothing of `sys.stderr`.
        stderr = os.dup(_STDERR)
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            written.seek(0)
            text = re.sub(_LINE, b"", written.read())
            with contextlib.suppress(OSError):
                os.write(_STDERR, text)
