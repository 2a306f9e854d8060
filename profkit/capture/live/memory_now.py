"""Memory of this process as it is now."""

import contextlib
import os

from profkit.capture.memory.monitor.loader_workers import resident_bytes
from profkit.capture.process import devices


def memory_now() -> dict[str, int]:
    """Bytes of resident memory (``host``), and bytes allocated on each device in use (``cuda:0``).

    Source: ``torch.cuda.memory_allocated``.
    """
    found: dict[str, int] = {}
    resident = resident_bytes(os.getpid())
    if resident is not None:
        found["host"] = resident
    for module in devices.modules_in_use():
        with contextlib.suppress(RuntimeError):
            for ordinal in range(module.device_count()):
                if module.memory_reserved(ordinal):
                    name = f"{module.__name__.rpartition('.')[2]}:{ordinal}"
                    found[name] = int(module.memory_allocated(ordinal))
    return found
