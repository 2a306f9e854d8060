"""DAT003 host-made-tensor: a small tensor is made on the host and copied in every step.

What it finds:
    Small copies from pageable host memory to a device whose tensor the same line made just before,
    such as ``torch.tensor(3.0, device="cuda")`` or ``torch.zeros(8).to(device)``, in several
    steps.

Why it matters:
    A tensor of four bytes costs as much as a synchronization: PyTorch copies it and then waits for
    the stream, so the device runs dry. The cost is at most the time that the host waited and at
    most the time that the device was idle in the steps concerned.

How to fix it:
    Make the tensor on the device (``torch.zeros(8, device=x.device)`` launches a kernel and waits
    for nothing), or make it once before the loop. A plain Python number needs no tensor at all.

Example:
    ::

        loss = loss * torch.tensor(0.5).to(device)

Use instead:
    ::

        loss = loss * 0.5

Reads:
    Copies (``name``, ``n_bytes`` in bytes), operators before them on the same thread (``name``,
    ``ts_ns`` in nanoseconds), the runtime calls that wait (``dur_ns`` in nanoseconds), the
    devices' busy time in nanoseconds, the user's lines.

When to ignore this:
    Without stacks the maker of a tensor is taken to be the operator right before the copy, which
    may be chance: then the confidence is low. Values that come from outside in every step have to
    be copied; gather them in one tensor.

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
from profkit.engine.windows import costly_wait, in_windows
from profkit.engine.wording import at, time_per_step, times_per_step
from profkit.index.device.syncs import SyncKind, bytes_of, is_pageable
from profkit.index.host.host_made_tensors import SMALL_BYTES, creating_ops
from profkit.model.events import NO_ROW
from profkit.model.finding import Finding
from profkit.units import format_bytes

INFO = RuleInfo(
    id="DAT003",
    name="host-made-tensor",
    title="A tensor is made on the host and copied each step",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a copied tensor is a finding.

    Attributes:
        max_copy_bytes: Larger tensors are data, not constants: 1 MiB is far above masks and
            scalars and below a batch of images.
        min_copies_count: Copies from one line: a single one is set-up.
        min_wait_share: Share of the steps that the host must have waited. Below a thousandth no
            step gets measurably shorter.
        warning_share: Share of the steps that can be given back from which it is a warning.
    """

    max_copy_bytes: int = SMALL_BYTES
    min_copies_count: int = 2
    min_wait_share: float = 0.001
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that makes a tensor on the host and copies it."""
    waits = ctx.syncs.of_kind(SyncKind.TO_DEVICE)
    waits = waits.select(in_windows(ctx, waits.rows) & is_pageable(ctx.events, waits.copy))
    maker = creating_ops(ctx.events, ctx.tree, ctx.source.frame, waits.owner)
    small = ctx.events.n_bytes.at(waits.copy) <= thresholds.max_copy_bytes
    kept = (maker != NO_ROW) & small
    waits, maker = waits.select(kept), maker[kept]
    for location, owners in ctx.by_line(np.unique(waits.owner)):
        if len(owners) < thresholds.min_copies_count:
            continue
        here = waits.select(np.isin(waits.owner, owners))
        judged = costly_wait(
            ctx,
            here.rows,
            thresholds.min_wait_share,
            thresholds.warning_share,
        )
        if judged is None:
            continue
        copies = np.unique(here.copy)
        n_bytes = bytes_of(ctx.events, copies)
        made_by = ctx.events.name_of(int(maker[np.isin(waits.owner, owners)][0]))
        yield judged.finding(
            ctx,
            INFO,
            confidence=None if location.file else "low",
            message=(
                f"A tensor of {format_bytes(n_bytes / len(copies))} is made on the host"
                f"{at(location)} and copied to the GPU {times_per_step(ctx, len(owners))}: the host "
                f"waits {time_per_step(ctx, judged.wait.blocked_ns)}, and the GPU was idle for "
                f"{time_per_step(ctx, judged.wait.idle_ns)}."
            ),
            fix=(
                "Make it on the GPU with `device=...`, as in `torch.zeros(n, device=x.device)`, "
                "or once before the loop; a single number needs no tensor."
            ),
            locations=(location,),
            n=len(owners),
            rows=copies,
            evidence={"made_by": made_by, "bytes": n_bytes},
        )
