"""DAT003 host-made-tensor: a small tensor is created on the host and copied in every step.

What it finds:
    Small copies from pageable host memory to a GPU of a tensor that the same line has just
    created, such as ``torch.tensor(3.0, device="cuda")`` or ``torch.zeros(8).to(device)``, in
    several steps.

Why it matters:
    Even a tensor of four bytes costs a synchronization: PyTorch copies it and then waits for the
    stream, so the GPU becomes idle. The cost is what the steps take less in a replay of the
    recording in which the host does not wait.

How to fix it:
    Create the tensor on the GPU (``torch.zeros(8, device=x.device)`` launches a kernel and waits
    for nothing), or create it once before the loop. A Python number needs no tensor at all.

Example:
    ::

        loss = loss * torch.tensor(0.5).to(device)

Use instead:
    ::

        loss = loss * 0.5

Reads:
    Copies (``name``, ``n_bytes`` in bytes), operators before them on the same thread (``name``,
    ``ts_ns`` in nanoseconds), the runtime calls that wait (``dur_ns`` in nanoseconds), GPU busy
    time in nanoseconds, source lines.

When to ignore this:
    The values come from outside in every step and have to be copied; gather them in one tensor.
    Without stacks the operator right before the copy is taken for the one that created the tensor,
    which may be a coincidence: then the confidence is low.

Source:
    "Create tensors directly on the target device" in PyTorch's Performance Tuning Guide;
    ``aten/src/ATen/native/cuda/Copy.cu`` (a copy that is not ``non_blocking`` ends with a
    synchronization of the stream).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import WaitThresholds, costly_waits, in_windows
from profkit.engine.wording import at, times_per_step
from profkit.index.device.syncs import SyncKind, bytes_of, is_pageable
from profkit.index.host.host_made_tensors import SMALL_BYTES, creating_ops
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW
from profkit.model.finding import Finding
from profkit.units import format_bytes

INFO = RuleInfo(
    id="DAT003",
    name="host-made-tensor",
    title="Small tensor created on the host and copied to the GPU in every step",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds(WaitThresholds):
    """When a copied tensor is a finding.

    Attributes:
        max_copy_bytes: Larger tensors are data and not constants: 1 MiB is far above masks and
            scalars and below a batch of images.
        min_copies_count: Minimum copies by one line; a single one is set-up.
    """

    max_copy_bytes: int = SMALL_BYTES
    min_copies_count: int = 2


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that creates a tensor on the host and copies it."""
    waits = ctx.syncs.of_kind(SyncKind.TO_DEVICE)
    waits = waits.select(in_windows(ctx, waits.rows) & is_pageable(ctx.events, waits.copy))
    maker = creating_ops(ctx.events, ctx.tree, ctx.source.frame, waits.owner)
    small = ctx.events.n_bytes.at(waits.copy) <= thresholds.max_copy_bytes
    made_here = (maker != NO_ROW) & small
    waits, maker = waits.select(made_here), maker[made_here]
    lines = [
        (location, owners, np.isin(waits.owner, owners))
        for location, owners in ctx.by_line(np.unique(waits.owner))
        if len(owners) >= thresholds.min_copies_count
    ]
    changes = [ProgramChange(calls=waits.rows[own]) for *_, own in lines]
    costs = costly_waits(ctx, changes, thresholds)
    for (location, owners, own), wait in zip(lines, costs, strict=True):
        if wait is None:
            continue
        here = waits.select(own)
        copies = np.unique(here.copy)
        n_bytes = bytes_of(ctx.events, copies)
        yield wait.finding(
            ctx,
            INFO,
            confidence=None if location.file else "low",
            message=(
                f"A tensor of {format_bytes(n_bytes / len(copies))} is created on the host"
                f"{at(location)} and copied to the GPU {times_per_step(ctx, len(owners))}, which "
                f"{wait.text(ctx)}"
            ),
            fix=(
                "Create it on the GPU, as in `torch.zeros(n, device=x.device)`, or once before "
                "the loop; a single number needs no tensor."
            ),
            locations=(location,),
            n=len(owners),
            rows=copies,
            evidence={"made_by": ctx.events.name_of(int(maker[own][0])), "bytes": n_bytes},
        )
