"""Why the recorded thread had no core: other threads of the program, or other programs."""

from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.needs import Need
from profkit.model.capture_info import CpuTime, HostThreads

CORES: Final = Need(
    name="cores",
    reason="The processor cores and the time without one were not recorded.",
    remedy="Record with `profkit run` or `profkit.trace` on Linux.",
    is_met=lambda ctx: find_processor_time(ctx) is not None,
    requires=(needs.TRACE,),
)


def find_processor_time(ctx: Context) -> tuple[HostThreads, CpuTime] | None:
    """Return the threads and cores of the program, and the processor time, if both are known."""
    capture = ctx.trace.capture
    if capture is None or capture.threads is None or capture.cpu is None:
        return None
    return None if capture.cpu.delayed_ns is None else (capture.threads, capture.cpu)
