"""CMP004 compile-in-window: code is compiled for the first time within the recording.

What it finds:
    The first compilations of functions by ``torch.compile``, of kernels by Triton, of functions by
    TorchScript and of C++ extensions that are within the steps, or anywhere in a recording without
    steps. Later compilations of the same function are those of recompiles.

Why it matters:
    Compiling takes tenths of a second to minutes, once. A recording or a measurement that contains
    it says little on the steps that follow. The cost is what the recording takes less in a replay
    without this time.

How to fix it:
    Run a few iterations before the recording or the measurement begins. TorchScript compiles at the
    third call, after two calls that it observes. Compiled code that is kept between runs
    (``TORCHINDUCTOR_CACHE_DIR``, ``TRITON_CACHE_DIR``) is compiled faster.

Example:
    ::

        compiled = torch.compile(model)
        with torch.profiler.profile() as prof:
            compiled(x)

Use instead:
    ::

        compiled = torch.compile(model)
        for _ in range(3):
            compiled(x)
        with torch.profiler.profile() as prof:
            compiled(x)

Reads:
    Compilations on the host, calls of Python functions and operators (``name``, ``ts_ns`` and
    ``dur_ns`` in nanoseconds), the steps.

When to ignore this:
    You want to know what compiling takes.

Source:
    "``torch.compile`` troubleshooting" and "Compile time caching" in PyTorch's documentation;
    ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp`` (TorchScript);
    ``python/triton/compiler/compiler.py`` (Triton).
"""

from collections.abc import Iterator
from functools import reduce

from profkit.engine.families.compile import compile_times
from profkit.engine.families.recording_advice import extent_ns, record_later, share_of_extent
from profkit.index.intervals import EMPTY, unite
from profkit.rule import Context, Finding, ProgramChange, RuleInfo, dataclass, format_ns, needs

INFO = RuleInfo(
    id="CMP004",
    name="compile-in-window",
    title="Recording includes first compilations",
    severity="note",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When compilations are a finding.

    Attributes:
        min_saved_share: Minimum share of the steps, or of a recording without steps, that they
            take. Below it, averages differ from later steps no more than steps differ anyway.
    """

    min_saved_share: float = 0.05


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding on all first compilations."""
    times = compile_times(ctx)
    spent = reduce(unite, times.values(), EMPTY)
    min_ns = thresholds.min_saved_share * extent_ns(ctx)
    if spent.total_ns < max(1, min_ns):
        return

    # The replay is the costly part, and can save no more than the time itself.
    change = ProgramChange(host_time=spent.pairs())
    cost = ctx.time_cost(change)
    if (cost.ns or 0) < min_ns:
        return

    longest = sorted(times.items(), key=lambda item: -item[1].total_ns)
    parts = ", ".join(f"{name} {format_ns(time.total_ns)}" for name, time in longest)
    yield INFO.finding(
        # TorchScript's fuser writes no event: its time is a pause before a call.
        confidence="medium" if "TorchScript" in times else "high",
        message=(
            f"Compiling for the first time takes {share_of_extent(ctx, spent.total_ns)}: {parts}."
        ),
        fix=(
            record_later(ctx, wait=3)
            if len(ctx.steps)
            else "Call the compiled functions three times before the recording or measurement "
            "begins."
        ),
        n=len(spent),
        cost=cost,
        evidence={"compile_ns": spent.total_ns},
        spans=spent.pairs(),
        change=change,
    )
