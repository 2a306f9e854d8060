"""CFG005 unused-gpu: the program computes on the CPU, and the machine has a GPU that it never uses.

What it finds:
    Recordings without any work of a device, on a machine with an NVIDIA GPU that this process may
    use and has not initialized, where matrix products, convolutions and attention take most of the
    time of long steps.

Why it matters:
    A GPU multiplies matrices some ten to a hundred times as fast as a processor. Its launches take
    some microseconds each, so that steps of a millisecond may be faster without one: what the
    program would gain is not known, and the finding has no cost.

How to fix it:
    Move the model to the GPU once, and each batch in the loop. If torch cannot use the GPU, this
    build of it has no CUDA: install one that has, by the selector on pytorch.org. ``profkit
    doctor`` says what is wrong else.

Example:
    ::

        model = Net()
        for batch, target in loader:
            loss = loss_of(model(batch), target)

Use instead:
    ::

        model = Net().to("cuda")
        for batch, target in loader:
            loss = loss_of(model(batch.to("cuda")), target.to("cuda"))

Reads:
    What profkit recorded beside the events: the GPUs that the program could use and did not
    (``unused_gpus``), and the version of CUDA that torch was built for. The time of operators, in
    nanoseconds, and their kind.

When to ignore this:
    The program is to run on machines without a GPU, or others use this one.

Source:
    "CUDA semantics" in PyTorch's notes; "proc interface" in the README of NVIDIA's driver for Linux
    (``/proc/driver/nvidia/gpus``); "CUDA Environment Variables" in the CUDA C++ Programming Guide.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.compute.categories import PRODUCTS
from profkit.rule import (
    Category,
    Context,
    Finding,
    Need,
    RuleInfo,
    dataclass,
    in_windows,
    needs,
    reaches_share,
    time_with_share,
    uses_device,
    visible,
    windows_ns,
)

UNUSED_GPUS: Final = Need(
    name="the machine's GPUs",
    reason="The machine's GPUs were not recorded.",
    remedy="Record with `profkit run` or `profkit.trace`.",
    is_met=lambda ctx: ctx.trace.capture is not None,
    requires=(needs.OPERATORS,),
)
INFO = RuleInfo(
    id="CFG005",
    name="unused-gpu",
    title="The machine has a GPU that the program does not use",
    severity="warning",
    needs=(UNUSED_GPUS,),
    since="0.2.0",
    no_example="It takes a machine with a GPU, and a program that has none.",
)


@dataclass(frozen=True)
class Thresholds:
    """When an unused GPU is a finding.

    Attributes:
        min_product_share: Minimum share of the time that matrix products, convolutions and
            attention take: what a GPU is made for.
        min_step_ns: Minimum step time. Launches and copies take up to a millisecond of a step of a
            hundred small operators.
    """

    min_product_share: float = 0.3
    min_step_ns: int = 10_000_000


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if the program could have used a GPU for most of its work."""
    # An operator of a GPU tells of one where the device's work was not recorded.
    capture = ctx.trace.capture
    if capture is None or not capture.unused_gpus or uses_device(ctx):
        return

    is_product = np.isin(ctx.work_categories, PRODUCTS) & (ctx.events.category == Category.OP)
    rows = np.flatnonzero(is_product)
    product_ns = int(ctx.op_self_ns[rows[in_windows(ctx, rows)]].sum())
    step_ns = windows_ns(ctx) / max(1, len(ctx.steps))
    is_short = step_ns < thresholds.min_step_ns
    if is_short or not reaches_share(ctx, product_ns, thresholds.min_product_share):
        return

    # A build of torch without CUDA is the usual reason, and no setting changes that.
    name = visible(capture.unused_gpus[0])
    has_cuda = capture.cuda is not None
    yield INFO.finding(
        confidence="high" if has_cuda else "medium",
        message=(
            f"All work is on the CPU, and the {name} of this machine is not used. Matrix products "
            f"and convolutions take {time_with_share(ctx, product_ns)}."
        ),
        fix=(
            'Move the model to the GPU once, with `model.to("cuda")`, and each batch in the loop, '
            'with `batch.to("cuda")`.'
            if has_cuda
            else f"Install a build of torch with CUDA, by the selector on pytorch.org: torch "
            f"{visible(capture.torch or '')} has none. Then move the model and each batch to "
            '`"cuda"`.'
        ),
        n=len(capture.unused_gpus),
        evidence={"gpus": ", ".join(capture.unused_gpus), "product_ns": product_ns},
    )
