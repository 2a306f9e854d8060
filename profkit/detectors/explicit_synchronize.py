"""SYN002 explicit-synchronize: the program synchronizes with the GPU in its steps.

What it finds:
    Calls of ``torch.cuda.synchronize()``, ``stream.synchronize()`` and ``event.synchronize()``
    inside the steps: synchronizing runtime calls outside any operator. The call with which the
    profiler ends a recording is left out, and so are calls of gloo's threads, and a line that only
    synchronizes before the first launch or after the last, as benchmarks begin and end.

Why it matters:
    While the host waits for the GPU it launches nothing, so the GPU is idle from the end of its
    work until the host has launched more, in every step. The cost is what the steps take less in a
    replay of the recording without the calls. They are often left over from timing or debugging.

How to fix it:
    Delete the call: PyTorch orders the work of a stream by itself. For timing, record two
    ``torch.cuda.Event(enable_timing=True)`` and read them once at the end. To order two streams,
    use ``stream.wait_stream()``, which does not block the host. Where a library makes the call,
    such as for its timers, look for its option; FSDP's rate limiter is ``limit_all_gathers``.

Example:
    ::

        loss.backward()
        torch.cuda.synchronize()
        print(time.perf_counter() - start)

Use instead:
    ::

        loss.backward()
        end.record()   # torch.cuda.Event(enable_timing=True); read after the loop

Reads:
    Runtime calls (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the call tree, GPU busy time
    in nanoseconds, source lines.

When to ignore this:
    The program has to wait: before it passes memory to another library, or to limit how far the
    host runs ahead.

Source:
    ``torch.cuda.synchronize``, ``torch.cuda.Event`` and "Asynchronous execution" in PyTorch's
    CUDA semantics; "Explicit Synchronization" in the CUDA C++ Programming Guide;
    ``ProcessGroupGloo.cpp`` (``AsyncAllreduceCUDAWork``).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.python_calls import find_library_function, place_of_call
from profkit.index.device.syncs import (
    SyncKind,
    are_followed_by_work,
    are_preceded_by_work,
    find_calls_by_profiler,
)
from profkit.index.ranks.collectives import collective_rows
from profkit.rule import (
    NO_ROW,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    WaitThresholds,
    find_costly_waits,
    known_locations,
    needs,
    times_per_step,
    waits_in_windows,
)

INFO = RuleInfo(
    id="SYN002",
    name="explicit-synchronize",
    title="Host blocked by an explicit synchronization",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds

_PYTHON_CALLS: Final = {
    "DeviceSynchronize": "torch.cuda.synchronize()",
    "CtxSynchronize": "torch.cuda.synchronize()",
    "StreamSynchronize": "stream.synchronize()",
    "EventSynchronize": "event.synchronize()",
}

_LIBRARY_FIX: Final = (
    "Look for an option of the library without this synchronization, or call it less often: the "
    "library may need it."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that synchronizes explicitly."""
    lines = list(ctx.by_line(_find_calls(ctx)))
    waits = find_costly_waits(ctx, [ProgramChange(calls=rows) for _, rows in lines], thresholds)
    for (location, rows), wait in zip(lines, waits, strict=True):
        if wait is None or _frames_all_work(ctx, rows):
            continue

        runtime_call = ctx.events.name_of(int(rows[0]))
        call = _name_python_call(runtime_call)
        caller = find_library_function(ctx, rows)
        place = place_of_call(caller, location)
        yield wait.finding(
            INFO,
            message=(f"`{call}`{place} is called {times_per_step(ctx, len(rows))} and {wait.text}"),
            fix=_LIBRARY_FIX if caller else _suggest_fix(call),
            locations=known_locations(location),
            rows=rows,
            evidence={"call": runtime_call},
        )


def _find_calls(ctx: Context) -> Rows:
    """Find explicit synchronization in the steps, not by the profiler or within collectives."""
    rows = waits_in_windows(ctx, SyncKind.EXPLICIT).rows
    # gloo synchronizes streams in its own threads, as a part of the collective.
    in_collective = ctx.tree.nearest(collective_rows(ctx.events))[rows] != NO_ROW
    rows = rows[~in_collective]
    calls: Rows = rows[~find_calls_by_profiler(ctx.events, ctx.tree, ctx.launches, rows)]
    return calls


def _frames_all_work(ctx: Context, rows: Rows) -> bool:
    """Tell whether nothing was launched before any of the calls, or nothing after."""
    if not are_preceded_by_work(ctx.events, ctx.launches, rows).any():
        return True
    # In a recording of a single step the next step may follow.
    return len(ctx.steps) != 1 and not are_followed_by_work(ctx.events, ctx.launches, rows).any()


def _name_python_call(runtime_call: str) -> str:
    """Name a call as it is written in Python; if unknown, return the runtime's name."""
    # The driver's interface has versions of functions, as in cuCtxSynchronize_v2.
    name = runtime_call.removesuffix("_v2")
    return next(
        (call for ending, call in _PYTHON_CALLS.items() if name.endswith(ending)), runtime_call
    )


def _suggest_fix(call: str) -> str:
    start = f"Delete `{call}`: PyTorch orders the work of a stream by itself."
    # A wait for one event or stream mostly orders work, one for the whole device mostly times it.
    if "event" in call.lower() or "stream" in call.lower():
        return (
            f"{start} To make another stream wait, use `stream.wait_event(event)` or "
            "`stream.wait_stream(other)`, which do not block the host."
        )
    return (
        f"{start} For timing, record `torch.cuda.Event(enable_timing=True)` before and after, and "
        "read them after the loop."
    )
