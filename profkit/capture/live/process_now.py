"""What this process is doing now: where its threads are, and what its memory is."""

import os
import threading

from profkit.capture.memory.monitor.loader_workers import resident_bytes
from profkit.capture.process import devices, own_threads
from profkit.capture.process.thread_stacks import Call, read_calls, read_idents


def read_stacks(except_for: int | None) -> list[tuple[str, list[Call]]]:
    """Return the name and the frames of each Python thread of the program, innermost last.

    Threads that were not started by Python have frames only while they run Python code.

    Args:
        except_for: The ident of a thread that is left out, or None.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        (names.get(ident, "a native thread"), read_calls(ident))
        for ident in read_idents()
        if ident != except_for and not own_threads.is_own(ident)
    ]


def measure_memory() -> dict[str, int]:
    """Measure resident memory (``host``), and what is allocated on devices in use (``cuda:0``)."""
    resident = resident_bytes(os.getpid())
    on_host = {} if resident is None else {"host": resident}

    # A device without reserved memory is not in use.
    on_devices = {
        name: allocated for name, allocated, reserved in devices.read_device_memory() if reserved
    }
    return on_host | on_devices
