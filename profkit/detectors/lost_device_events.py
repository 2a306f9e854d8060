"""PRF004 lost-device-events: launched GPU work is missing from the recording.

What it finds:
    Launches whose kernel is not in the recording; kernels within a stream whose launch is missing,
    if launches of others are recorded; and errors and warnings that the profiler itself wrote into
    the file.

Why it matters:
    Every figure of a GPU is computed from its events. Where they are missing the GPU appears idle,
    and findings about idle time are wrong.

How to fix it:
    Record a shorter window, with no other profiler on the GPU. Where all kernels are missing, the
    profiler had no access to the GPU's counters: another profiler used them, or the driver denied
    access. Of other devices the profiler of their vendor, such as ``torch_npu.profiler``, writes
    the recording, and its settings decide which events it has.

Example:
    ::

        nsys profile python train.py   # with torch.profiler inside: both need the same counters

Use instead:
    ::

        profkit run train.py

Reads:
    Launches and kernels (``correlation``, ``ts_ns`` in nanoseconds), the profiler's messages.

When to ignore this:
    Launches while a CUDA graph is captured run nothing; those between the calls that begin and end
    a capture are left out. So are the last launches of a recording, whose kernels may run after its
    end.

Source:
    ``libkineto/src/CuptiActivityProfiler.cpp`` (events outside the window, dropped records,
    messages); ``cuptiActivityFlushAll`` in CUPTI's documentation.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from profkit.index.device.orphans import find_launches_without_work, orphans_with_lost_launch
from profkit.index.runtime_calls import HIP, LAUNCH
from profkit.rule import (
    NO_ROW,
    Context,
    Finding,
    Rows,
    RuleInfo,
    dataclass,
    event_ids,
    format_count,
    format_share,
    needs,
    regex,
)

INFO = RuleInfo(
    id="PRF004",
    name="lost-device-events",
    title="GPU events are missing from the recording",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


_OF_NVIDIA: Final = regex(r"gpuGetDeviceCount|CUPTI|\bcuda[A-Z]")
_VENDOR_PROFILERS: Final = {"npu": "`torch_npu.profiler`", "xpu": "oneAPI's profiler"}


@dataclass(frozen=True)
class Thresholds:
    """When missing events matter.

    Attributes:
        min_lost_share: Minimum share of missing launches or kernels. Kineto drops a few at the
            edges of every recording; a hundredth changes figures.
        min_lost_count: Minimum number of missing launches or kernels, for short recordings.
    """

    min_lost_share: float = 0.01
    min_lost_count: int = 5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield findings for missing kernels, missing launches, and messages."""
    launches, without_work = find_launches_without_work(ctx.events, ctx.launches)
    n_lost, n_launches = len(without_work), len(launches)
    if _is_many(n_lost, n_launches, thresholds):
        yield _build_finding(
            ctx,
            without_work,
            f"{format_count(n_lost)} of {format_count(n_launches)} launches "
            f"({format_share(n_lost / n_launches)}) have no recorded kernel, so the GPU "
            "appears more idle than it was.",
        )

    orphans = orphans_with_lost_launch(ctx.events, ctx.launches)
    n_lost, n_work = len(orphans), len(ctx.launches.work)
    # Some vendors' profilers write no launches at all, of which none is lost.
    has_launches = bool((ctx.launches.launch != NO_ROW).any()) or len(LAUNCH.rows(ctx.events)) > 0
    if has_launches and _is_many(n_lost, n_work, thresholds):
        yield _build_finding(
            ctx,
            orphans,
            f"{format_count(n_lost)} of {format_count(n_work)} kernels, copies and fills "
            f"({format_share(n_lost / n_work)}) have no recorded launch, so their source lines "
            "are unknown.",
        )

    # Kineto writes its own log into the trace, by level.
    messages = ctx.trace.notes.messages
    texts = [text for level in ("ERROR", "WARNING") for text in messages.get(level, ())]
    if ctx.has_device_work and ctx.device_type != "cuda":
        # libkineto looks for an NVIDIA GPU too where another device runs the program.
        texts = [text for text in texts if not _OF_NVIDIA.search(text)]
    if texts:
        message = f"The profiler reported: “{texts[0].strip()}”."
        yield _build_finding(ctx, np.zeros(0, np.intp), message, texts)


def _suggest_fix(ctx: Context) -> str:
    """Suggest what helps with the profiler of the recorded device."""
    if ctx.device_type != "cuda":
        profiler = _VENDOR_PROFILERS.get(ctx.device_type, "the device's profiler")
        return f"Record fewer steps, and look in the messages and settings of {profiler}."
    others = "rocprof, omnitrace" if len(HIP.rows(ctx.events)) else "nsys, ncu, dcgm"
    return (
        f"Record fewer steps, close other profilers ({others}), and run `profkit doctor` to check "
        "the driver's permissions."
    )


def _is_many(n_lost: int, n_all: int, thresholds: Thresholds) -> bool:
    return n_lost >= thresholds.min_lost_count and n_lost >= thresholds.min_lost_share * n_all


def _build_finding(ctx: Context, rows: Rows, message: str, texts: Sequence[str] = ()) -> Finding:
    return INFO.finding(
        severity="note" if texts else "warning",
        confidence="low" if texts else "high",
        message=message,
        fix=_suggest_fix(ctx),
        n=max(1, len(rows), len(texts)),
        evidence={"messages": list(texts)} if texts else {"events": event_ids(ctx, rows)},
    )
