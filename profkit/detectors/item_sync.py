"""SYN001 item-sync: reading a tensor's value blocks the host until the GPU has finished.

What it finds:
    Operators that return a tensor's value to Python, or whose output size depends on values:
    ``.item()``, ``float(t)``, ``int(t)``, ``bool(t)`` and ``if t:``, ``print(t)``, ``x[i]`` where
    ``i`` is a tensor with one element, ``nonzero()``, indexing with a mask, ``masked_select()``,
    ``unique()``, ``torch.equal()``, ``bincount()``. They are
    counted where the recording shows that the host waited.

Why it matters:
    Normally the host runs ahead of the GPU. To read a value it waits until the GPU has finished
    all work launched before, and the GPU is then idle until the host has launched new work. The
    cost is what the steps take less in a replay of the recording without the reads. On a CPU
    nothing waits, so the rule only adds a note on reads in the program's own code.

How to fix it:
    Keep the value on the GPU and read it rarely: collect ``loss.detach()`` and read all values
    after the loop or every 100 steps. Replace ``if t:`` by ``torch.where``. Multiply by a mask
    instead of selecting elements with it.

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
    copies within them, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The program needs the value in every step.

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
from profkit.engine.windows import WaitThresholds, costly_waits, event_ids, in_windows, uses_device
from profkit.engine.wording import at, tensor_method, times_per_step
from profkit.index.device.syncs import SyncKind, before_indexing, user_reads
from profkit.index.host.source import NO_FRAME
from profkit.model.change import ProgramChange
from profkit.model.events import Rows
from profkit.model.finding import Finding

INFO = RuleInfo(
    id="SYN001",
    name="item-sync",
    title="Host blocked by reading a value from the GPU",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds(WaitThresholds):
    """When reads are a finding.

    Attributes:
        min_reads_count: Minimum reads by one line on a CPU, where nothing waits. A single read is
            reported only where a single step was recorded.
    """

    min_reads_count: int = 2


_READS: Final = {
    "item": "`.item()` or `float()`",
    "_local_scalar_dense": "`.item()` or `float()`",
    "is_nonzero": "A condition on a tensor (`if`, `bool()`)",
    "equal": "`torch.equal()`",
    "allclose": "`torch.allclose()`",
}
_MASKS: Final = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "where"})


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that blocks the host to read a value."""
    if not uses_device(ctx):
        yield from _on_cpu(ctx, thresholds)
        return
    waits = ctx.syncs.of_kind(SyncKind.READ)
    waits = waits.select(in_windows(ctx, waits.rows))
    owners = np.unique(waits.owner).astype(np.intp)
    indexing = _for_index(ctx, owners)
    lines = list(ctx.by_line(owners))
    changes = [
        ProgramChange(waits.rows[np.isin(waits.owner, rows)], ((rows.astype(np.intp), 0.0),))
        for _, rows in lines
    ]
    costs = costly_waits(ctx, changes, thresholds)
    for (location, rows), wait in zip(lines, costs, strict=True):
        if wait is not None:
            read, fix = _texts(ctx, rows, indexing)
            yield wait.finding(
                ctx,
                INFO,
                message=(
                    f"{read}{at(location)} runs {times_per_step(ctx, len(rows))} and "
                    f"{wait.text(ctx)}"
                ),
                fix=fix,
                locations=(location,),
                n=len(rows),
                rows=rows,
            )


def _on_cpu(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Notes on reads that would block the host on a GPU."""
    rows = user_reads(ctx.events, ctx.tree)
    rows = rows[~ctx.source.in_library[rows]]
    indexing = _for_index(ctx, rows)
    for location, here in ctx.by_line(rows[in_windows(ctx, rows)]):
        if len(here) < (1 if len(ctx.steps) == 1 else thresholds.min_reads_count):
            continue
        read, fix = _texts(ctx, here, indexing)
        yield INFO.finding(
            severity="note",
            confidence="medium",
            message=(
                f"{read}{at(location)} runs {times_per_step(ctx, len(here))}. It costs "
                "nothing on the CPU; of a tensor on a GPU it blocks the host until the GPU has "
                "finished."
            ),
            fix=fix,
            locations=(location,),
            n=len(here),
            evidence={"events": event_ids(ctx, here)},
        )


def _operator(ctx: Context, rows: Rows) -> str:
    return ctx.events.name_of(int(rows[0])).removeprefix("aten::")


def _for_index(ctx: Context, rows: Rows) -> Rows:
    """Of some reads, those of an element with which the same line then indexes."""
    read, then = before_indexing(ctx.events, rows).T
    frame, step = ctx.source.frame, ctx.step_of
    on_line = (frame[read] == frame[then]) & (frame[read] != NO_FRAME) & (step(read) == step(then))
    return np.asarray(read[on_line])


def _texts(ctx: Context, rows: Rows, indexing: Rows) -> tuple[str, str]:
    """What reads, as far as it is known, and the fix.

    A line indexes if all its reads do: a loop with ``x[i].item()`` selects before it reads, and no
    selection follows the last read of a step.
    """
    if ctx.source.in_library[rows].all():
        return f"{_read(ctx, rows)} in a library called", (
            "Look for an option of the library without the read, such as `validate_args=False` of "
            "`torch.distributions`, or call it less often."
        )
    if np.isin(rows, indexing).all():
        return "Indexing with a tensor's element", (
            "Index with all elements at once, such as `x[i]` with a tensor `i`, or "
            "`x[i[:, None] + torch.arange(n)]` for slices; or make Python integers of them once, "
            "with `i.tolist()`."
        )
    return _read(ctx, rows), _fix(ctx, rows)


def _read(ctx: Context, rows: Rows) -> str:
    """The read as the user wrote it, as far as it is known."""
    method = tensor_method(ctx, int(rows[0]))
    if method is not None:
        return f"`.{method}()`"
    name = _operator(ctx, rows)
    return "Indexing with a mask" if name in _MASKS else _READS.get(name, f"`{name.strip('_2')}()`")


def _fix(ctx: Context, rows: Rows) -> str:
    name = _operator(ctx, rows)
    if name in _MASKS or name == "masked_select":
        return (
            "Keep the shape: use `torch.where(mask, x, 0)` or multiply by the mask instead of "
            "selecting elements."
        )
    if name in {"is_nonzero", "equal", "allclose"}:
        return (
            "Use `torch.where(condition, a, b)` instead of `if`, or test the condition only every "
            "100 steps."
        )
    if name not in {"item", "_local_scalar_dense"}:
        return (
            "Keep the full shape and a mask, or run it once before the loop: the size of its "
            "result depends on values, so the host has to wait for it."
        )
    method = tensor_method(ctx, int(rows[0])) or "item"
    return (
        f"Collect `.detach()` instead of `.{method}()`, and read the values every 100 steps or "
        "after the loop with `torch.stack(...).tolist()`."
    )
