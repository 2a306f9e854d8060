"""Threads of profkit, which the program does not see.

They are none of ``threading``: programs count those, and wait for all of them at their end. They
take no signal of the program, and are left out where stacks of the program are shown.
"""

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

idents: Final[set[int]] = set()
"""The idents of the running ones."""


def start(work: Callable[[], object]) -> bool:
    """Run a function in a new thread.

    Returns:
        Whether there is one: the system may allow no more, and at Python's exit none begins.
    """
    # The thread waits until its ident is in the set, or else it could end before it is added.
    is_known = _thread.allocate_lock()
    is_known.acquire()

    def run() -> None:
        ident = _thread.get_ident()
        with is_known:
            pass
        try:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            work()
        finally:
            idents.discard(ident)

    try:
        idents.add(_thread.start_new_thread(run, ()))
    except RuntimeError:
        return False
    finally:
        is_known.release()
    return True


def is_own(ident: int) -> bool:
    """Return whether a thread is profkit's."""
    return ident in idents


def _forget_in_child() -> None:
    """Forget threads that a forked child does not have."""
    current = threading.get_ident()
    idents.intersection_update({current})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
