"""PRF002 carried-in-device-work: the GPU still runs work from before the recording.

What it finds:
    Kernels, copies and fills at the beginning of a stream whose launch was not recorded: they were
    launched before the recording began.

Why it matters:
    The GPU runs behind the host. When a recording begins, it may have much work left, which then
    takes time in the first recorded step but belongs to an earlier one. It is listed separately
    and assigned to no line, and the first step appears busier than it is.

How to fix it:
    Let the GPU finish before the recording begins: synchronize once before it, or let the profiler
    warm up for a step.

Example:
    ::

        warm_up(model)
        with profkit.trace("step"):

Use instead:
    ::

        warm_up(model)
        torch.cuda.synchronize()
        with profkit.trace("step"):

Reads:
    Kernels, copies and fills (``ts_ns`` and ``dur_ns`` in nanoseconds, ``stream``), their launches.

When to ignore this:
    The recording lost launches at its beginning, which looks the same.

Source:
    "Asynchronous execution" in PyTorch's CUDA semantics; work on one stream runs in the order of
    its launches ("Streams" in the CUDA C++ Programming Guide), so work before the first one with
    a recorded launch was launched earlier.
"""

from collections.abc import Iterator

from profkit.index.device.orphans import orphans_from_before_recording
from profkit.index.intervals import covered_by
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    dataclass,
    event_ids,
    format_count,
    format_ns,
    format_share,
    needs,
)

INFO = RuleInfo(
    id="PRF002",
    name="carried-in-device-work",
    title="GPU work launched before the recording",
    severity="note",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When carried-in work matters.

    Attributes:
        min_busy_share: Minimum share of the GPU's busy time. Below a hundredth no figure changes.
    """

    min_busy_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if devices ran work from before the recording."""
    rows = orphans_from_before_recording(ctx.events, ctx.launches)
    # As a union, like the busy time that it is compared with: streams run at the same time.
    busy_ns = covered_by(ctx.events, rows).total_ns
    share = busy_ns / max(ctx.busy.total_ns, 1)
    if not busy_ns or share < thresholds.min_busy_share:
        return

    device = "GPU" if ctx.device_type in {"cuda", "xpu"} else "device"
    yield INFO.finding(
        confidence="high",
        message=(
            f"{format_count(len(rows))} of {format_count(len(ctx.launches.work))} kernels, copies "
            f"and fills were launched before recording began. They take {format_ns(busy_ns)}, "
            f"{format_share(share)} of the {device}'s busy time."
        ),
        fix=(
            f"Call `torch.{ctx.device_type}.synchronize()` once before the recording, or use "
            "`warmup=1`."
        ),
        n=len(rows),
        evidence={"busy_ns": busy_ns, "events": event_ids(ctx, rows)},
    )
