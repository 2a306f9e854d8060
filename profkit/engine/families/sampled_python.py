"""Python time of the steps by function, from stacks that were sampled over them.

The recorded operators say how much of a step is Python outside of operators, exactly. The samples
say where the thread was, with an error, in operators too. So the operators of each line are taken
from the samples of that line, and what remains is at most the recorded Python time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.compile import compiling_time
from profkit.engine.families.python_calls import MAIN_CALLEE_SHARE
from profkit.index.distinct import distinct
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import Intervals, covered_by, subtract, union, unite
from profkit.index.runtime_calls import rows_named
from profkit.model.capture_info import SampledFunction, SampledTime
from profkit.model.events import HOST_CALLS, NO_ROW, Category, Mask
from profkit.model.location import MODULE_LEVEL, Location
from profkit.model.torch_names import BACKWARD
from profkit.patterns import regex

MIN_SHARE: Final = 0.05
"""A function that takes less of the steps is not named: with a hundred samples, as many as that may
be there by chance."""
MIN_SAMPLES: Final = 4
"""Fewer samples name no function, however long each of them stands for."""
_N_ERRORS: Final = 2
"""Standard errors by which a share has to exceed it."""
_MIN_OPERATORS: Final = 0.1
"""A function with less operator time per Python time computes one thing, such as a batch; another
one is a loop of steps, of which each call is a cause of its own."""
TORCH: Final = "torch"
"""The package whose calls in a loop run its steps."""
CHECKPOINT_CALL: Final = regex(r"(^|\.)(save|load)(_file|_model|_state_dict)?$")
"""Calls that write or read a file, as a program writes them; of a library, see
:data:`~profkit.engine.families.python_calls.CHECKPOINT`."""
_SUMMARY_CALL: Final = regex(
    r"\.add_(scalar|histogram|image|figure|video|audio|text|embedding|graph|mesh|pr_curve)s?$"
)
"""Methods of torch's ``SummaryWriter``."""

_ATEN: Final = "aten::"
_TORCH_CALL: Final = regex(r"^torch\.(?:\w+\.)*(\w+)$")
"""Methods of tensors are left out, since arrays of NumPy have the same."""
_OF_TORCH: Final = regex(r"^(torch|nn|F|zip)\b|(^|\.)functional\.")
_RUNS_STEP: Final = regex(r"(^|\.)(step|backward|zero_grad)$")
"""Calls, as a program writes them, of which a function that runs the steps has one."""
_MIN_PLACE_SHARE: Final = 0.5
"""Share of some operators' time that a function has to have, to be the one that runs them."""

_FileLine = tuple[str, int]


@dataclass(frozen=True)
class SampledPlace:
    """Python time of a function, or of what one function calls.

    Attributes:
        location: The function, with the line that most of its samples were at.
        callee: What that line calls, as the program writes it; empty where the function itself
            takes the time.
        library: The package that the time is in, or empty if that is the program or a function in
            C.
        n_samples: Number of samples there.
        share: Share of the steps, outside of operators.
        waiting_share: Share of this time in which the thread waits.
        operator_share: Share of the steps in operators at the same lines.
    """

    location: Location
    callee: str
    library: str
    n_samples: int
    share: float
    waiting_share: float
    operator_share: float

    @property
    def is_around_operators(self) -> bool:
        """Return whether this is a library's own Python around the operators that it runs.

        Such as an optimizer's step, or a trainer's loop of steps, which the program cannot call
        elsewhere or less often.
        """
        runs_operators = self.operator_share >= _MIN_OPERATORS * self.share
        return runs_steps(self.library, self.callee) or (bool(self.library) and runs_operators)

    def is_certain(self, n_samples: int) -> bool:
        """Return whether so many samples in all show that it takes a share of note."""
        # That files are written is certain by each sample, and only their share is not.
        n_errors = 1 if _writes_files(self.callee) and self.library else _N_ERRORS
        is_seen_often = self.n_samples >= MIN_SAMPLES
        return is_seen_often and is_beyond_chance(self.share, n_samples, MIN_SHARE, n_errors)


def _writes_files(callee: str) -> bool:
    return bool(CHECKPOINT_CALL.search(callee) or _SUMMARY_CALL.search(callee))


