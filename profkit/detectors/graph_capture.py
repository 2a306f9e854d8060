"""PRF013 graph-capture: the recording contains the capture of a CUDA graph.

What it finds:
    Time between the calls that begin and end the capture of a stream in which no GPU works, within
    the steps, or in a recording without steps anywhere.

Why it matters:
    Launches during a capture run nothing: they are noted in the graph, which the program launches
    as a whole from then on. So the GPU is idle, and the program launches many kernels one by one,
    but only once per process. Such a recording says little on the steps that follow.

How to fix it:
    Run the program until its graphs are captured before the recording begins, and record replays.

Example:
    ::

        with torch.profiler.profile() as prof:
            with torch.cuda.graph(graph):
                y = model(x)
            graph.replay()

Use instead:
    ::

        with torch.cuda.graph(graph):
            y = model(x)
        with torch.profiler.profile() as prof:
            for _ in range(3):
                graph.replay()

Reads:
    Calls of the runtime (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), GPU busy time in
    nanoseconds, the steps.

When to ignore this:
    The capture is what you want to measure. The kernels of a graph that was captured before the
    recording began may be missing from it, depending on the driver.

Source:
    "CUDA Graphs" in PyTorch's CUDA semantics; ``cudaStreamBeginCapture`` in the CUDA Runtime API
    reference.
"""

from collections.abc import Iterator

from profkit.engine.families.recording_advice import extent_ns, record_later, share_of_extent
from profkit.index.device.graph_captures import find_captures
from profkit.index.device.orphans import KERNEL_LAUNCH
from profkit.index.intervals import inside, intersect, subtract, union
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    counted,
    dataclass,
    idle_in_windows,
    needs,
    windows,
)

INFO = RuleInfo(
    id="PRF013",
    name="graph-capture",
    title="Recording includes the capture of a CUDA graph",
    severity="note",
    needs=(needs.DEVICE_WORK,),
    since="0.2.0",
    no_example="Graphs are captured in the first steps, and `profkit run` records later ones.",
)


@dataclass(frozen=True)
class Thresholds:
    """When a capture is a finding.

    Attributes:
        min_captured_share: Minimum share of the steps, or of a recording without steps, in which a
            capture keeps the GPU idle. Below it, averages differ from later steps no more than
            steps differ anyway.
    """

    min_captured_share: float = 0.05


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding on all captures."""
    captures = find_captures(ctx.events)
    if not len(captures):
        return

    in_steps = intersect(captures, union(*windows(ctx)))
    idle_in_steps = intersect(in_steps, idle_in_windows(ctx))
    # Without steps the window begins with the first device work, and a capture may come before it.
    spent = idle_in_steps if len(ctx.steps) else subtract(captures, ctx.busy)
    if spent.total_ns < thresholds.min_captured_share * extent_ns(ctx):
        return

    # How many tells that what looks like a slow loop of launches is none.
    launches_ns = ctx.events.ts_ns[KERNEL_LAUNCH.rows(ctx.events)]
    n_launches = int(inside(captures, launches_ns).sum())
    yield INFO.finding(
        confidence="high",
        message=(
            f"Capturing CUDA graphs takes {share_of_extent(ctx, spent.total_ns)}, while the GPU is "
            "idle: "
            f"{counted(n_launches, 'launch', 'launches')} within only become a part of a graph."
        ),
        fix=(
            record_later(ctx)
            if len(ctx.steps)
            else "Capture the graphs before the recording begins, and record replays."
        ),
        n=len(captures),
        evidence={
            "captured_ns": spent.total_ns,
            "idle_in_steps_ns": idle_in_steps.total_ns,
            "n_launches": n_launches,
        },
        spans=spent.pairs(),
    )
