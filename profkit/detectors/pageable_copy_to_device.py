"""DAT002 pageable-copy-to-device: the host waits while a batch is copied to the device.

What it finds:
    Copies from pageable host memory to a device inside the steps, such as ``batch.to("cuda")``.
    Small tensors that the program makes right before the copy are left to host-made-tensor.

Why it matters:
    The driver can only send pinned memory by itself. A copy from pageable memory is staged piece
    by piece, with the host waiting: first until the device has reached the copy, then until the
    data is away. It also is slower. The cost is at most the time that the host waited and at most
    the time that the device was idle in the steps concerned.

How to fix it:
    Let the loader put its batches into pinned memory and copy them with ``non_blocking=True``:
    then the copy runs beside the device's work and the host goes on.

Example:
    ::

        loader = DataLoader(dataset, batch_size=32)
        for batch in loader:
            batch = batch.to("cuda")

Use instead:
    ::

        loader = DataLoader(dataset, batch_size=32, pin_memory=True)
        for batch in loader:
            batch = batch.to("cuda", non_blocking=True)

Reads:
    Copies (``name``, ``n_bytes`` in bytes, ``dur_ns`` in nanoseconds), the runtime calls that wait
    for them, the devices' busy time in nanoseconds, the user's lines.

When to ignore this:
    Pinning a tensor for a single copy costs more than it saves: pinned memory pays where it is
    used again, as a loader does. What is idle for another reason stays idle: the cost is an upper
    bound.

Source:
    "API synchronization behavior" in the CUDA Runtime API reference (pageable host memory to
    device memory); "Use pinned memory buffers" in PyTorch's CUDA semantics; "A guide on good usage
    of non_blocking and pin_memory()" among PyTorch's tutorials.
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
    id="DAT002",
    name="pageable-copy-to-device",
    title="The host waits for a copy to the GPU",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a copy is worth a word.

    Attributes:
        min_wait_share: Share of the steps that the host must have waited. Below a thousandth no
            step gets measurably shorter, and recordings differ more than that between runs.
        warning_share: Share of the steps that can be given back from which it is a warning: one
            percent is where a change pays for the edit.
    """

    min_wait_share: float = 0.001
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that waits for a tensor to leave the host."""
    waits = ctx.syncs.of_kind(SyncKind.TO_DEVICE)
    waits = waits.select(in_windows(ctx, waits.rows) & is_pageable(ctx.events, waits.copy))
    made = creating_ops(ctx.events, ctx.tree, ctx.source.frame, waits.owner) != NO_ROW
    small = ctx.events.n_bytes.at(waits.copy) <= SMALL_BYTES
    waits = waits.select(~(made & small))
    for location, owners in ctx.by_line(np.unique(waits.owner)):
        here = waits.select(np.isin(waits.owner, owners))
        judged = costly_wait(ctx, here.rows, thresholds.min_wait_share, thresholds.warning_share)
        if judged is None:
            continue
        copies = np.unique(here.copy)
        n_bytes = bytes_of(ctx.events, copies)
        yield judged.finding(
            ctx,
            INFO,
            message=(
                f"The copy to the GPU{at(location)} runs {times_per_step(ctx, len(owners))}, "
                f"{format_bytes(n_bytes / len(copies))} each, from memory that is not pinned: "
                f"the host waits {time_per_step(ctx, judged.wait.blocked_ns)}, and the GPU was "
                f"idle for {time_per_step(ctx, judged.wait.idle_ns)}."
            ),
            fix=(
                "Write `DataLoader(..., pin_memory=True)` and copy with `.to(device, "
                "non_blocking=True)`; for a buffer of your own use `tensor.pin_memory()` once."
            ),
            locations=(location,),
            n=len(owners),
            rows=copies,
            evidence={"bytes": n_bytes},
        )
