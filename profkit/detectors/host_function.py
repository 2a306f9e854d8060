"""CPU002 host-function: the steps wait for a Python function.

What it finds:
    A function of the program during which the GPU, if there is one, is idle and the host runs no
    operator, a millisecond or more at a time, for a share of the steps: preparing data with NumPy,
    tokenizing, ``torch.tensor`` of a list of arrays, ``gc.collect``, ``time.sleep``. What it calls
    for most of this time is named too. Time that another finding explains (waits for data,
    compilation, checkpoints, output) is not included, nor is a library's own Python around the
    operators that it runs, such as an optimizer's step or a trainer's loop.

    The function is known from recorded Python calls, or from stacks that ``profkit run`` samples
    over the steps: then also in a program without GPU, and with a share that is uncertain by a few
    percent.

Why it matters:
    The GPU works only while the host launches work faster than the GPU does it, and without a GPU
    the steps take as long as their functions. The cost is what the steps take less in a replay of
    the recording without this time. Recording Python calls makes them slower, up to twice as slow;
    sampling does not.

How to fix it:
    Move the preparation of data into the data set, where the workers of a ``DataLoader`` do it in
    parallel with the steps; or compute with tensors; or prepare the next batch in a thread. Do it
    once before the loop if it is the same in every step. Stack a list of arrays before it becomes a
    tensor. Call ``gc.freeze()`` once before the loop instead of ``gc.collect()`` in each step.

Example:
    ::

        for x, y in loader:
            x = torch.as_tensor(augment(x.numpy()), device=device)
            train(x, y)

Use instead:
    ::

        loader = DataLoader(Augmented(dataset), num_workers=4)
        for x, y in loader:
            train(x.to(device), y)

Reads:
    Calls of Python functions (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), or sampled stacks
    and source lines of operators; operators and runtime calls on the same thread, GPU busy time in
    nanoseconds, the steps.

When to ignore this:
    The function is the purpose of the step, such as a simulation that a policy acts in.

Source:
    "Avoid unnecessary CPU-GPU synchronization" and "Enable asynchronous data loading and
    augmentation" in PyTorch's Performance Tuning Guide; ``torch.utils.data.DataLoader``
    (``num_workers``) in PyTorch's documentation; ``gc.freeze`` in Python's; the warning of
    ``torch.tensor`` in ``torch/csrc/utils/tensor_new.cpp``: "Creating a tensor from a list of
    numpy.ndarrays is extremely slow".
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.families.compile import compiling_time
from profkit.engine.families.python_calls import (
    CHECKPOINT,
    OUTPUT,
    PYTHON_CALLS,
    find_innermost_callee,
    function_name,
    of_program,
)
from profkit.engine.families.sampled_python import (
    SampledPlace,
    find_named_places,
    python_time,
    step_samples,
)
from profkit.engine.families.sampled_texts import (
    describe_sampled_place,
    mostly_waits,
    receives,
    suggest_elsewhere,
    suggest_sampled_fix,
)
from profkit.index.distinct import marked
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import (
    Intervals,
    covered_by,
    covered_within,
    intersect,
    subtract,
    union,
    unite,
)
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Int32s,
    Int64s,
    Mask,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    idle_in_windows,
    known_locations,
    measure_savings,
    needs,
    reaches_share,
    regex,
    time_with_share,
    torch_names,
    windows,
    windows_ns,
)

_NEARLY_ALL: Final = 0.9
"""A function with this share of the long pauses has them to itself."""
_DEVICE_WORK: Final = replace(
    needs.DEVICE_WORK,
    name="device work, or sampled stacks",
    is_met=lambda ctx: ctx.has_device_work or step_samples(ctx) is not None,
)
_PYTHON_CALLS: Final = replace(
    PYTHON_CALLS,
    name="Python calls, or sampled stacks",
    is_met=lambda ctx: PYTHON_CALLS.is_met(ctx) or step_samples(ctx) is not None,
)

_PIPELINE: Final = regex(r"(^|[/\\])transformers[/\\]pipelines[/\\].*: preprocess$")
_FIX_PIPELINE: Final = (
    "Pass many inputs at once and `num_workers=1` or more to the pipeline of Transformers, so that "
    "they are prepared in parallel with the model; a processor loaded with `use_fast=True` takes "
    "less, if the model has a fast one."
)
_FIX_WAIT: Final = (
    "The call waits for Python's global lock, which another thread of the program holds: move that "
    "thread's work into a process."
)

INFO = RuleInfo(
    id="CPU002",
    name="host-function",
    title="Steps wait for a Python function",
    severity="warning",
    needs=(needs.OPERATORS, _DEVICE_WORK, _PYTHON_CALLS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a function is a finding.

    Attributes:
        min_pause_ns: Minimum time without an operator, for it to count. Between the operators of a
            model Python takes some 10 µs, and up to 0.5 ms where its calls are recorded: that is
            the overhead of launching and not one function.
        min_saved_share: Minimum share of the steps that one function's time saves, by replay. Up
            to half of it may be the overhead of recording.
    """

    min_pause_ns: int = 1_000_000
    min_saved_share: float = 0.05


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function of the program that the steps wait for."""
    if step_samples(ctx) is not None:
        yield from _detect_sampled(ctx, thresholds)
    else:
        yield from _detect_called(ctx, thresholds)


def _detect_sampled(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each sampled function whose time is outside of short gaps."""
    pauses = _keep_long(python_time(ctx), thresholds)
    places = [place for place in find_named_places(ctx) if _is_one_thing(place)]
    if not len(pauses) or not places:
        return

    change = ProgramChange(host_time=pauses.pairs())
    saved = ctx.time_cost(change, "estimate")
    steps_ns = ctx.steps.total_ns

    # A thread that has no core runs no operator either, wherever it is: all such time may be in
    # the pauses. What is left lasts as much longer as all else that needs a core.
    capture = ctx.trace.capture
    delayed_share = 0.0 if capture is None or capture.cpu is None else capture.cpu.delayed_share
    running_ns = max(0.0, pauses.total_ns - delayed_share * steps_ns)
    left_ns = round(running_ns / (1 - delayed_share)) if running_ns else 0

    for place in places:
        spent_ns = min(round(place.share * steps_ns), left_ns)
        left_ns -= spent_ns
        # Samples tell how long each function takes, and not which of the pauses are its own.
        cost_ns = round((saved.ns or 0) * spent_ns / pauses.total_ns)
        if not reaches_share(ctx, cost_ns, thresholds.min_saved_share):
            continue

        # Then it costs what all pauses cost, and the message says the same.
        is_all = spent_ns >= _NEARLY_ALL * pauses.total_ns
        spent_ns = pauses.total_ns if is_all else spent_ns
        yield INFO.finding(
            # A service is idle between requests, and in a training loop the sender is slow.
            severity="note" if receives(place) else "warning",
            confidence="medium",
            message=describe_sampled_place(ctx, place, spent_ns),
            fix=suggest_sampled_fix(ctx, place),
            locations=known_locations(place.location),
            n=len(ctx.steps),
            # Of several functions only the sum of the pauses is known, and none can be replayed
            # alone.
            cost=saved if is_all else ctx.cost(cost_ns, basis="estimate"),
            evidence={
                "python_ns": spent_ns,
                "callee": place.callee,
                "samples": place.n_samples,
                "waiting_share": place.waiting_share,
            },
            spans=pauses.pairs() if is_all else (),
            change=change if is_all else None,
        )


