"""SYN001 item-sync: the host waits for the device to hand over a number.

What it finds:
    Operators that give a value of a tensor to Python, or whose result has a size that depends on
    values: ``.item()``, ``float(t)``, ``int(t)``, ``bool(t)`` and ``if t:``, ``print(t)``,
    ``nonzero()``, indexing with a mask, ``masked_select()``, ``unique()``, ``torch.equal()``,
    ``bincount()``. It counts them where the recording shows that the host waited.

Why it matters:
    The host normally runs ahead of the device. To read a number it must wait until all work before
    it is done; then the device stands idle until the host has sent something new. That loses in
    each step at most the time that the host waited and at most the time that the device was idle:
    the smaller of the two is the cost. On a CPU nothing waits, so there the rule only notes it.

How to fix it:
    Keep the number on the device and read it rarely: collect ``loss.detach()`` and read all of
    them after the loop or every hundred steps. Replace ``if t:`` by ``torch.where``, and a mask
    that picks elements by one that multiplies them.

Example:
    ::

        for batch in loader:
            losses.append(train_step(batch).item())

Use instead:
    ::

        for batch in loader:
            losses.append(train_step(batch).detach())
        losses = torch.stack(losses).tolist()

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), synchronizing runtime calls and
    copies within them, the devices' busy time in nanoseconds, the user's lines.

When to ignore this:
    A value that the program must have in every step has to be read. And a device that is idle for
    another reason stays idle without the read: the cost is an upper bound.

Source:
    ``aten/src/ATen/native/cuda/CUDAScalar.cu`` (the copy that ``item`` waits for);
    ``torch.nonzero`` and ``torch.cuda.set_sync_debug_mode`` in PyTorch's documentation; "Avoid
    unnecessary CPU-GPU synchronization" in PyTorch's Performance Tuning Guide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.windows import costly_wait, event_ids, in_windows, uses_device
from profkit.engine.wording import at, tensor_method, time_per_step, times_per_step
from profkit.index.device.syncs import SyncKind, reads_of_the_user
from profkit.model.events import Rows
from profkit.model.finding import Finding

INFO = RuleInfo(
    id="SYN001",
    name="item-sync",
    title="The host waits to read a value",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a read is worth a word.

    Attributes:
        min_wait_share: Share of the steps that the host must have waited. Below a thousandth no
            step gets measurably shorter.
        warning_share: Share of the steps that can be given back from which it is a warning: one
            percent is where a change pays for the edit.
        min_reads_count: Reads from one line on a CPU, where nothing waits: one read alone is no
            habit, unless it is in the only step, which stands for all.
    """

    min_wait_share: float = 0.001
    warning_share: float = 0.01
    min_reads_count: int = 2


_WORDS: Final = {
    "item": "`.item()` or `float()`",
    "_local_scalar_dense": "`.item()` or `float()`",
    "is_nonzero": "A condition on a tensor (`if`, `bool()`)",
    "equal": "`torch.equal()`",
    "allclose": "`torch.allclose()`",
}
_MASKS: Final = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "where"})
_SHAPES: Final = (
    "The size of the result depends on values, so the host has to wait for it: work with the full "
    "shape and a mask, or do it once before the loop."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that makes the host wait for a value."""
    waits = ctx.syncs.of_kind(SyncKind.READ)
    if not uses_device(ctx):
        yield from _on_the_host(ctx, thresholds)
        return
    kept = in_windows(ctx, waits.rows)
    calls, owners = waits.rows[kept], waits.owner[kept]
    for location, rows in ctx.by_line(np.unique(owners)):
        judged = costly_wait(
            ctx,
            calls[np.isin(owners, rows)],
            thresholds.min_wait_share,
            thresholds.warning_share,
        )
        if judged is None:
            continue
        what = _what(ctx, rows)
        yield judged.finding(
            ctx,
            INFO,
            message=(
                f"{what}{at(location)} runs {times_per_step(ctx, len(rows))} and makes the host wait "
                f"{time_per_step(ctx, judged.wait.blocked_ns)}; the GPU was idle for "
                f"{time_per_step(ctx, judged.wait.idle_ns)}."
            ),
            fix=_fix(ctx, rows),
            locations=(location,),
            n=len(rows),
            rows=rows,
        )


def _on_the_host(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Notes for a run without a device: what would wait on one."""
    rows = reads_of_the_user(ctx.events, ctx.tree)
    for location, here in ctx.by_line(rows[in_windows(ctx, rows)]):
        if len(here) < (1 if len(ctx.steps) == 1 else thresholds.min_reads_count):
            continue
        yield INFO.finding(
            severity="note",
            confidence="medium",
            message=(
                f"{_what(ctx, here)}{at(location)} runs {times_per_step(ctx, len(here))}. That costs "
                "nothing on the CPU; on a GPU the program would wait each time until the GPU is "
                "done."
            ),
            fix=_fix(ctx, here),
            locations=(location,),
            n=len(here),
            evidence={"events": event_ids(ctx, here)},
        )


def _kind(ctx: Context, rows: Rows) -> str:
    return ctx.events.name_of(int(rows[0])).removeprefix("aten::")


def _what(ctx: Context, rows: Rows) -> str:
    """What the user wrote, as far as it is known."""
    method = tensor_method(ctx, int(rows[0]))
    if method is not None:
        return f"`.{method}()`"
    kind = _kind(ctx, rows)
    return "Indexing with a mask" if kind in _MASKS else _WORDS.get(kind, f"`{kind.strip('_2')}()`")


def _fix(ctx: Context, rows: Rows) -> str:
    kind = _kind(ctx, rows)
    if kind in _MASKS or kind == "masked_select":
        return (
            "Keep the shape: write `torch.where(mask, x, 0)` or multiply by the mask, instead of "
            "taking out the elements that it marks."
        )
    if kind in {"is_nonzero", "equal", "allclose"}:
        return (
            "Let the GPU decide: `torch.where(condition, a, b)` instead of `if`; or test it only "
            "every 100 steps."
        )
    if kind not in {"item", "_local_scalar_dense"}:
        return _SHAPES
    method = tensor_method(ctx, int(rows[0])) or "item"
    return (
        f"Keep the value on the GPU: collect `.detach()` instead of `.{method}()`, and read it "
        "every 100 steps, or all at once after the loop with `torch.stack(...).tolist()`."
    )
