"""PRF009 unrecorded-device-work: the GPU worked on something that is not in the recording.

What it finds:
    Time in which no recorded work ran although launched work was waiting, or although the host was
    blocked until the GPU had finished; and collectives that were issued but have no kernel.

Why it matters:
    A GPU starts launched work within about 20 microseconds, and a blocking call returns within that
    time after its work. If neither happens, the GPU was working. Such time is neither idle nor
    attributed to a line, and figures of the recorded kernels are lower bounds.

How to fix it:
    Record again with a newer PyTorch and driver, without other profilers on the GPU. Kernels of a
    CUDA graph are only recorded if the profiler was running when the graph was captured.

Example:
    ::

        graph.replay()  # captured before the profiler was started
        loss.item()  # waits for kernels that are not in the trace

Use instead:
    ::

        with profkit.trace("step"):
            capture_graph()
            graph.replay()

Reads:
    Kernels, copies and fills with their launches, blocking calls, collectives (``ts_ns`` and
    ``dur_ns`` in nanoseconds).

When to ignore this:
    The first launches of a program load code onto the GPU, which takes milliseconds and is not
    recorded either.

Source:
    "API synchronization behavior" in the CUDA Runtime API reference; ``CUDAGraph`` and ``kineto``
    issues on missing graph kernels; measured: 20 microseconds exceed the launch latency and the
    return of a wait in recordings of V100, A100, H100, B200 and MI300X.
"""

from collections.abc import Iterator

from profkit.index.ranks.collectives import device_collectives
from profkit.index.runtime_calls import GRAPH_LAUNCH
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    counted,
    dataclass,
    format_ns,
    format_share,
    needs,
)

INFO = RuleInfo(
    id="PRF009",
    name="unrecorded-device-work",
    title="GPU work is missing from the recording",
    severity="warning",
    needs=(needs.DEVICE_WORK,),
    since="0.2.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When it is reported.

    Attributes:
        warning_share: Share of the recording from which it is a warning: below a twentieth, shares
            of the step are hardly wrong.
    """

    warning_share: float = 0.05


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if a device worked on something else for long enough."""
    total_ns = ctx.unrecorded.total_ns
    if not total_ns:
        return

    share = total_ns / ctx.window_ns
    # Kernels of a graph are named while it is captured: what was captured before has none.
    has_graphs = len(GRAPH_LAUNCH.rows(ctx.events)) > 0
    longest_ns = int((ctx.unrecorded.ends_ns - ctx.unrecorded.starts_ns).max())
    missing = _count_missing_collectives(ctx)
    issued = f" {counted(missing, 'collective')} more were issued than ran." if missing > 0 else ""
    yield INFO.finding(
        severity="warning" if share >= thresholds.warning_share else "note",
        confidence="high",
        message=(
            f"For {format_ns(total_ns)} ({format_share(share)} of the recording, up to "
            f"{format_ns(longest_ns)} at once) no recorded work ran, although work was launched or "
            f"the host was waiting for the GPU.{issued}"
        ),
        fix=(
            "Start the recording before CUDA graphs are captured, record without other profilers, "
            "and with a newer PyTorch."
            if has_graphs
            else "Record without other profilers, and with a newer PyTorch."
        ),
        n=len(ctx.unrecorded),
        evidence={"unrecorded_ns": total_ns, "longest_ns": longest_ns, "n_collectives": missing},
        spans=ctx.unrecorded.pairs(),
    )


def _count_missing_collectives(ctx: Context) -> int:
    """Count the collectives issued to a device beyond the recorded communication kernels."""
    issued = len(device_collectives(ctx.events))
    # One collective may run as several kernels, so at least as many are missing.
    return max(0, issued - int(ctx.is_communication.sum()))
