"""KER003 repeated-casts: tensors are cast to float32 and back again, layer after layer.

What it finds:
    Casts that the program itself writes (``.float()``, ``.bfloat16()``, ``.half()``,
    ``.to(dtype)``), several times per step to float32 and back, with nothing in between that needs
    float32. Casts around a norm, a softmax, a sum, a loss or a matrix product are intended and do
    not count, nor do casts by ``torch.autocast``.

Why it matters:
    A cast computes nothing: it reads and writes the whole tensor, and operators in between move
    four bytes per element instead of two. The cost is what the steps take less in a replay of the
    recording without these casts and their backward passes. A cast of a weight or at the ends of
    the network is needed once in any case. Operators in between become faster too; that is not in
    the figure.

How to fix it:
    Run the forward pass and the loss under ``torch.autocast`` without your own casts: it casts a
    weight once and leaves activations as they are. Or use one dtype for the whole network. Where
    single casts must stay, ``torch.compile`` fuses them into the neighboring kernels.

Example:
    ::

        def forward(self, x):
            return F.linear(x.bfloat16(), self.weight.bfloat16()).float()

Use instead:
    ::

        def forward(self, x):
            return F.linear(x, self.weight)

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)

Reads:
    Kernels (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators that launched them
    and those around these, sequence numbers, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The precision between the casts is wanted for a reason that operators do not show. On NVIDIA
    GPUs the name of a kernel that casts to float32 does not tell the source dtype, so casts of
    integers may be counted. Casts in custom autograd functions, and those that activation
    checkpointing repeats, are not found.

Source:
    "Autocast Op Reference" in PyTorch's documentation of ``torch.amp``; ``ATen/autocast_mode.h``;
    ``aten/src/ATen/native/cuda/Copy.cu``; nesting of casts as recorded with torch 2.13: autocast's
    ``aten::to`` is within the operator that needs it, one that the program wrote is within none.
"""

from collections.abc import Iterator
from typing import Final

from profkit.index.distinct import distinct, united
from profkit.index.host.casts import RoundTrips, find_round_trips
from profkit.index.runtime_calls import CUDA, HIP
from profkit.rule import (
    Context,
    Finding,
    Need,
    ProgramChange,
    RuleInfo,
    at_first,
    busy_ns,
    dataclass,
    device_time,
    find_costliest_lines,
    measure_saving,
    needs,
    tensor_method,
    time_with_busy_share,
    times_per_step,
)

CUDA_OR_ROCM: Final = Need(
    name="CUDA or ROCm",
    reason="No CUDA or HIP calls were recorded, and kernels of other devices have other names.",
    remedy="Record on an NVIDIA or AMD GPU, with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: any(len(kind.rows(ctx.events)) for kind in (CUDA, HIP)),
)

INFO = RuleInfo(
    id="KER003",
    name="repeated-casts",
    title="Repeated casts to float32 and back",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK, CUDA_OR_ROCM, needs.STEPS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When casts are a finding.

    Attributes:
        min_round_trips_count: Minimum round trips to float32 and back per step: the casts of input
            and output are one, a float32 section of the network a second.
        min_busy_share: Minimum share of the GPU's busy time that the casts take.
        warning_share: Share of the steps that they take from which it is a warning.
    """

    min_round_trips_count: int = 3
    min_busy_share: float = 0.05
    warning_share: float = 0.01


_MAX_METHODS: Final = 100


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all casts that go back and forth."""
    trips = find_round_trips(ctx.events, ctx.tree, ctx.launches, ctx.steps)
    if trips is None or trips.n < thresholds.min_round_trips_count * len(ctx.steps):
        return

    spent = device_time(ctx, trips.work)
    share = spent.total_ns / busy_ns(ctx)
    if share < thresholds.min_busy_share:
        return

    locations = find_costliest_lines(ctx, trips.owner, ctx.events.dur_ns[trips.work])
    # A cast that is left out is neither launched by the host nor run by the device.
    change = ProgramChange(scaled=((united(trips.work, trips.owner), 0.0),))
    saving = measure_saving(ctx, change)

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high" if locations and locations[0].file else "medium",
        message=(
            f"Tensors are cast to float32 and back to {trips.half}"
            f"{at_first(locations)}, {times_per_step(ctx, trips.n)}, and nothing "
            f"in between needs float32. The casts take "
            f"{time_with_busy_share(ctx, spent.total_ns)}."
        ),
        fix=(
            f"Remove {_name_casts(ctx, trips)} from the layers and run the forward pass and the "
            f'loss under `torch.autocast("cuda", dtype=torch.{trips.half})`, which casts a weight '
            "once per step and leaves activations as they are."
        ),
        locations=locations,
        rows=trips.work,
        n=trips.n,
        evidence={"n_casts": len(trips.work), "busy_share": round(share, 4)},
        spans=spent.pairs(),
    )


def _name_casts(ctx: Context, trips: RoundTrips) -> str:
    """Name the casts as the user wrote them, if a recorded call tells."""
    # Layers repeat their casts, so the first hundred have all names.
    rows = distinct(trips.owner)[:_MAX_METHODS].tolist()
    methods = sorted({tensor_method(ctx, row) or "" for row in rows} - {""})
    return " and ".join(f"`.{method}()`" for method in methods) or "the casts"
