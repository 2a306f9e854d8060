"""PRF014 busy-machine: other programs took the processor while this one was recorded.

What it finds:
    Recordings in which the recorded thread was ready to run and had no core for a share of the
    time, beyond what the program's own threads and processes can have caused.

Why it matters:
    All times of the host are longer then than on an idle machine, and differ from run to run. A
    step may even seem to be limited by Python or by the loader because another program runs.
    Counts, bytes and the order of events are right.

How to fix it:
    Record again while nothing else runs, or give the program cores of its own. Two recordings that
    were delayed alike can be compared by their shares.

Example:
    ::

        profkit run train.py  # while another training runs on the same cores

Use instead:
    ::

        taskset --cpu-list 4-7 profkit run train.py  # on cores that nothing else uses

Reads:
    What profkit recorded beside the events: the time for which the recorded thread had no core, and
    the processor time of the process and of its children (``delayed_ns``, ``process_ns``,
    ``other_threads_ns``, ``children_ns`` in nanoseconds).

When to ignore this:
    The program always shares its machine. A CPU limit of a container also counts here: the thread
    waits while its group has used up its time.

Source:
    The kernel's ``sched-stats.rst``, on the time that a task waits for a core, and
    ``sched-bwc.rst``, on groups with a limit.
"""

from collections.abc import Iterator

from profkit.engine.families.processor_time import (
    CORES,
    find_processor_time,
)
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    dataclass,
    format_ns,
    format_share,
)

INFO = RuleInfo(
    id="PRF014",
    name="busy-machine",
    title="Other programs took the CPU",
    severity="warning",
    needs=(CORES,),
    since="0.2.0",
    no_example="It depends on what else runs on the machine; a test runs something else.",
)


@dataclass(frozen=True)
class Thresholds:
    """When other programs are reported.

    Attributes:
        min_delayed_share: Minimum share of the recording for which they took the thread's core. A
            system gives cores to others for a few percent of the time in any case.
        warning_share: Share from which it is a warning: times are then a third longer, more than
            most changes of a program save.
    """

    min_delayed_share: float = 0.1
    warning_share: float = 0.25


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if other programs kept the recorded thread from running."""
    processor_time = find_processor_time(ctx)
    if processor_time is None:
        return

    threads, cpu = processor_time
    delayed_ns = cpu.delayed_by_others_ns(threads)
    share = delayed_ns / max(1, cpu.window_ns)
    if share < thresholds.min_delayed_share:
        return

    yield INFO.finding(
        severity="warning" if share >= thresholds.warning_share else "note",
        confidence="high",
        message=(
            f"Other programs took the CPU for {format_share(share)} of the recording: its thread "
            f"was ready to run for at least {format_ns(delayed_ns)} and had no core."
        ),
        fix="Record again while nothing else runs: times are longer than on an idle machine.",
        evidence={"delayed_ns": delayed_ns, "n_cores": threads.n_cores, "delayed_share": share},
    )
