"""SYN002 explicit-synchronize: the program itself waits for the device in every step.

What it finds:
    Calls of ``torch.cuda.synchronize()``, ``stream.synchronize()`` and ``event.synchronize()``
    inside the steps: a synchronizing runtime call that no operator contains. The synchronization
    with which the profiler itself ends a recording is not one of them, nor those with which gloo's
    threads wait for what they send.

Why it matters:
    A program that waits for the device has sent nothing that the device could do next. Until the
    host has launched new work the device stands idle, in every step. Printing times and debugging
    leave such calls behind.

How to fix it:
    Delete the call: PyTorch orders the work on a stream by itself. To take times, record two
    ``torch.cuda.Event(enable_timing=True)`` and read them once at the end; to order two streams,
    use ``stream.wait_stream()``, which does not hold up the host.

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
    Runtime calls (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the call tree, the devices'
    busy time in nanoseconds, the user's lines.

When to ignore this:
    A program may have to wait: before it hands memory to another library, or to bound how far the
    host runs ahead. What is idle for another reason stays idle: the cost is an upper bound.

Source:
    ``torch.cuda.synchronize``, ``torch.cuda.Event`` and "Asynchronous execution" in PyTorch's
    CUDA semantics; "Explicit Synchronization" in the CUDA C++ Programming Guide;
    ``ProcessGroupGloo.cpp`` (``AsyncAllreduceCUDAWork``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import costly_wait, in_windows
from profkit.engine.wording import at, known_locations, time_per_step, times_per_step
from profkit.index.device.syncs import SyncKind, called_by_profiler
from profkit.index.ranks.collectives import collective_rows
from profkit.model.events import NO_ROW, Rows
from profkit.model.finding import Finding

INFO = RuleInfo(
    id="SYN002",
    name="explicit-synchronize",
    title="The program waits for the GPU",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a synchronization is worth a word.

    Attributes:
        min_wait_share: Share of the steps that the host must have waited. Below a thousandth no
            step gets measurably shorter; libraries that check an event which has long happened
            stay below it.
        warning_share: Share of the steps that can be given back from which it is a warning: one
            percent is where a change pays for the edit.
    """

    min_wait_share: float = 0.001
    warning_share: float = 0.01


_PYTHON: Final = {
    "DeviceSynchronize": "torch.cuda.synchronize()",
    "CtxSynchronize": "torch.cuda.synchronize()",
    "StreamSynchronize": "stream.synchronize()",
    "EventSynchronize": "event.synchronize()",
}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that synchronizes explicitly."""
    for location, rows in ctx.by_line(_calls_of_the_user(ctx)):
        judged = costly_wait(ctx, rows, thresholds.min_wait_share, thresholds.warning_share)
        if judged is None:
            continue
        what = _what(ctx, rows)
        yield judged.finding(
            ctx,
            INFO,
            message=(
                f"`{what}`{at(location)} is called {times_per_step(ctx, len(rows))} and holds the host "
                f"for {time_per_step(ctx, judged.wait.blocked_ns)}; the GPU was idle for "
                f"{time_per_step(ctx, judged.wait.idle_ns)}."
            ),
            fix=_fix(what),
            locations=known_locations(location),
            n=len(rows),
            rows=rows,
            evidence={"call": ctx.events.name_of(int(rows[0]))},
        )


def _calls_of_the_user(ctx: Context) -> Rows:
    """Explicit synchronization in the steps that neither profiler nor exchange asked for."""
    rows = ctx.syncs.of_kind(SyncKind.EXPLICIT).rows
    of_exchange = ctx.tree.nearest(collective_rows(ctx.events))[rows] != NO_ROW
    rows = rows[in_windows(ctx, rows) & ~of_exchange]
    own: Rows = rows[~called_by_profiler(ctx.events, ctx.tree, ctx.launches, rows)]
    return own


def _what(ctx: Context, rows: Rows) -> str:
    """The call as it is written in Python, else the runtime's own name."""
    call = ctx.events.name_of(int(rows[0]))
    for ending, python in _PYTHON.items():
        if call.removesuffix("_v2").endswith(ending):
            return python
    return call


def _fix(what: str) -> str:
    start = f"Delete `{what}`: PyTorch orders the work of a stream by itself."
    if "event" in what.lower() or "stream" in what.lower():
        return (
            f"{start} If another stream has to wait, let it: `stream.wait_event(event)` and "
            "`stream.wait_stream(other)` do not hold up the host."
        )
    return (
        f"{start} To take times, record `torch.cuda.Event(enable_timing=True)` before and after, "
        "and read them after the loop."
    )
