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
    # All ranks are assumed to use as much as this one.
    rank_ns = cpu.process_ns + (cpu.children_ns or 0)
    others_ns = threads.n_ranks * rank_ns - cpu.thread_ns
    each_ns = threads.n_ranks * list(cpu.other_threads_ns or ())
    each_ns += (threads.n_ranks - 1) * [cpu.thread_ns]
    return max(0, min(cpu.delayed_ns or 0, _all_busy_ns(each_ns, others_ns, threads.n_cores)))


def _all_busy_ns(each_ns: list[int], total_ns: int, n_cores: int) -> int:
    """Return the longest time for which threads can have had all cores at the same time.

    A thread has one core at a time: one that ran all the time fills one core and no second one, so
    that the remaining threads have to fill the others. This bound can be reached for any times of
    the threads.

    Args:
        each_ns: Processor time of each thread that is known.
        total_ns: Processor time of all threads, those that are not known too.

    Source: R. McNaughton, "Scheduling with Deadlines and Loss Functions", Management Science 6(1),
    1959.
    """
    busiest_ns = sorted(each_ns, reverse=True)[: n_cores - 1]
    bounds_ns = [total_ns // n_cores]
    for n_filled, busy_ns in enumerate(busiest_ns, start=1):
        total_ns = max(0, total_ns - busy_ns)
        bounds_ns.append(total_ns // (n_cores - n_filled))
    return min(bounds_ns)