def runs_steps(library: str, callee: str) -> bool:
    """Return whether a call of a library runs the program's steps, and writes no file for them.

    Args:
        library: The package that its time is in.
        callee: As the program writes it, such as ``torch.save``.
    """
    return library == TORCH and not _writes_files(callee)


def is_beyond_chance(share: float, n_samples: int, least: float, n_errors: int = _N_ERRORS) -> bool:
    """Return whether so many samples show that a share is at least so large."""
    error = sqrt(max(0.0, share * (1 - share)) / max(1, n_samples))
    return share - n_errors * error >= least


def find_main_callee(times: Mapping[str, float]) -> str:
    """Find the callee that a function spends most of its time in; empty if that is none.

    Args:
        times: Time, or shares of it, by callee; that of the function itself by the empty name.
    """
    callee = max(times, key=times.__getitem__)
    return callee if times[callee] >= MAIN_CALLEE_SHARE * sum(times.values()) else ""


def step_samples(ctx: Context) -> SampledTime | None:
    """Return the samples of the recorded steps; None without them, or where all calls are known."""
    capture = ctx.trace.capture
    sampled = None if capture is None else capture.sampled
    if sampled is None or not sampled.n_steps or not len(ctx.steps):
        return None
    has_calls = ctx.events.has_python_calls
    return None if has_calls else sampled


def python_time(ctx: Context) -> Intervals:
    """Return the time of the steps in which their thread is outside of operators and waits.

    Waits for a backward pass in another thread are left out as well.
    """
    events = ctx.events
    is_known = _on_step_thread(ctx, Category.OP, *HOST_CALLS, Category.OVERHEAD)
    is_known[ctx.data_waits] = True
    accounted = unite(compiling_time(ctx), ctx.path_activity.collectives)
    accounted = unite(accounted, covered_by(events, np.flatnonzero(is_known)))
    outside = subtract(union(ctx.steps.starts_ns, ctx.steps.ends_ns), accounted)
    return subtract(outside, _backward_waits(ctx, outside))


def _backward_waits(ctx: Context, outside: Intervals) -> Intervals:
    """Return where the steps' thread waits for a backward pass, which runs in another thread.

    Autograd has a thread for each device, and runs there what is on it; the thread that called
    ``backward`` waits from the first of its operators to the last.

    Args:
        outside: Time in which the steps' thread runs no operator.

    Source: ``Engine::execute`` and ``start_device_threads`` in ``torch/csrc/autograd/engine.cpp``.
    """
    is_backward = rows_named(ctx.events, BACKWARD, Category.OP)
    is_backward &= ~_on_step_thread(ctx, Category.OP)
    work = covered_by(ctx.events, np.flatnonzero(is_backward))
    first = np.searchsorted(work.starts_ns, outside.starts_ns)
    last = np.searchsorted(work.ends_ns, outside.ends_ns, side="right") - 1
    has_work = first <= last
    return union(work.starts_ns[first[has_work]], work.ends_ns[last[has_work]])


def find_sampled_places(ctx: Context) -> tuple[SampledPlace, ...]:
    """Return where the steps spend Python time, most first; none without samples of the steps.

    Their shares add up to at most the share of :func:`python_time`.
    """
    sampled = step_samples(ctx)
    if sampled is None:
        return ()
    shares = _python_shares(sampled, _operator_shares(ctx), _operator_names(ctx))
    by_function: dict[tuple[str, str], list[_Share]] = defaultdict(list)
    for share in shares:
        by_function[share.function.place[0], share.function.place[2]].append(share)
    places = [place for group in by_function.values() for place in _places(group)]

    python_share = python_time(ctx).total_ns / max(1, ctx.steps.total_ns)
    total = sum(place.share for place in places)
    # Samples have errors, the recorded Python time has none: the shares must not exceed it.
    scale = min(1.0, python_share / total) if total else 0.0
    scaled = (replace(place, share=place.share * scale) for place in places if place.share)
    return tuple(sorted(scaled, key=lambda place: -place.share))


def find_named_places(ctx: Context) -> tuple[SampledPlace, ...]:
    """Return the :func:`find_sampled_places` that take a share of note, beyond chance."""
    sampled = step_samples(ctx)
    n_samples = 0 if sampled is None else sampled.n_samples
    return tuple(
        place
        for place in find_sampled_places(ctx)
        if place.location.file and place.is_certain(n_samples)
    )