def _is_one_thing(place: SampledPlace) -> bool:
    """Return whether a function can be called elsewhere or less often: it runs no steps itself."""
    runs_steps = place.is_around_operators and not mostly_waits(place)
    return place.share > place.operator_share and not runs_steps


def _detect_called(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function in whose recorded calls the GPU is idle."""
    pauses = _find_pauses(ctx, thresholds)
    if not len(pauses):
        return

    # Replays are costly: a function saves no more than its pauses, so short ones are left out.
    calls = _Calls.of(ctx, pauses)
    min_saved_ns = thresholds.min_saved_share * windows_ns(ctx)
    frames = [frame for frame, ns in calls.by_frame() if ns >= min_saved_ns]
    spent = [intersect(pauses, calls.time_in(ctx, frame)) for frame in frames]
    savings = measure_savings(ctx, [ProgramChange(host_time=time.pairs()) for time in spent])

    for frame, time, saving in zip(frames, spent, savings, strict=True):
        if not saving.reaches(thresholds.min_saved_share):
            continue

        rows = calls.rows[(calls.frame == frame) & (calls.paused_ns > 0)]
        location = ctx.location(int(rows[0]))
        callee = calls.find_callee(ctx, frame, time.total_ns)
        is_wait = torch_names.SYNCHRONIZE_BUILTIN.search(callee) is not None
        mostly = f", mostly {function_name(callee)}" if callee else ""
        mostly += ", after the driver's call has returned" if is_wait else ""
        yield saving.finding(
            INFO,
            confidence="medium",
            message=(
                f"The GPU is idle for {time_with_share(ctx, time.total_ns)} while the host runs "
                f"Python{at(location)}{mostly}."
            ),
            fix=_FIX_WAIT if is_wait else _suggest_fix(ctx, location.function or "", callee),
            locations=known_locations(location),
            rows=rows,
            evidence={"idle_ns": time.total_ns, "callee": callee},
            spans=time.pairs(),
        )


def _suggest_fix(ctx: Context, function: str, callee: str) -> str:
    """Suggest where else a function could run, or how it takes less."""
    if callee.endswith("function sleep>"):
        return "Leave out the sleep."
    if _PIPELINE.search(callee):
        return _FIX_PIPELINE
    frame = parse_frame(callee)
    return suggest_elsewhere(ctx, function, "" if frame is None else frame.function)


def _find_pauses(ctx: Context, thresholds: Thresholds) -> Intervals:
    """Find idle time of all GPUs in the windows without operators, calls and other known causes."""
    # Saving, printing, loading and compiling have rules of their own.
    events = ctx.events
    is_explained = rows_named(events, CHECKPOINT, Category.PYTHON)
    is_explained |= rows_named(events, OUTPUT, Category.PYTHON)
    is_explained[events.rows_of(Category.OP, Category.OVERHEAD)] = True
    is_explained[events.host_calls] = True
    is_explained[ctx.data_waits] = True

    explained = unite(compiling_time(ctx), covered_by(events, np.flatnonzero(is_explained)))
    idle = intersect(idle_in_windows(ctx), union(*windows(ctx)))
    return _keep_long(subtract(idle, explained), thresholds)


def _keep_long(pauses: Intervals, thresholds: Thresholds) -> Intervals:
    """Drop pauses as short as the overhead of launching."""
    is_long = pauses.ends_ns - pauses.starts_ns >= thresholds.min_pause_ns
    return Intervals(pauses.starts_ns[is_long], pauses.ends_ns[is_long])


@dataclass(frozen=True)
class _Calls:
    """Calls of user functions, and the pauses in them.

    Attributes:
        pauses: The pauses.
        rows: Calls whose frame differs from their caller's. Shape ``(k,)``.
        frame: Their frames. Shape ``(k,)``.
        paused_ns: Time of the pauses in each, without calls of other user functions. Shape
            ``(k,)``.
        caller: The innermost of ``rows`` around each, or :data:`NO_ROW`. Shape ``(k,)``.
    """

    pauses: Intervals
    rows: Rows
    frame: Int32s
    paused_ns: Int64s
    caller: Int32s

    @classmethod
    def of(cls, ctx: Context, pauses: Intervals) -> "_Calls":
        events, tree, frame = ctx.events, ctx.tree, ctx.source.frame
        outer = np.where(tree.parent == NO_ROW, NO_FRAME, frame[tree.parent])
        is_call: Mask = (events.category == Category.PYTHON) & (frame != NO_FRAME)
        is_call &= (frame != outer) & of_program(ctx)
        rows = np.flatnonzero(is_call)
        caller = tree.enclosing(is_call)[rows]

        # Pauses of a call without those of its callees; the last element is for NO_ROW, no caller.
        paused_ns = np.zeros(len(events) + 1, dtype=np.int64)
        within_ns = covered_within(pauses, events.ts_ns[rows], events.end_ns[rows])
        paused_ns[rows] = within_ns
        np.subtract.at(paused_ns, caller, within_ns)
        return cls(pauses, rows, frame[rows], paused_ns[rows], caller)

    def by_frame(self) -> list[tuple[int, int]]:
        """Return the frames and the time of the pauses in each, the longest first."""
        total = np.bincount(self.frame, self.paused_ns)
        order = np.argsort(-total, kind="stable")
        return [(int(frame), int(total[frame])) for frame in order.tolist()]

    def time_in(self, ctx: Context, frame: int) -> Intervals:
        """Return the time in a function without its calls of other user functions."""
        rows = self.rows[self.frame == frame]
        called = self.rows[marked(rows, len(ctx.events))[self.caller]]
        return subtract(covered_by(ctx.events, rows), covered_by(ctx.events, called))

    def find_callee(self, ctx: Context, frame: int, total_ns: int) -> str:
        """Find the innermost function that a function spends most of its pauses in, by name.

        Args:
            total_ns: The time of the pauses in it.

        Returns:
            Empty if it spends them in itself, or in several functions.
        """
        is_python = ctx.events.category == Category.PYTHON
        below = np.flatnonzero(is_python & (ctx.source.frame == frame))
        below = below[~np.isin(below, self.rows)]
        callers = self.rows[self.frame == frame]
        return find_innermost_callee(ctx, callers, below, self.pauses, total_ns)
