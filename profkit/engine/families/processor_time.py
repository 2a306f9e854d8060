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


def delayed_by_program_ns(threads: HostThreads, cpu: CpuTime) -> int:
    """Return the most that the thread waited for a core because of the program's other threads.

    What remains of the time without a core is due to other programs.
    """
    # All ranks are assumed to use as much as this one. The other threads keep all cores busy for
    # no longer than their CPU time divided by the cores.
    rank_ns = cpu.process_ns + (cpu.children_ns or 0)
    other_threads_ns = threads.n_ranks * rank_ns - cpu.thread_ns
    return max(0, min(cpu.delayed_ns or 0, other_threads_ns // threads.n_cores))