@dataclass(frozen=True)
class StepFunction:
    """A function of user code in which the steps are, in operators or not.

    Attributes:
        location: The function, with the line that most of its samples were at.
        n_samples: Number of samples there.
        share: Share of the steps.
    """

    location: Location
    n_samples: int
    share: float


def find_step_functions(ctx: Context, *, without_libraries: bool = False) -> Iterator[StepFunction]:
    """Yield the functions that the steps are in, whatever they run there, most time first.

    A function that runs the steps has calls of ``backward()`` and an optimizer, which are left out.

    Args:
        without_libraries: Whether time in functions of libraries that they call is left out, too.
    """
    sampled = step_samples(ctx)
    if sampled is None:
        return
    by_function: dict[tuple[str, str], list[SampledFunction]] = defaultdict(list)
    for function in sampled.functions:
        file, _, name = function.place
        if not (without_libraries and function.library):
            by_function[file, name].append(function)

    longest = sorted(by_function.values(), key=lambda lines: -sum(line.ns for line in lines))
    for called in longest:
        lines = [line for line in called if not (line.part or _RUNS_STEP.search(line.callee))]
        share = sum(line.ns for line in lines) / max(1, sampled.running_ns)
        main = max(lines, key=lambda line: line.ns, default=None)
        if main is None or not main.place[0]:
            continue
        n_samples = sum(line.n for line in lines)
        is_seen_often = n_samples >= MIN_SAMPLES
        if is_seen_often and is_beyond_chance(share, sampled.n_samples, MIN_SHARE):
            yield StepFunction(Location(*main.place), n_samples, share)


def locate_by_samples(
    ctx: Context, spent_ns: int, *, are_direct: bool = False
) -> tuple[Location, ...]:
    """Return the function that runs some operators, where no source lines were recorded.

    Args:
        spent_ns: The time of the operators within the steps.
        are_direct: Whether the program calls the operators itself, with no function of a library
            in between.

    Returns:
        The only function in which the steps are for long enough, or nothing.
    """
    if ctx.has_lines:
        return ()
    # Of two functions with enough time, either may run them.
    least = _MIN_PLACE_SHARE * spent_ns / max(1, ctx.steps.total_ns)
    functions = find_step_functions(ctx, without_libraries=are_direct)
    places = [function.location for function in functions if function.share >= least]
    return (replace(places[0], precision="function"),) if len(places) == 1 else ()


def find_called_model(ctx: Context, location: Location) -> str:
    """Return what a function of the program calls for most of its time in torch, as it writes it.

    Such as ``self.encoder``; empty where that is not known, or is a function of torch itself.
    """
    samples = step_samples(ctx)
    times: dict[str, int] = defaultdict(int)
    for function in () if samples is None else samples.functions:
        file, _, name = function.place
        is_of_torch = function.library == TORCH and not function.part
        if is_of_torch and (file, name) == (location.file, location.function):
            times[function.callee] += function.ns
    if not times:
        return ""
    callee = max(times, key=times.__getitem__)
    return "" if _OF_TORCH.search(callee) else callee


def find_sampled_build(ctx: Context) -> tuple[Location | None, int]:
    """Find the function that builds models in a run without steps, and its time in the run."""
    capture = ctx.trace.capture
    sampled = None if capture is None else capture.sampled
    functions = [] if sampled is None or sampled.n_steps else sampled.functions
    for function in functions:
        is_seen_often = function.n >= MIN_SAMPLES and function.place[0]
        share = function.ns / max(1, sampled.running_ns) if sampled is not None else 0.0
        if function.part == "build" and is_seen_often and share >= MIN_SHARE:
            return Location(*function.place, precision="function"), function.ns
    return None, 0


@dataclass(frozen=True)
class _Share:
    """A sampled line with its shares of the steps.

    Attributes:
        python: Outside of operators.
        operators: In operators.
    """

    function: SampledFunction
    python: float
    operators: float


def _operator_names(ctx: Context) -> set[str]:
    """Return the names of the recorded operators, as a program calls them."""
    names = ctx.events.names
    used = distinct(ctx.events.name[ctx.events.rows_of(Category.OP)]).tolist()
    return {names[name].removeprefix(_ATEN) for name in used if names[name].startswith(_ATEN)}


