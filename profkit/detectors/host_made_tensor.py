"""DAT003 host-made-tensor: a tensor is created on the host and copied in every step.

What it finds:
    Copies from pageable host memory to a GPU of a tensor that the same line has just created, such
    as ``torch.tensor(3.0, device="cuda")`` or ``torch.randn(n, n).to(device)``, in several steps:
    tensors of any size that an operator fills, and small ones of given values.

Why it matters:
    Even a tensor of four bytes costs a synchronization: PyTorch copies it and then waits for the
    stream, so the GPU becomes idle. A large one takes long to fill on the host, and as long to
    copy as the bus takes. The cost is what the steps take less in a replay of the recording in
    which the host neither creates the tensor nor waits for its copy.

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
    ``ts_ns`` and ``dur_ns`` in nanoseconds), the runtime calls that wait (``dur_ns`` in
    nanoseconds), GPU busy time in nanoseconds, source lines. Without recorded device work, the
    runtime calls that copy.

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
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.families.copies import pageable_copies
from profkit.index.device.syncs import COPYING, SyncKind, Syncs, bytes_of
from profkit.index.distinct import distinct, marked, united
from profkit.index.host.host_made_tensors import SMALL_BYTES, are_made, find_creating_ops
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import COPY, EXPLICIT_SYNC, LAUNCH, rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    CostlyWait,
    Finding,
    Need,
    ProgramChange,
    RuleInfo,
    WaitThresholds,
    at,
    dataclass,
    find_costly_waits,
    format_bytes,
    in_windows,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
)

COPIES: Final = Need(
    name="copies",
    reason="No copies to a GPU were recorded.",
    remedy="Record on a machine with a GPU, with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: ctx.has_device_work or bool(len(COPY.rows(ctx.events))),
    requires=(needs.TRACE,),
)

INFO = RuleInfo(
    id="DAT003",
    name="host-made-tensor",
    title="Tensor created on the host and copied to the GPU",
    severity="warning",
    needs=(needs.OPERATORS, COPIES),
    since="0.1.0",
)


_FACTORIES: Final = frozenset(
    (
        *("arange", "empty", "eye", "full", "linspace", "ones"),
        *("rand", "randint", "randn", "randperm", "zeros"),
    )
)
"""Functions of torch that take ``device``, and whose operator has the same name."""
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True)
class Thresholds(WaitThresholds):
    """When a copied tensor is a finding.

    Attributes:
        max_copy_bytes: Larger tensors of given values are data and not constants: 1 MiB is far
            above masks and scalars and below a batch of images.
        min_copies_count: Minimum copies by one line; a single one is set-up.
    """

    max_copy_bytes: int = SMALL_BYTES
    min_copies_count: int = 2


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that creates a tensor on the host and copies it."""
    events = ctx.events
    waits = _find_copies(ctx)
    maker = find_creating_ops(events, ctx.tree, ctx.source.frame, waits.owner)

    # An operator that launches kernels computes its result on a device.
    is_made = are_made(events, maker, events.n_bytes.at(waits.copy), thresholds.max_copy_bytes)
    on_device = marked(ctx.tree.outermost_op[LAUNCH.rows(events)], len(events))
    is_made &= ~on_device[maker]
    waits, maker = waits.select(is_made), maker[is_made]

    lines = [
        (location, owners, np.isin(waits.owner, owners))
        for location, owners in ctx.by_line(distinct(waits.owner))
        if len(owners) >= thresholds.min_copies_count
    ]
    makers = [distinct(maker[is_of_line]).astype(np.intp) for *_, is_of_line in lines]
    changes = [
        ProgramChange(calls=waits.rows[is_of_line], scaled=((line_makers, 0.0),))
        for (*_, is_of_line), line_makers in zip(lines, makers, strict=True)
    ]
    costs = find_costly_waits(ctx, changes, thresholds)

    for (location, owners, is_of_line), line_makers, blocking in zip(
        lines, makers, costs, strict=True
    ):
        if blocking is None:
            continue
        # Without device work no replay says what the GPU loses, but the host's own time is known.
        wait = blocking if ctx.has_device_work else _add_host_cost(ctx, blocking, thresholds)
        copies = distinct(waits.copy[is_of_line])
        n_bytes = bytes_of(events, copies)
        size = f" of {format_bytes(n_bytes / len(copies))}" if n_bytes else ""
        made_ns = covered_by(events, line_makers).total_ns
        made_by = events.name_of(int(maker[is_of_line][0]))

        yield wait.finding(
            INFO,
            # Without stacks the operator before the copy may have made another tensor.
            confidence=None if location.file else "low",
            message=(
                f"A tensor{size} is created on the host{at(location)} in "
                f"{time_per_step(ctx, made_ns)} and copied to the GPU "
                f"{times_per_step(ctx, len(owners))}, which {wait.text}"
            ),
            fix=_suggest_fix(made_by, n_bytes // len(copies)),
            locations=(location,),
            rows=copies if ctx.has_device_work else owners,
            n=len(owners),
            evidence={
                "made_by": made_by,
                "made_ns": made_ns,
                "bytes": n_bytes,
            },
        )


def _suggest_fix(made_by: str, n_bytes: int) -> str:
    """Return how to create a tensor of some size without a copy."""
    name = made_by.removeprefix("aten::").rstrip("_")
    # `torch.tensor(values)` allocates, and fills from Python: it copies on any device.
    if name == "empty" and n_bytes > _NUMBER_BYTES:
        return (
            "Create it once before the loop if its values stay the same, or copy it without "
            "waiting: `torch.tensor(values, pin_memory=True).to(device, non_blocking=True)`."
        )
    factory = name if name in _FACTORIES else "zeros"
    number = "; a single number needs no tensor" if 0 < n_bytes <= _NUMBER_BYTES else ""
    return (
        f"Create it on the GPU, as in `torch.{factory}(…, device=x.device)`, or once before the "
        f"loop{number}."
    )


def _find_copies(ctx: Context) -> Syncs:
    """Find copies from pageable memory in the windows; without device work all calls that copy."""
    events = ctx.events
    if ctx.has_device_work:
        return pageable_copies(ctx, SyncKind.TO_DEVICE)

    owner = ctx.tree.outermost(rows_named(events, COPYING, Category.OP))
    # A blocking copy is a call that copies and one that waits, both within one operator.
    copying = distinct(owner[COPY.rows(events)])
    rows = united(COPY.rows(events), EXPLICIT_SYNC.rows(events))
    rows = rows[in_windows(ctx, rows) & (owner[rows] != NO_ROW) & np.isin(owner[rows], copying)]
    kind = np.full(len(rows), SyncKind.TO_DEVICE, dtype=np.uint8)
    return Syncs(rows, kind, owner[rows], np.full(len(rows), NO_ROW, dtype=np.int32))


def _add_host_cost(ctx: Context, wait: CostlyWait, thresholds: Thresholds) -> CostlyWait:
    """Add the cost of creating and copying on the host, where no device work was recorded."""
    saving = measure_saving(ctx, wait.saving.change)
    return replace(wait, saving=saving, severity=saving.severity(thresholds.warning_share))
