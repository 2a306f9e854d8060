"""CFG002 oversubscribed-cpu: the program has more threads than cores, and its thread waits for one.

What it finds:
    Recordings in which the threads of operators and the workers of loaders, of all ranks on the
    machine, are more than the cores, and the recorded thread was ready to run and had no core for a
    share of the time while they had all of them: for no longer than what the other threads and
    processes used can fill all cores at once.

Why it matters:
    The threads of one operator wait for each other: if one has no core, all of them take as long as
    that one. Threads that change places lose their caches, too. The cost is the time for which the
    recorded thread had no core because of them, an upper bound: other programs take cores too.
    Where operators use few threads already and workers are too many, it is no more than what is
    above the time that fewer workers would need for the same batches.

How to fix it:
    Give each process its share of the cores: ``OMP_NUM_THREADS`` or ``torch.set_num_threads`` for
    the operators, and what is left for the loader's workers. ``torchrun`` sets one thread per rank
    if nothing else is set; more ranks than cores have to share them in any case.

Example:
    ::

        OMP_NUM_THREADS=64 torchrun --nproc-per-node 8 train.py  # on 64 cores

Use instead:
    ::

        OMP_NUM_THREADS=4 torchrun --nproc-per-node 8 train.py  # 4 threads and 4 workers a rank

Reads:
    What profkit recorded beside the events: cores, threads, ranks and worker processes, the time
    for which the recorded thread had no core, and the processor time of the process and of its
    children (``delayed_ns``, ``process_ns``, ``other_threads_ns``, ``children_ns`` in nanoseconds),
    samples of the loader's workers.

When to ignore this:
    Other programs use the machine, and their number of threads is not yours to choose. PRF014 says
    how much of the time they took.

Source:
    "Utilize OpenMP" and "Distributed optimizations" in PyTorch's Performance Tuning Guide; "CPU
    threading and TorchScript inference" in PyTorch's notes ("tuning the number of threads");
    ``torch.distributed.run`` (``OMP_NUM_THREADS``); the kernel's ``sched-stats.rst``.
"""

from collections.abc import Iterator

from profkit.engine.families.loader_functions import workers_busy_share
from profkit.engine.families.processor_time import (
    CORES,
    find_processor_time,
)
from profkit.rule import (
    Context,
    CpuTime,
    Finding,
    HostThreads,
    RuleInfo,
    counted,
    dataclass,
    format_ns,
    format_share,
)

INFO = RuleInfo(
    id="CFG002",
    name="oversubscribed-cpu",
    title="More threads than processor cores",
    severity="warning",
    needs=(CORES,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When many threads are a finding.

    Attributes:
        min_delayed_share: Minimum share of the recording for which the thread had no core because
            of the program. A system gives cores to others for a few percent of the time in any
            case.
    """

    min_delayed_share: float = 0.1


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the threads are more than the cores."""
    processor_time = find_processor_time(ctx)
    if processor_time is None:
        return

    threads, cpu = processor_time
    # Ranks are copies of one program: each has as many threads and workers as this one.
    n_all = threads.n_ranks * (threads.n_threads + threads.n_workers)
    # What is left of a rank's cores when each of its workers has one. Where operators use no more
    # already, there may be too many workers.
    n_fitting = max(1, threads.n_cores // threads.n_ranks - threads.n_workers)
    delayed_ns = cpu.delayed_by_program_ns(threads)
    if n_fitting == threads.n_threads and threads.n_workers:
        if threads.n_workers * (workers_busy_share(ctx) or 0.0) > _count_fitting_workers(threads):
            return  # fewer workers could not keep up
        delayed_ns = min(delayed_ns, _saved_by_fewer_workers_ns(threads, cpu, delayed_ns))
    share = delayed_ns / max(1, cpu.window_ns)
    if n_all <= threads.n_cores or share < thresholds.min_delayed_share:
        return

    workers = f" and {counted(threads.n_workers, 'worker')}" if threads.n_workers else ""
    sharing = f"{counted(threads.n_threads, 'thread')} of operators{workers}"
    if threads.n_ranks > 1:
        sharing = f"{counted(threads.n_ranks, 'rank')} with {sharing} each"
    yield INFO.finding(
        confidence="medium",
        message=(
            f"{sharing} share {counted(threads.n_cores, 'core')}. The recorded thread had no core "
            f"for up to {format_ns(delayed_ns)} ({format_share(share)} of the recording) because "
            "of them."
        ),
        fix=_suggest_fix(threads, n_fitting),
        n=n_all,
        cost=ctx.cost(min(delayed_ns, ctx.window_ns), basis="upper-bound"),
        evidence={
            "n_cores": threads.n_cores,
            "n_threads": threads.n_threads,
            "n_ranks": threads.n_ranks,
            "n_workers": threads.n_workers,
            "delayed_ns": delayed_ns,
        },
    )


def _count_fitting_workers(threads: HostThreads) -> int:
    """Return how many workers of a rank have a core of their own beside its operators."""
    return max(1, threads.n_cores // threads.n_ranks - threads.n_threads)


def _saved_by_fewer_workers_ns(threads: HostThreads, cpu: CpuTime, delayed_ns: int) -> int:
    """Return the most that a number of workers which fits the cores can save.

    Fewer workers have the same batches to prepare, and the program waits for them if they take
    longer than its steps.

    Args:
        delayed_ns: Time for which the recorded thread had no core because of the program.
    """
    of_others_ns = (cpu.delayed_ns or 0) - delayed_ns
    preparing_ns = (cpu.children_ns or 0) // _count_fitting_workers(threads)
    return max(0, cpu.window_ns - of_others_ns - max(cpu.thread_ns, preparing_ns))


def _suggest_fix(threads: HostThreads, n_fitting: int) -> str:
    if n_fitting == threads.n_threads:
        if not threads.n_workers:
            return f"Start no more ranks on this machine than it has cores ({threads.n_cores})."
        n_workers = _count_fitting_workers(threads)
        return (
            f"Use fewer workers in the loader: no more than {n_workers} fit beside the operators."
        )
    return f"Set `OMP_NUM_THREADS={n_fitting}`, or call `torch.set_num_threads({n_fitting})`."
