"""What sampled stacks tell of a loader: the function in which it spends its time, and its waits.

A loader without workers prepares batches in the thread of the steps, whose samples have them; with
workers, these have sampled themselves.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.sampled_python import (
    find_main_callee,
    is_beyond_chance,
    step_samples,
)
from profkit.model.capture_info import LOADER_PARTS, SampledFunction, SampledPart, SampledTime
from profkit.model.location import MODULE_LEVEL, Location
from profkit.patterns import regex

_MIN_SHARE: Final = 0.2
"""A function with a smaller share of the loader's time is not what makes it slow."""
_MIN_BUSY: Final = 0.5
"""Workers that prepare batches for less of their time wait most of it."""
_MIN_PLAUSIBLE: Final = 0.5
"""Samples of few processes on a busy machine have errors."""
_MIN_WAITING_SHARE: Final = 0.5
"""A function that waits for less of its time needs a core."""
_SLEEP: Final = regex(r"(^|\.)sleep$")
_MIN_WAITING: Final = 0.1
"""A smaller share of the steps in waits is not what makes them slow."""


@dataclass(frozen=True)
class HiddenWaits:
    """Waits for data in the steps around the recorded ones.

    Attributes:
        share: Share of the sampled steps in which they wait for a batch.
        step_ns: Mean length of these steps.
        waiting_ns: Time per step in which they wait for longer than the recorded steps.
        n_steps: Number of sampled steps.
        n_samples: Number of samples in them.
    """

    share: float
    step_ns: int
    waiting_ns: int
    n_steps: int
    n_samples: int


@dataclass(frozen=True)
class LoaderFunction:
    """A function of the program that makes batches slow.

    Attributes:
        location: The function, with the line that most of its samples were at.
        callee: What it calls, as the program writes it; empty where it takes the time itself.
        share: Share of the time in which batches are prepared.
        waiting_share: Share of its time in which it waits, for a timer, a lock or I/O.
        library: The package that its time is in; empty if that is the program, or a function in C.
        part: The part of the loader that it is in, as of a sampled function.
        busy_share: Share of the workers' time in which they prepare batches, and do not wait for
            the loop to take them; None without workers.
    """

    location: Location
    callee: str
    share: float
    waiting_share: float = 0.0
    library: str = ""
    part: SampledPart = ""
    busy_share: float | None = None

    @property
    def name(self) -> str:
        """Return what takes the time, as the program writes it."""
        return self.callee or self.owner

    @property
    def owner(self) -> str:
        """Return the function of the program, or what it calls at the top level of a file."""
        function = self.location.function or ""
        return self.callee if function in {"", MODULE_LEVEL} else function

    @property
    def mostly_waits(self) -> bool:
        """Return whether it takes no core most of the time."""
        return self.waiting_share >= _MIN_WAITING_SHARE or bool(_SLEEP.search(self.callee))

    @property
    def waits_for_lock(self) -> bool:
        """Return whether it waits for a lock that processes share."""
        is_lock = self.callee.rpartition(".")[2] in {"", "acquire", "get_lock"}
        return self.mostly_waits and self.library == "multiprocessing" and is_lock


def find_function_in_loop(ctx: Context, loop: Location) -> LoaderFunction | None:
    """Find where a loader without workers spends its time, or None if no function stands out.

    Args:
        loop: The line that waits for the loader: samples there are in functions of libraries.
    """
    samples = step_samples(ctx)
    if samples is None:
        return None
    functions = [function for function in samples.functions if function.part in LOADER_PARTS]
    return _find_main(functions, loop, sum(function.ns for function in functions), None)


def find_function_in_workers(ctx: Context) -> LoaderFunction | None:
    """Find where the workers of loaders spend their time, or None if no function stands out."""
    workers = None if ctx.trace.capture is None else ctx.trace.capture.loader_workers
    if workers is None:
        return None
    total_ns = sum(function.ns for function in workers.functions)
    return _find_main(workers.functions, None, total_ns, workers_busy_share(ctx))


