"""SYN003 pageable-copy-to-host: the host waits until a tensor has been copied from the GPU.

What it finds:
    Copies from a GPU to pageable host memory inside the steps: ``.cpu()``, ``.to("cpu")``,
    ``.tolist()``. Reads of single values are reported by item-sync.

Why it matters:
    A copy to pageable memory returns only when it is done, and it starts only after all work that
    was launched before. Meanwhile the host launches nothing, so the GPU becomes idle. The cost is
    what the steps take less in a replay of the recording in which the host does not wait.

How to fix it:
    Copy less often. Or copy to pinned memory with ``non_blocking=True``, record an event behind
    the copy, and read the values one step later.

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
    ``dur_ns`` in nanoseconds), GPU busy time in nanoseconds, source lines.

When to ignore this:
    The program needs the result immediately.

Source:
    "API synchronization behavior" in the CUDA Runtime API reference (device memory to pageable
    host memory); ``aten/src/ATen/native/cuda/Copy.cu``; "A guide on good usage of non_blocking and
    pin_memory()" among PyTorch's tutorials.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.copies import find_copy_sites, pageable_copies
from profkit.index.device.syncs import SyncKind
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    WaitThresholds,
    needs,
    tensor_method,
    times_per_step,
)

INFO = RuleInfo(
    id="SYN003",
    name="pageable-copy-to-host",
    title="Host blocked by a copy from the GPU",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds

_LIBRARY_FIX: Final = (
    "The library makes this copy: look for its option, or call it less often with more inputs."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that waits for a tensor to reach the host."""
    for site in find_copy_sites(ctx, pageable_copies(ctx, SyncKind.TO_HOST), thresholds):
        # Without stacks the usual call stands for all that copy.
        method = tensor_method(ctx, int(site.owners[0])) or "cpu"

        yield site.finding(
            INFO,
            message=(
                f"`.{method}()`{site.place} copies {site.sizes} to the host "
                f"{times_per_step(ctx, len(site.owners))}"
            ),
            fix=_LIBRARY_FIX if site.caller else _suggest_fix(method),
        )


def _suggest_fix(method: str) -> str:
    """Return how a method's copy does not block.

    Args:
        method: The method of a tensor that copies.
    """
    later = "read the values after a later synchronization"
    # The program has made the tensor that it copies to.
    if method == "copy_":
        return (
            "Copy less often, or make the tensor with `pin_memory=True`, use "
            f"`.copy_(..., non_blocking=True)`, and {later}."
        )
    return (
        'Copy less often, or use `.to("cpu", non_blocking=True)` instead of '
        f"`.{method}()` and {later}."
    )
