"""The recording overhead: by how much recording slowed down the program.

If a loop has unrecorded steps too, they are compared with the recorded ones. Otherwise the cost of
one event is measured on this machine after the window, and multiplied by the number of events.

The comparison has what the estimate lacks. Torch keeps a small object for each tensor, which lie
between the program's large ones: these no longer fit where they were freed, and each step gets new
pages from the system. Measured with glibc 2.36 and tensors of 9 MB: steps of 11 ms took 25 to 110.
"""

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from profkit.capture.process import program_profilers
from profkit.capture.process.new_thread import in_new_thread
from profkit.capture.recording.harmless_kinds import find_stacks_obstacle
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.schedule import Phase
from profkit.dataclass import dataclass
from profkit.model.capture_info import CpuTime
from profkit.units import format_count, format_ns

_MAX_STEPS: Final = 64
_MIN_UNRECORDED_STEPS: Final = 2
_MAX_DELAYED_SHARE: Final = 0.1
"""Wall times are compared only if other programs took less of the thread's time than this: they
slow down one step and not the next."""
_MAX_OTHERS_SHARE: Final = 0.25
"""Processor times are compared only if other threads of the process took less of them: threads that
compute one operator together wait for each other in a loop, the longer the busier the cores are."""
_N_RUNS: Final = 3
"""As many as the steps that a recording has by default: the first events cost more than later
ones, 2 µs each instead of 0.7."""
_N_PASSES: Final = 2
_MIN_PROGRAM_SHARE: Final = 0.1
"""An estimate never attributes less than this share of the window to the program itself."""

_costs: dict[Options, tuple[float, float]] = {}


@dataclass(frozen=True)
class StepTime:
    """What a step took, or the mean of several.

    Attributes:
        wall_ns: Its duration.
        cpu_ns: Processor time of its thread.
    """

    wall_ns: int
    cpu_ns: int


class StepTimes:
    """The durations of a capture's steps, recorded and unrecorded."""

    def __init__(self) -> None:
        self._began = self._ended = _read_clocks()
        self._n_steps = self._n_counted = 0
        self._unrecorded: deque[StepTime] = deque(maxlen=_MAX_STEPS)
        self._recorded: deque[StepTime] = deque(maxlen=_MAX_STEPS)

    def begin(self) -> None:
        """Begin a step."""
        self._began = _read_clocks()
        self._n_counted = 0

    def count(self, n_steps: int) -> None:
        """Count unrecorded steps that have ended since :meth:`begin`, before the one that ends."""
        self._n_counted += n_steps

    def stop(self) -> None:
        """End the program's own part of the step."""
        self._ended = _read_clocks()

    def end(self, phase: Phase) -> None:
        """End the step of that phase, now or where it was stopped.

        The first one is ignored: it includes one-time work. One before which others were counted
        is taken to be as long as each of those.
        """
        if self._ended.wall_ns <= self._began.wall_ns:
            self.stop()
        began, ended, n_steps = self._began, self._ended, self._n_counted + 1
        took = StepTime(
            (ended.wall_ns - began.wall_ns) // n_steps, (ended.cpu_ns - began.cpu_ns) // n_steps
        )

        self._n_steps += n_steps
        if phase is Phase.RECORD:
            self._recorded.append(took)
        elif phase is not Phase.LINES and self._n_steps > 1:
            self._unrecorded.append(took)

    @property
    def n_recorded(self) -> int:
        """Return how many steps were recorded from start to end, as far as retained."""
        return len(self._recorded)

    def compare_steps(self, cpu: CpuTime | None) -> tuple[float, str] | None:
        """Return how much longer recorded steps take; None if that is not possible.

        Args:
            cpu: Processor time of the recording, or None if it is not known.

        Returns:
            The overhead ratio (0.8: a step took 1.8 times as long), and how it is known.
        """
        if not self._recorded or len(self._unrecorded) < _MIN_UNRECORDED_STEPS:
            return None

        plain, recorded = _median_step(self._unrecorded), _median_step(self._recorded)
        plain_ns, more_ns = plain.wall_ns, recorded.wall_ns - plain.wall_ns
        times = ""
        if cpu is not None and cpu.delayed_share >= _MAX_DELAYED_SHARE:
            # Other programs take time of single steps, but no processor time of this thread.
            if cpu.process_ns - cpu.thread_ns > _MAX_OTHERS_SHARE * cpu.process_ns:
                return None
            waiting_ns = recorded.wall_ns * (cpu.waiting_ns or 0) / max(cpu.window_ns, 1)
            plain_ns = round(plain.cpu_ns + waiting_ns)
            more_ns = recorded.cpu_ns - plain.cpu_ns
            times = ", in processor time"

        ratio = max(more_ns / plain_ns, 0.0) if plain_ns > 0 else 0.0
        n_recorded, n_unrecorded = len(self._recorded), len(self._unrecorded)
        basis = f"measured: {n_recorded} recorded steps against {n_unrecorded} unrecorded{times}"
        return ratio, basis


