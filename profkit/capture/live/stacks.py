"""Where all threads of this process are."""

import threading

from profkit.capture.process import own_threads
from profkit.capture.process.thread_stacks import Call, read_calls, read_idents


def stacks(except_for: int | None) -> list[tuple[str, list[Call]]]:
    """Return the name and the frames of each Python thread of the program, innermost last.

    Threads that were not started by Python have frames only while they run Python code.

    Args:
        except_for: The ident of a thread that is left out, or None.

    Source: ``sys._current_frames``.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        (names.get(ident, "a native thread"), read_calls(ident))
        for ident in read_idents()
        if ident != except_for and not own_threads.is_own(ident)
    ]