def _python_shares(
    sampled: SampledTime, operators: Mapping[_FileLine, float], operator_names: set[str]
) -> list[_Share]:
    """Return the sampled lines without the operators' time at each.

    Operators of the backward pass and batches of a loader are recorded as a whole. The steps that
    were sampled after the recorded ones may have larger operators, such as of a growing tensor: a
    function of torch that is one takes no Python time there either.
    """
    functions = [function for function in sampled.functions if not function.part]
    at_line: dict[_FileLine, float] = defaultdict(float)
    for function in functions:
        at_line[function.place[:2]] += function.ns / sampled.running_ns

    shares = []
    for function in functions:
        line, share = function.place[:2], function.ns / sampled.running_ns
        in_operators = min(1.0, operators.get(line, 0.0) / at_line[line]) if at_line[line] else 0.0
        call = _TORCH_CALL.search(function.callee)
        if call and call[1] in operator_names:
            in_operators = 1.0
        shares.append(_Share(function, share * (1 - in_operators), share * in_operators))

    return shares


def _places(shares: list[_Share]) -> Iterable[SampledPlace]:
    """Return the places of one function: itself, or in a loop of steps each thing that it calls."""
    python = sum(share.python for share in shares)
    operators = sum(share.operators for share in shares)
    calls_torch = any(share.function.library == TORCH for share in shares)
    is_loop = calls_torch or operators >= _MIN_OPERATORS * python
    if not is_loop:
        yield _place(shares)
        return

    by_callee: dict[str, list[_Share]] = defaultdict(list)
    for share in shares:
        by_callee[share.function.callee].append(share)
    for group in by_callee.values():
        yield _place(group)


def _place(shares: list[_Share]) -> SampledPlace:
    """Return some lines of one function as one place."""
    python = sum(share.python for share in shares)
    by_line: dict[int, float] = defaultdict(float)
    by_callee: dict[str, float] = defaultdict(float)
    by_library: dict[str, float] = defaultdict(float)

    # One callee with most of the time names the place, and only its lines count for it.
    for share in shares:
        by_callee[share.function.callee] += share.python
    callee = find_main_callee(by_callee)
    for share in shares:
        if not callee or share.function.callee == callee:
            by_line[share.function.place[1]] += share.python
            by_library[share.function.library] += share.python

    file, _, function = shares[0].function.place
    waiting = sum(
        share.python * share.function.waiting_ns / max(1, share.function.ns) for share in shares
    )
    return SampledPlace(
        location=Location(
            file=file or None,
            line=max(by_line, key=by_line.__getitem__) if file else None,
            function=function or None,
            precision="line" if callee or function == MODULE_LEVEL else "function",
        ),
        callee=callee,
        library=max(by_library, key=by_library.__getitem__),
        n_samples=sum(share.function.n for share in shares),
        share=python,
        waiting_share=waiting / python if python else 0.0,
        operator_share=sum(share.operators for share in shares),
    )


def _operator_shares(ctx: Context) -> Mapping[_FileLine, float]:
    """Return the share of the steps in operators and calls outside of them, by source line.

    Operators of the backward pass are left out: they have the lines of the forward pass.
    """
    events, frame = ctx.events, ctx.source.frame
    is_work = _on_step_thread(ctx, Category.OP, *HOST_CALLS)
    is_outermost = is_work & (ctx.tree.enclosing(is_work) == NO_ROW)
    rows = np.flatnonzero(is_outermost & (ctx.forward_ops == NO_ROW) & (frame != NO_FRAME))
    rows = rows[ctx.step_of(rows) >= 0]
    steps_ns = max(1, ctx.steps.total_ns)

    spent_ns = np.bincount(frame[rows], events.dur_ns[rows], len(ctx.source.frames))
    shares: dict[_FileLine, float] = defaultdict(float)
    for number in np.flatnonzero(spent_ns).tolist():
        place = ctx.source.frames[number]
        shares[place.file, place.line or 0] += float(spent_ns[number]) / steps_ns
    return shares


def _on_step_thread(ctx: Context, *categories: Category) -> Mask:
    """Return which rows of some categories are on the steps' thread. Shape ``(n,)``."""
    events = ctx.events
    on_thread = np.isin(events.lane, events.lane[ctx.steps.rows])
    return on_thread & np.isin(events.category, categories)