def _read_clocks() -> StepTime:
    return StepTime(time.perf_counter_ns(), time.thread_time_ns())


def _median_step(steps: Iterable[StepTime]) -> StepTime:
    """Return the median of each time, as single steps also log, save or validate."""
    wall_ns, cpu_ns = zip(*((step.wall_ns, step.cpu_ns) for step in steps), strict=True)
    return StepTime(round(statistics.median(wall_ns)), round(statistics.median(cpu_ns)))


def estimate(options: Options, window_ns: int, n_calls: int, n_ops: int) -> tuple[float, str]:
    """Return the overhead of a window, from the cost of each event on this machine.

    Args:
        n_calls: Python calls in the window.
        n_ops: Other events in it.

    Returns:
        The overhead ratio, and how it is known.

    Raises:
        CaptureError: If a profiler is running.
        RuntimeError: If no thread can be started.
    """
    # Recording with stacks would end a Python profiler.
    if program_profilers.find_python_profiler() or find_stacks_obstacle():
        options = replace(options, stacks=False)
    # In a thread, as modes and hooks of the program would run with each of the operators.
    if options not in _costs:
        _costs[options] = in_new_thread(partial(_measure_costs, options))

    call_ns, op_ns = _costs[options]
    cost_ns = n_calls * call_ns + n_ops * op_ns
    plain_ns = max(window_ns - cost_ns, window_ns * _MIN_PROGRAM_SHARE, 1)

    basis = f"estimated: {format_count(n_ops)} events at {format_ns(op_ns)}"
    if n_calls:
        basis += f" and {format_count(n_calls)} Python calls at {format_ns(call_ns)}"
    return cost_ns / plain_ns, basis


# The checker of safe points in tests/chaos lets this function, by its name, use the profiler.
def _measure_costs(options: Options) -> tuple[float, float]:
    """Measure the cost of recording a Python call and any other event, in nanoseconds.

    A small network runs forward and backward without a profiler, with one, and with stacks.
    Processor time is measured, which other programs take none of.
    """
    work = _make_small_network()
    work()  # the first run initializes what later ones use
    plain_ns = _measure_ns(work)
    ops_ns, n_ops = _measure_recorded(options, work, stacks=False)
    op_ns = max(ops_ns - plain_ns, 0) / max(n_ops, 1)
    if not options.stacks:
        return 0.0, op_ns

    stacks_ns, n_all = _measure_recorded(options, work, stacks=True)
    return max(stacks_ns - ops_ns, 0) / max(n_all - n_ops, 1), op_ns


def _make_small_network() -> Callable[[], None]:
    """Return work of operators with gradients on the CPU, without the program's random numbers."""
    import torch
    from torch.nn import functional

    weights = [torch.full((8, 8), 0.1, device="cpu", requires_grad=True) for _ in range(4)]
    batch = torch.ones(4, 8, device="cpu")

    def work() -> None:
        with torch.enable_grad():
            for _ in range(_N_PASSES):
                values = batch
                for weight in weights:
                    values = functional.relu(functional.linear(values, weight))
                torch.autograd.grad(values.sum(), weights)

    return work


def _measure_recorded(
    options: Options, work: Callable[[], None], *, stacks: bool
) -> tuple[float, float]:
    """Return the mean processor time of recorded work in ns, and its number of events.

    To start a recording takes much longer than this work does.
    """
    recording = ProfilerRecording(options, stacks=stacks, device=False, is_alone=True)
    recording.start()
    try:
        took_ns = _measure_ns(work)
    finally:
        recording.stop()
    n_events = recording.count_complete_events()
    recording.release()
    return took_ns, n_events / _N_RUNS


def _measure_ns(work: Callable[[], None]) -> float:
    """Return the mean processor time of several runs of some work."""
    # The one of Windows moves every 16 ms.
    read_ns = time.perf_counter_ns if sys.platform == "win32" else time.thread_time_ns
    began_ns = read_ns()
    for _ in range(_N_RUNS):
        work()
    return (read_ns() - began_ns) / _N_RUNS
