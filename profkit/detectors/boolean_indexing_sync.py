"""SYN004 boolean-indexing-sync: the size of a result depends on values, and the host waits for it.

What it finds:
    Operators whose output size depends on the values of a tensor on the GPU: indexing with a mask,
    ``nonzero()``, ``masked_select()``, ``unique()``, ``repeat_interleave()`` without
    ``output_size``, ``one_hot()`` without ``num_classes``, ``bincount()``. They are counted where
    the recording shows that the host waited.

Why it matters:
    To allocate the result the host must know its size, so it waits until the GPU has finished all
    work launched before, and the GPU is then idle until the host has launched new work. The cost is
    what the steps take less in a replay of the recording without these operators. On a CPU nothing
    waits.

How to fix it:
    Keep the shape: ``torch.where(mask, x, 0)``, a product with the mask, or ``reduction="none"``
    and a weighted mean. State the size where it is known:
    ``repeat_interleave(..., output_size=n)``, ``one_hot(..., num_classes=n)``,
    ``torch.nonzero_static(mask, size=n)``.

Example:
    ::

        loss = F.cross_entropy(scores[known], y[known])

Use instead:
    ::

        each = F.cross_entropy(scores, y, reduction="none")
        loss = torch.where(known, each, 0).sum() / known.sum()

Reads:
    Operators (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), synchronizing runtime calls and
    copies within them, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The selection is so small that the work behind it saves more than the wait costs, as for a
    mixture of experts.

Source:
    ``torch.nonzero``, ``torch.nonzero_static``, ``torch.repeat_interleave`` and
    ``torch.nn.functional.one_hot`` in PyTorch's documentation; "Avoid unnecessary CPU-GPU
    synchronization" in PyTorch's Performance Tuning Guide; ``Nonzero.cu`` of ATen.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.reads import ReadKind, read_findings
from profkit.rule import Context, Finding, Rows, RuleInfo, WaitThresholds, needs, tensor_method

INFO = RuleInfo(
    id="SYN004",
    name="boolean-indexing-sync",
    title="Output size depends on values",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)

Thresholds = WaitThresholds

# With a single argument `where` is a `nonzero`, and selects by a mask as well.
_MASKS: Final = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "where"})
_KEEP_SHAPE: Final = (
    "Keep the shape: use `torch.where(mask, x, 0)` or multiply by the mask instead of selecting "
    "elements."
)
_POSITIONS: Final = (
    "Keep the full shape and the mask, as in `torch.where(mask, x, 0)`, or use "
    "`torch.nonzero_static(mask, size=n)`, which fills up to a fixed size."
)
_ONCE: Final = (
    "Keep the full shape and a mask, or run it once before the loop: the size of its result "
    "depends on values, so the host has to wait for it."
)
_FIXES: Final = {
    "masked_select": _KEEP_SHAPE,
    "nonzero": _POSITIONS,
    "argwhere": _POSITIONS,
    "repeat_interleave": (
        "Pass `output_size=` to `repeat_interleave()`, the sum of its repeats, where it is known."
    ),
    "one_hot": "Pass `num_classes=` to `one_hot()`, which otherwise reads the largest class.",
}


def detect(ctx: Context, thresholds: WaitThresholds) -> Iterator[Finding]:
    """Yield a finding for each line that blocks the host for the size of a result."""
    yield from read_findings(
        ctx, INFO, thresholds, ReadKind.SIZE, lambda rows: _describe(ctx, rows)
    )


def _describe(ctx: Context, rows: Rows) -> tuple[str, str]:
    """Return the selecting call, as the user wrote it if that was recorded, and the fix."""
    name = ctx.events.name_of(int(rows[0])).removeprefix("aten::")
    fix = _KEEP_SHAPE if name in _MASKS else _FIXES.get(name, _ONCE)
    method = tensor_method(ctx, int(rows[0]))
    if method is not None:
        return f"`.{method}()`", fix
    # Some operators run under another name than their function: `unique()` as `_unique2`.
    return "Indexing with a mask" if name in _MASKS else f"`{name.strip('_2')}()`", fix
