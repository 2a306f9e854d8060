"""KER007 unfused-pointwise: elementwise kernels follow each other instead of being one kernel.

What it finds:
    Programs that compile nothing and whose GPU spends a large share of its kernel time on
    elementwise kernels (additions, products, casts, activations), several of which are launched one
    right after the other. Copies into another layout and an optimizer's kernels do not count.

Why it matters:
    An elementwise kernel only moves memory: it reads its inputs, computes a little, and writes its
    output, which the next one reads again. A compiler makes one kernel of a chain, which keeps the
    values between in registers. The cost is what the steps take less in a replay of the recording
    in which each chain takes as long as its longest kernel, and the operators of the others are not
    run. Reductions and copies between chains can be fused, too; that is not in the figure.

How to fix it:
    ``torch.compile(model)``. By hand: ``F.rms_norm``, ``F.layer_norm``, ``F.gelu`` and other
    functions of PyTorch that are one kernel, and in-place operators where autograd permits them.

Example:
    ::

        def forward(self, x):
            x = x.float()
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

Use instead:
    ::

        def forward(self, x):
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)

        model = torch.compile(model)

Reads:
    Kernels (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), their launches and operators,
    source lines.

When to ignore this:
    Shapes or control flow change in each step, so that compiling takes longer than it saves.

Source:
    "Fuse operations" in PyTorch's Performance Tuning Guide; "torch.compiler" in PyTorch's
    documentation; ``aten/src/ATen/native/cuda/CUDALoops.cuh`` (names of elementwise kernels).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.device.elementwise import elementwise_kernels, find_fusible_chains
from profkit.index.runtime_calls import names_matching
from profkit.rule import (
    Context,
    Finding,
    Int32s,
    Mask,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    device_time,
    find_costliest_lines,
    format_share,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_per_step,
    torch_names,
)

INFO = RuleInfo(
    id="KER007",
    name="unfused-pointwise",
    title="Elementwise kernels that could be one",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When elementwise kernels are a finding.

    Attributes:
        min_kernel_share: Minimum share of the kernel time that is elementwise. Networks of
            convolutions and large matmuls have 5 to 17 %.
        min_saved_share: Minimum share of the steps without all but the longest of each chain.
        warning_share: Share from which it is a warning.
    """

    min_kernel_share: float = 0.25
    min_saved_share: float = 0.02
    warning_share: float = 0.05


_COMPILED: Final = regex(
    rf"^triton_|{torch_names.COMPILED_REGION.pattern}|^CompiledFunction|TorchScript"
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all chains of elementwise kernels of a program that is not compiled."""
    events = ctx.events
    # What a compiler has left unfused it will not fuse at the second attempt.
    if names_matching(events, _COMPILED).any():
        return
    elementwise = device_time(ctx, np.flatnonzero(elementwise_kernels(events)))
    kernels = device_time(ctx, events.kernels)
    share = elementwise.total_ns / max(1, kernels.total_ns)
    if share < thresholds.min_kernel_share:
        return

    # Where a device waits for the host, its kernels are not what the steps wait for.
    work, op, needless = _find_chains(ctx)
    of_device = measure_saving(ctx, ProgramChange(scaled=((work[needless], 0.0),)), "estimate")
    if not of_device.reaches(thresholds.min_saved_share):
        return

    # A compiled chain is one kernel, which takes about as long as the longest of them, and one
    # launch: the operators of the others are not run.
    needless_ops = np.setdiff1d(op[needless], op[~needless])
    removed = np.concatenate((work[needless], needless_ops))
    saving = measure_saving(ctx, ProgramChange(scaled=((removed, 0.0),)), "estimate")

    needless_ns = events.dur_ns[work[needless]]
    locations = find_costliest_lines(ctx, op[needless], needless_ns)
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"Elementwise kernels take {format_share(share)} of the kernel time, and nothing is "
            f"compiled. Chains of them{at_first(locations)} take "
            f"{time_per_step(ctx, int(events.dur_ns[work].sum()))}, "
            f"{time_per_step(ctx, int(needless_ns.sum()))} of it beyond the longest kernel of each."
        ),
        fix=_suggest_fix(ctx, op[needless]),
        locations=locations,
        rows=work,
        evidence={
            "kernel_share": round(share, 4),
            "chains_ns": int(events.dur_ns[work].sum()),
            "needless_ns": int(needless_ns.sum()),
        },
        spans=device_time(ctx, work).pairs(),
    )


def _find_chains(ctx: Context) -> tuple[Rows, Rows, Mask]:
    """Find the kernels of chains in the steps, their operators, and all but each longest one."""
    work, chain = find_fusible_chains(ctx.events, ctx.tree, ctx.launches)
    op = ctx.launches.op[np.searchsorted(ctx.launches.work, work)].astype(np.intp)
    inside = in_windows(ctx, op)
    work, chain, op = work[inside], chain[inside], op[inside]

    # By chain, then by duration: the last kernel of each chain is its longest.
    order = np.lexsort((ctx.events.dur_ns[work], chain))
    needless = np.ones(len(work), dtype=np.bool_)
    is_longest = np.append(np.diff(chain[order]) != 0, True)[: len(order)]
    needless[order[is_longest]] = False
    return work, op, needless


def _suggest_fix(ctx: Context, ops: Rows | Int32s) -> str:
    """Suggest a compiler, and other functions where it is the program that calls the operators."""
    if ctx.source.in_library[ops].all():
        return "Compile the model with `torch.compile(model)`."
    return (
        "Compile the model with `torch.compile(model)`, or use functions that are one kernel, such "
        "as `F.rms_norm` and `F.gelu`."
    )
