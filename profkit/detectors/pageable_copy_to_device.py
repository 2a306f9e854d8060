"""DAT002 pageable-copy-to-device: the host waits while a tensor is copied to the GPU.

What it finds:
    Copies from pageable host memory to a GPU inside the steps, such as ``batch.to("cuda")``, and
    copies from pinned memory that the host waits for all the same. Small tensors that are created
    right before the copy are reported by host-made-tensor.

Why it matters:
    The GPU can only copy from pinned memory on its own. A copy from pageable memory goes through
    a staging buffer while the host waits: first until the GPU has reached the copy, then until
    the data is sent. The copy itself is slower too. After a copy from pinned memory PyTorch waits
    for the stream, unless the copy is non-blocking. The cost is what the steps take less in a
    replay of the recording in which the host does not wait.

How to fix it:
    Let the loader put its batches into pinned memory and copy them with ``non_blocking=True``:
    the copy then overlaps with kernels, and the host continues. A CPU tensor that is an index or
    another argument of an operator on the GPU is copied in each call: create it on the GPU.

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
    for them, GPU busy time in nanoseconds, source lines.

When to ignore this:
    The tensor is copied only once: pinning it costs more than it saves. Pinned memory pays off
    where it is reused, as in a loader. Or the program writes to a pinned buffer right after it has
    copied it: then it has to wait for an event before it writes.

Source:
    "API synchronization behavior" in the CUDA Runtime API reference (pageable host memory to
    device memory); ``copy_kernel_cuda`` in ``ATen/native/cuda/Copy.cu``; "Use pinned memory
    buffers" in PyTorch's CUDA semantics; "A guide on good usage of non_blocking and pin_memory()"
    among PyTorch's tutorials.
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.copies import CopySite, find_copy_sites
from profkit.engine.families.python_calls import (
    TRANSFORMERS_PIPELINE,
    TRANSFORMERS_TRAINER,
    are_within,
)
from profkit.index.device.syncs import COPYING, SyncKind, is_pageable
from profkit.index.host.host_made_tensors import are_made, find_creating_ops
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Int32s,
    Rows,
    RuleInfo,
    WaitThresholds,
    needs,
    regex,
    times_per_step,
    waits_in_windows,
)

INFO = RuleInfo(
    id="DAT002",
    name="pageable-copy-to-device",
    title="Host blocked by a copy to the GPU",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds

_CALLED: Final = regex(r"^(?!autograd::|torch::autograd::)\w+::\w")
"""Operators that a program calls: not autograd's wrappers, nor annotations, which torch 1.8 to 1.10
writes as operators."""
_INDEXING: Final = regex(
    r"^aten::(_?index(_|$)|_?unsafe_index|take|gather|scatter|where$|masked_|embedding)"
)
_PIN: Final = (
    "Use `DataLoader(..., pin_memory=True)` and copy with `.to(device, non_blocking=True)`; call "
    "`tensor.pin_memory()` once for a buffer that you reuse."
)
_NON_BLOCKING: Final = (
    "Pass `non_blocking=True` to `.to()`, `.cuda()` or `.copy_()`: from pinned memory the GPU "
    "copies on its own."
)
# Accelerate moves batches itself, in its loaders and in `send_to_device`.
_ACCELERATE: Final = regex(r"(^|[/\\])accelerate[/\\](data_loader|utils[/\\]operations)\.py\(")
# A pipeline has no option to pin its batches.
_LESS_OFTEN: Final = (
    "The pipeline of Transformers makes this copy and has no option for it: pass several inputs at "
    "once with `batch_size`, so that it copies less often."
)
_MAX_VALUE_BYTES: Final = 256
"""A copy of this size takes as long as an empty one: pinned memory would gain nothing."""
_VALUE_ON_GPU: Final = (
    "For a few numbers the wait costs more than the copy: create them on the GPU, as in "
    "`torch.full((), value, device=x.device)`, or pass a number of Python."
)
_INDEX_ON_GPU: Final = (
    "The index is on the CPU, and each call copies it: create it on the GPU, as in "
    "`torch.arange(n, device=x.device)`, or move it there once."
)
_ON_GPU: Final = (
    "The operator copies an argument that is on the CPU in each call: create it on the GPU, or "
    "move it there once."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that waits for a tensor to be copied to a GPU."""
    waits = waits_in_windows(ctx, SyncKind.TO_DEVICE)

    # Tensors that the same line creates are reported by host-made-tensor.
    makers = find_creating_ops(ctx.events, ctx.tree, ctx.source.frame, waits.owner)
    waits = waits.select(~are_made(ctx.events, makers, ctx.events.n_bytes.at(waits.copy)))
    in_pageable = is_pageable(ctx.events, waits.copy)

    # Apart, since a copy from pinned memory only lacks the argument.
    for memory, is_copy in (("pageable", in_pageable), ("pinned", ~in_pageable)):
        for site in find_copy_sites(ctx, waits.select(is_copy), thresholds):
            yield site.finding(
                INFO,
                message=(
                    f"The copy of {site.sizes} from {memory} memory to the GPU"
                    f"{site.place} runs {times_per_step(ctx, len(site.owners))}"
                ),
                fix=_suggest_fix(ctx, site)
                if memory == "pageable"
                else _suggest_non_blocking(ctx, site.owners),
            )


def _suggest_non_blocking(ctx: Context, owners: Rows | Int32s) -> str:
    """Suggest the fix for a copy from pinned memory."""
    if not are_within(ctx, owners, _ACCELERATE):
        return _NON_BLOCKING
    if are_within(ctx, owners, TRANSFORMERS_TRAINER):
        return 'Pass `accelerator_config={"non_blocking": True}` to `TrainingArguments`.'
    return "Pass `dataloader_config=DataLoaderConfiguration(non_blocking=True)` to `Accelerator`."


def _suggest_fix(ctx: Context, site: CopySite) -> str:
    """Suggest the fix for a copy from pageable memory, by the operator that the program called."""
    # An operator copies its CPU arguments itself, where no `.to()` can pin them.
    called = ctx.tree.outermost(rows_named(ctx.events, _CALLED, Category.OP))[site.owners]
    names = [ctx.events.name_of(row) for row in called[called != NO_ROW]]
    if names and all(_INDEXING.search(name) for name in names):
        return _INDEX_ON_GPU
    if names and not any(COPYING.search(name) for name in names):
        return _ON_GPU
    if are_within(ctx, site.owners, TRANSFORMERS_PIPELINE):
        return _LESS_OFTEN
    return _VALUE_ON_GPU if 0 < site.sizes_bytes.max() <= _MAX_VALUE_BYTES else _PIN
