"""SYN001 item-sync: reading a tensor's value blocks the host until the GPU has finished.

What it finds:
    Operators that return a tensor's value to Python: ``.item()``, ``float(t)``, ``int(t)``,
    ``bool(t)`` and ``if t:``, ``print(t)``, ``x[i]`` where ``i`` is a tensor with one element,
    ``torch.equal()``. They are counted where the recording shows that the host waited. Operators
    whose output size depends on values are those of boolean-indexing-sync, the checks of a gradient
    scaler and of clipped gradients those of scaler-sync and grad-norm-sync.

Why it matters:
    Normally the host runs ahead of the GPU. To read a value it waits until the GPU has finished
    all work launched before, and the GPU is then idle until the host has launched new work. The
    cost is what the steps take less in a replay of the recording without the reads. On a
    CPU nothing waits: ``.item()`` copies four bytes, and is right in every step.

How to fix it:
    Keep the value on the GPU and read it rarely: collect ``loss.detach()`` and read all values
    after the loop or every 100 steps. Replace ``if t:`` by ``torch.where``.
    Where a library reads, look for its option: ``validate_args=False`` of ``torch.distributions``,
    ``logging_nan_inf_filter=False`` of ``TrainingArguments`` in Transformers.

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
    ``torch.cuda.set_sync_debug_mode`` in PyTorch's documentation; "Avoid unnecessary CPU-GPU
    synchronization" in PyTorch's Performance Tuning Guide.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.reads import (
    ReadKind,
    are_tests_for_numbers,
    find_reads,
    read_findings,
)
from profkit.index.device.syncs import find_reads_before_indexing
from profkit.index.host.source import NO_FRAME
from profkit.rule import Context, Finding, Rows, RuleInfo, WaitThresholds, needs, tensor_method

INFO = RuleInfo(
    id="SYN001",
    name="item-sync",
    title="Host reads a tensor's value",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


Thresholds = WaitThresholds

_READS: Final = {
    "item": "`.item()` or `float()`",
    "_local_scalar_dense": "`.item()` or `float()`",
    "is_nonzero": "A condition on a tensor (`if`, `bool()`)",
    "equal": "`torch.equal()`",
    "allclose": "`torch.allclose()`",
}


def detect(ctx: Context, thresholds: WaitThresholds) -> Iterator[Finding]:
    """Yield a finding for each line that blocks the host to read a value."""
    indexing = _find_index_reads(ctx, find_reads(ctx))
    yield from read_findings(
        ctx, INFO, thresholds, ReadKind.VALUE, lambda rows: _describe(ctx, rows, indexing)
    )


def _operator(ctx: Context, rows: Rows) -> str:
    return ctx.events.name_of(int(rows[0])).removeprefix("aten::")


def _find_index_reads(ctx: Context, rows: Rows) -> Rows:
    """Find the reads of an element with which the same line then indexes."""
    read, index = find_reads_before_indexing(ctx.events, rows).T
    frame, step_of = ctx.source.frame, ctx.step_of
    # A line that indexes later need not use the value that was read.
    is_same_line = (frame[read] == frame[index]) & (frame[read] != NO_FRAME)
    return np.asarray(read[is_same_line & (step_of(read) == step_of(index))])


def _describe(ctx: Context, rows: Rows, indexing: Rows) -> tuple[str, str]:
    """Return the reading call, as the user wrote it if that was recorded, and the fix."""
    # A line indexes if all its reads do: a loop with x[i].item() selects before it reads, and no
    # selection follows the last read of a step.
    if np.isin(rows, indexing).all():
        return "Indexing with a tensor's element", (
            "Index with all elements at once, such as `x[i]` with a tensor `i`, or "
            "`x[i[:, None] + torch.arange(n)]` for slices; or make Python integers of them once, "
            "with `i.tolist()`."
        )
    method = tensor_method(ctx, int(rows[0]))
    read = _READS[_operator(ctx, rows)] if method is None else f"`.{method}()`"
    return read, _suggest_fix(ctx, rows)


def _suggest_fix(ctx: Context, rows: Rows) -> str:
    name = _operator(ctx, rows)
    # A condition needs its value at once, so reading it later is no fix.
    if name == "is_nonzero" and are_tests_for_numbers(ctx, rows):
        return (
            "Test for NaN and infinity only every 100 steps, or replace them without a test by "
            "`torch.nan_to_num`."
        )
    if name in {"is_nonzero", "equal", "allclose"}:
        return (
            "Use `torch.where(condition, a, b)` if the branches only compute values, or test the "
            "condition only every 100 steps."
        )

    method = tensor_method(ctx, int(rows[0])) or "item"
    return (
        f"Collect `.detach()` instead of `.{method}()`, and read the values every 100 steps or "
        "after the loop with `torch.stack(...).tolist()`."
    )
