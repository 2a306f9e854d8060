"""SYN003 pageable-copy-to-host: the host waits until a tensor has been copied to it.

What it finds:
    Copies from a device into pageable host memory inside the steps: ``.cpu()``, ``.numpy()`` after
    it, ``.to("cpu")``, ``.tolist()``. What reads single values is left to item-sync.

Why it matters:
    A copy into pageable memory returns only when it is done, and it is done only after all work
    that the device was given before. Meanwhile the host launches nothing, so the device runs dry.
    The cost is at most the time that the host waited and at most the time that the device was
    idle in the steps concerned.

How to fix it:
    Copy less often; or copy into pinned memory with ``non_blocking=True``, go on, and read the
    values a step later, after an event that was recorded behind the copy.

Example:
    ::

        outputs.append(model(batch).cpu())

Use instead:
    ::

        outputs.append(model(batch).to("cpu", non_blocking=True))
        ...
        torch.cuda.synchronize()   # once, before the outputs are read

Reads:
    Copies (``name``, ``n_bytes`` in bytes), the runtime calls that wait for them (``ts_ns`` and
    ``dur_ns`` in nanoseconds), the devices' busy time in nanoseconds, the user's lines.

When to ignore this:
    A result that the program needs at once has to be waited for. What is idle for another reason
    stays idle: the cost is an upper bound.

Source:
    "API synchronization behavior" in the CUDA Runtime API reference (device memory to pageable
    host memory); ``aten/src/ATen/native/cuda/Copy.cu``; "A guide on good usage of non_blocking and
    pin_memory()" among PyTorch's tutorials.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import costly_wait, in_windows
from profkit.engine.wording import at, tensor_method, time_per_step, times_per_step
from profkit.index.device.syncs import SyncKind, bytes_of, is_pageable
from profkit.model.finding import Finding
from profkit.units import format_bytes

INFO = RuleInfo(
    id="SYN003",
    name="pageable-copy-to-host",
    title="The host waits for a copy from the GPU",
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
    """Yield a finding for each line that waits for a tensor to reach the host."""
    waits = ctx.syncs.of_kind(SyncKind.TO_HOST)
    waits = waits.select(in_windows(ctx, waits.rows) & is_pageable(ctx.events, waits.copy))
    for location, owners in ctx.by_line(np.unique(waits.owner)):
        here = waits.select(np.isin(waits.owner, owners))
        judged = costly_wait(ctx, here.rows, thresholds.min_wait_share, thresholds.warning_share)
        if judged is None:
            continue
        copies = np.unique(here.copy)
        n_bytes = bytes_of(ctx.events, copies)
        method = tensor_method(ctx, int(owners[0])) or "cpu"
        yield judged.finding(
            ctx,
            INFO,
            message=(
                f"`.{method}()`{at(location)} copies {format_bytes(n_bytes / len(copies))} to the "
                f"host {times_per_step(ctx, len(owners))}, and the host waits "
                f"{time_per_step(ctx, judged.wait.blocked_ns)}; the GPU was idle for "
                f"{time_per_step(ctx, judged.wait.idle_ns)}."
            ),
            fix=(
                f'Copy less often, or write `.to("cpu", non_blocking=True)` instead of '
                f"`.{method}()` and read the values only after a later synchronization."
            ),
            locations=(location,),
            n=len(owners),
            rows=copies,
            evidence={"bytes": n_bytes},
        )
