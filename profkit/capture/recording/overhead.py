"""The recording overhead: by how much recording slowed down the program.

If a loop has unrecorded steps too, they are compared with the recorded ones. Otherwise the cost of
one event is measured on this machine after the window, and multiplied by the number of events.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from profkit.capture.process import program_profilers
from profkit.capture.process.new_thread import in_new_thread
from profkit.capture.recording.harmless_kinds import find_stacks_obstacle
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.schedule import Phase
from profkit.units import format_count, format_ns

_MAX_STEPS: Final = 64
_MIN_UNRECORDED_STEPS: Final = 2
_N_RUNS: Final = 3
_N_PASSES: Final = 2
_MIN_PROGRAM_SHARE: Final = 0.1
"""An estimate never attributes less than this share of the window to the program itself."""

_costs: dict[Options, tuple[float, float]] = {}


class StepTimes:
    """The durations of a capture's steps, recorded and unrecorded."""

    def __init__(self) -> None:
        self._began_ns = self._ended_ns = 0
        self._n_steps = self._n_counted = 0
        self._unrecorded_ns: deque[int] = deque(maxlen=_MAX_STEPS)
        self._recorded_ns: deque[int] = deque(maxlen=_MAX_STEPS)

    def begin(self) -> None:
        """Begin a step."""
        self._began_ns = time.perf_counter_ns()
        self._n_counted = 0

    def count(self, n_steps: int) -> None:
        """Count unrecorded steps that have ended since :meth:`begin`, before the one that ends."""
        self._n_counted += n_steps

    def stop(self) -> None:
        """End the program's own part of the step."""
        self._ended_ns = time.perf_counter_ns()

    def end(self, phase: Phase) -> None:
        """End the step of that phase, now or where it was stopped.

        The first one is ignored: it includes one-time work. One before which others were counted
        is taken to be as long as each of those.
        """
        if self._ended_ns <= self._began_ns:
            self.stop()
        took_ns = (self._ended_ns - self._began_ns) // (self._n_counted + 1)
        self._n_steps += self._n_counted + 1
        if phase is Phase.RECORD:
            self._recorded_ns.append(took_ns)
        elif phase is not Phase.LINES and self._n_steps > 1:
            self._unrecorded_ns.append(took_ns)

    @property
    def n_recorded(self) -> int:
        """Return how many steps were recorded from start to end, as far as retained."""
        return len(self._recorded_ns)

    def overhead(self) -> tuple[float, str] | None:
        """Compare recorded with unrecorded steps; None if there are too few.

        Returns:
            The overhead ratio (0.8: a step took 1.8 times as long), and how it is known.
        """
        if not self._recorded_ns or len(self._unrecorded_ns) < _MIN_UNRECORDED_STEPS:
            return None

        # The median, as single steps also log, save or validate.
        plain_ns = statistics.median(self._unrecorded_ns)
        recorded_ns = statistics.median(self._recorded_ns)
        ratio = max(recorded_ns / plain_ns - 1, 0.0) if plain_ns else 0.0
        n_recorded, n_unrecorded = len(self._recorded_ns), len(self._unrecorded_ns)
        return ratio, f"measured: {n_recorded} recorded steps against {n_unrecorded} unrecorded"


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

    A small network runs forward and backward without a profiler, with one, and with stacks. The
    fastest of several runs is used, as it was disturbed least.
    """
    work = _make_small_network()
    work()  # the first run initializes what later ones use
    plain_ns = min(_measure_ns(work) for _ in range(_N_RUNS))
    ops_ns, n_ops = _measure_fastest(options, work, stacks=False)
    op_ns = max(ops_ns - plain_ns, 0) / max(n_ops, 1)
    if not options.stacks:
        return 0.0, op_ns

    stacks_ns, n_all = _measure_fastest(options, work, stacks=True)
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


def _measure_fastest(
    options: Options, work: Callable[[], None], *, stacks: bool
) -> tuple[int, int]:
    """Return the least duration of some work in one recording, in ns, and its number of events.

    To start a recording takes much longer than this work does.
    """
    recording = ProfilerRecording(options, stacks=stacks, device=False, is_alone=True)
    recording.start()
    try:
        took_ns = min(_measure_ns(work) for _ in range(_N_RUNS))
    finally:
        recording.stop()
    n_events = recording.n_events()
    recording.release()
    return took_ns, n_events // _N_RUNS


def _measure_ns(work: Callable[[], None]) -> int:
    began_ns = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - began_ns
