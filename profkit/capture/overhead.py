"""By how much a recording stretched what it recorded.

Where steps ran unrecorded beside the recorded ones, the two are compared. Otherwise what an event
costs is measured on this machine after the window, and multiplied by how many there were.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from profkit.capture import profiler
from profkit.capture.options import Options
from profkit.capture.schedule import Phase
from profkit.units import format_count, format_ns

Work = Callable[[], None]
"""Something to time."""

_KEPT_STEPS: Final = 64
_ENOUGH_BARE_STEPS: Final = 2
_TURNS: Final = 3
_PASSES: Final = 5
_LEAST_PLAIN_SHARE: Final = 0.1
"""An estimate never says that less than this share of the window was the program itself."""

_costs: dict[Options, tuple[float, float]] = {}


class Overhead:
    """The lengths of the steps of one capture, recorded and not."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._n_steps = 0
        self._bare: deque[int] = deque(maxlen=_KEPT_STEPS)
        self._recorded: deque[int] = deque(maxlen=_KEPT_STEPS)

    def begin(self) -> None:
        """A step begins now."""
        self._began_ns = time.perf_counter_ns()

    def step(self, phase: Phase) -> None:
        """The step ends now.

        Args:
            phase: What it was. The very first step is left out: it makes what others reuse.
        """
        took_ns = time.perf_counter_ns() - self._began_ns
        self._n_steps += 1
        if phase is Phase.RECORD:
            self._recorded.append(took_ns)
        elif phase is not Phase.LEND and self._n_steps > 1:
            self._bare.append(took_ns)

    def compared(self) -> tuple[float, str] | None:
        """Recorded steps against unrecorded ones, or None when there are too few of them.

        Returns:
            The share by which they were longer, and how that is known.
        """
        if not self._recorded or len(self._bare) < _ENOUGH_BARE_STEPS:
            return None
        bare_ns = statistics.median(self._bare)
        share = max(statistics.median(self._recorded) / bare_ns - 1, 0.0) if bare_ns else 0.0
        basis = (
            f"measured: {len(self._recorded)} recorded steps "
            f"against {len(self._bare)} unrecorded ones"
        )
        return share, basis


def estimated(options: Options, window_ns: int, n_calls: int, n_ops: int) -> tuple[float, str]:
    """What the events of a window cost, from what they cost on this machine.

    Args:
        options: What was recorded.
        window_ns: Length of the window.
        n_calls: Python calls in it.
        n_ops: Other events in it.

    Returns:
        The share by which they made it longer, and how that is known.

    Raises:
        CaptureError: If a profiler is running.
    """
    if options not in _costs:
        _costs[options] = _measured_costs(options)
    call_ns, op_ns = _costs[options]
    cost_ns = n_calls * call_ns + n_ops * op_ns
    plain_ns = max(window_ns - cost_ns, window_ns * _LEAST_PLAIN_SHARE, 1)
    basis = f"estimated: {format_count(n_ops)} events at {format_ns(op_ns)}"
    if n_calls:
        basis += f" and {format_count(n_calls)} Python calls at {format_ns(call_ns)}"
    return cost_ns / plain_ns, basis


def _measured_costs(options: Options) -> tuple[float, float]:
    """What recording a Python call and another event costs, in nanoseconds.

    A small network, forward and backward, runs without a profiler, with one, and with stacks. The
    quickest of several turns is taken, which is the one that the machine disturbed least.
    """
    work = _small_network()
    work()
    plain_ns = min(_length_ns(work) for _ in range(_TURNS))
    ops = [_recorded(options, work, stacks=False) for _ in range(_TURNS)]
    ops_ns, n_ops = min(ops)
    op_ns = max(ops_ns - plain_ns, 0) / max(n_ops, 1)
    if not options.stacks:
        return 0.0, op_ns
    stacks_ns, n_all = min(_recorded(options, work, stacks=True) for _ in range(_TURNS))
    return max(stacks_ns - ops_ns, 0) / max(n_all - n_ops, 1), op_ns


def _small_network() -> Work:
    """Operators with gradients on the CPU, which leave the program's random numbers alone."""
    import torch
    from torch.nn import functional

    weights = [torch.full((8, 8), 0.1, device="cpu", requires_grad=True) for _ in range(4)]
    batch = torch.ones(4, 8, device="cpu")

    def work() -> None:
        with torch.enable_grad():
            for _ in range(_PASSES):
                values = batch
                for weight in weights:
                    values = functional.relu(functional.linear(values, weight))
                torch.autograd.grad(values.sum(), weights)

    return work


def _recorded(options: Options, work: Work, *, stacks: bool) -> tuple[int, int]:
    """How long some work takes under the profiler, in nanoseconds, and its events."""
    recording = profiler.ProfilerRecording(options, stacks=stacks, device=False)
    recording.start()
    try:
        took_ns = _length_ns(work)
    finally:
        recording.stop()
    return took_ns, recording.n_events()


def _length_ns(work: Work) -> int:
    began_ns = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - began_ns
