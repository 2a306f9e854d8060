"""Calls of torch that the program's own settings neither change nor see.

Modes that see every operator, hooks of saved tensors, inference mode, autocast and the default
device are those of a thread, and a new thread has none of them.
"""

import _thread
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


# Recordings have this name, by which `model/own_code.py` recognizes that profkit waits here.
def in_new_thread(work: Callable[[], _Result]) -> _Result:
    """Return the result of a function that a new thread calls, while this one waits.

    The thread has no hooks of ``threading``, as debuggers and profilers set.

    Raises:
        RuntimeError: No thread can be started: there are too many, or Python exits.
        BaseException: What the function raised.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []
    is_running = _thread.allocate_lock()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that waits)
            errors.append(error)
        finally:
            is_running.release()

    is_running.acquire()
    _thread.start_new_thread(run, ())
    with is_running:
        pass

    if errors:
        raise errors[0]
    return results[0]