def workers_busy_share(ctx: Context) -> float | None:
    """Return the share of their time in which workers prepare batches, or None if unknown.

    While the loop waits, a worker prepares what it waits for. Samples that have little of that are
    too few, or the batch is on its way.
    """
    capture, samples = ctx.trace.capture, step_samples(ctx)
    workers = None if capture is None else capture.loader_workers
    if capture is None or workers is None:
        return None

    busy_share = workers.fetching_ns / max(1, workers.sampled_ns)
    waiting_share = 0.0 if samples is None else _waiting_ns(samples) / max(1, samples.running_ns)
    n_workers = workers.n_workers if capture.threads is None else capture.threads.n_workers
    is_plausible = busy_share * max(1, n_workers) >= _MIN_PLAUSIBLE * waiting_share
    return busy_share if is_plausible else None


def _waiting_ns(samples: SampledTime) -> int:
    """Return the time of samples in a loader, or waiting for one."""
    return sum(function.ns for function in samples.functions if function.part in LOADER_PARTS)


def are_workers_idle(ctx: Context) -> bool:
    """Return whether workers wait most of the time, beyond chance, so that more are no help."""
    busy_share = workers_busy_share(ctx)
    workers = None if ctx.trace.capture is None else ctx.trace.capture.loader_workers
    if workers is None or busy_share is None:
        return False
    return is_beyond_chance(1 - busy_share, workers.n_samples, 1 - _MIN_BUSY)


def find_hidden_waits(ctx: Context, waited_ns: int) -> HiddenWaits | None:
    """Find waits for workers of a loader that the recorded steps do not show; None without them.

    While a recording starts, workers go on and fill their queue. The few steps that are recorded
    then find their batches ready, however slow the workers are; the steps after them wait again.

    Args:
        waited_ns: Time in which the recorded steps waited for batches, per step.
    """
    samples, busy_share = step_samples(ctx), workers_busy_share(ctx)
    if samples is None or busy_share is None or samples.n_steps <= len(ctx.steps):
        return None
    # Workers that are idle are not what the program waits for.
    if busy_share < _MIN_BUSY:
        return None

    waits_ns = sum(function.ns for function in samples.functions if function.part in LOADER_PARTS)
    share = waits_ns / max(1, samples.running_ns)
    step_ns = samples.steps_ns // samples.n_steps
    hidden_ns = round(share * step_ns) - waited_ns
    is_long = is_beyond_chance(share, samples.n_samples, _MIN_WAITING)
    if not is_long or hidden_ns < _MIN_WAITING * step_ns:
        return None
    return HiddenWaits(share, step_ns, hidden_ns, samples.n_steps, samples.n_samples)


def _find_main(
    functions: Sequence[SampledFunction],
    loop: Location | None,
    total_ns: int,
    busy_share: float | None,
) -> LoaderFunction | None:
    """Find the function with most of some time, if that is more than a share of note.

    Args:
        total_ns: The time, of which some may be in no function of the program.
    """
    by_function: dict[tuple[str, str], list[SampledFunction]] = defaultdict(list)
    for function in functions:
        file, number, name = function.place
        if file and (loop is None or (file, number) != (loop.file, loop.line)):
            by_function[file, name].append(function)
    if not by_function:
        return None

    # Samples are of lines: the function is what a reader looks for, and its line is a detail.
    lines = max(by_function.values(), key=lambda lines: sum(line.ns for line in lines))
    function_ns = sum(line.ns for line in lines)
    share = function_ns / max(1, total_ns)
    # Of few samples a share may be chance.
    n_in_loader = sum(function.n for function in functions)
    if not is_beyond_chance(share, n_in_loader, _MIN_SHARE):
        return None

    # A function that passes most of its time on is named with what it calls.
    by_callee: dict[str, float] = defaultdict(float)
    for line in lines:
        by_callee[line.callee] += line.ns
    callee = find_main_callee(by_callee)

    longest = max(lines, key=lambda line: (not callee or line.callee == callee, line.ns))
    file, number, name = longest.place
    waiting_ns = sum(line.waiting_ns for line in lines)
    return LoaderFunction(
        Location(file=file, line=number, function=name or None, precision="line"),
        callee,
        share,
        waiting_ns / max(1, function_ns),
        longest.library,
        longest.part,
        busy_share,
    )
