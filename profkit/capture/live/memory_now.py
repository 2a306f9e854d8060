"""Memory of this process as it is now."""

import contextlib
import os

from profkit.capture.memory.monitor.loader_workers import resident_bytes
from profkit.capture.process import devices


def measure_memory_now() -> dict[str, int]:
    """Measure resident memory (``host``), and what is allocated on devices in use (``cuda:0``).

    Source: ``torch.cuda.memory_allocated``.
    """
    bytes_by_device: dict[str, int] = {}

    resident = resident_bytes(os.getpid())
    if resident is not None:
        bytes_by_device["host"] = resident

    # A device without reserved memory is not in use.
    for module in devices.modules_in_use():
        with contextlib.suppress(RuntimeError):
            for ordinal in range(module.device_count()):
                if module.memory_reserved(ordinal):
                    name = f"{module.__name__.rpartition('.')[2]}:{ordinal}"
                    bytes_by_device[name] = int(module.memory_allocated(ordinal))

    return bytes_by_device
