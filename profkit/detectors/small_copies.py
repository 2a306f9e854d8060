"""DAT004 small-copies: many small tensors are copied to the GPU one by one in every step.

What it finds:
    More than 50 copies of less than 64 KiB from the host to a GPU per step that the host does not
    wait for: from pinned memory, with ``non_blocking=True``. Copies that block the host are
    reported by pageable-copy-to-device and host-made-tensor.

Why it matters:
    A copy costs the host 5 to 20 microseconds and the GPU one to two, whatever its size; 64 KiB
    take about as long over PCIe as one copy takes to start. The cost is an estimate: what the
    steps take less in a replay of the recording in which each step has only the first of these
    copies.

How to fix it:
    Put the values into one pinned tensor, copy that, and split it on the GPU: the parts are views.
    Let the loader's ``collate_fn`` join them, or a dataset that returns one tensor per sample.

Example:
    ::

        features = [f.to("cuda", non_blocking=True) for f in batch]

Use instead:
    ::

        joined = torch.cat(batch).pin_memory().to("cuda", non_blocking=True)
        features = joined.split([len(f) for f in batch])

Reads:
    Copies (``name``, ``n_bytes`` in bytes, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators
    that launched them, the calls that wait for copies, the steps, source lines.

When to ignore this:
    The tensors have different types or come at different times.

Source:
    "Minimize data transfers: batching many small transfers into one larger transfer" in NVIDIA's
    CUDA C++ Best Practices Guide ("Data Transfer Between Host and Device").
"""

from collections.abc import Iterator

import numpy as np

from profkit.index.device.syncs import COPYING, TO_DEVICE, bytes_of
from profkit.index.distinct import distinct, united
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_bytes,
    launched_in_windows,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
)

INFO = RuleInfo(
    id="DAT004",
    name="small-copies",
    title="Many small tensors copied to the GPU one by one",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK, needs.STEPS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When small copies are a finding.

    Attributes:
        max_copy_bytes: Larger copies are limited by bandwidth.
        min_copies_count: Minimum copies per step. A batch of several inputs, masks and labels needs
            up to a few dozen.
        min_saved_share: Minimum share of the steps that one copy instead saves; below a thousandth
            no step gets measurably shorter.
        warning_share: Share from which it is a warning.
    """

    max_copy_bytes: int = 65535
    min_copies_count: int = 51
    min_saved_share: float = 0.001
    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all small copies that the host does not wait for."""
    copies, op = _find_small_copies(ctx, thresholds.max_copy_bytes)
    if len(copies) / len(ctx.steps) < thresholds.min_copies_count:
        return

    # One copy per step remains, which is then larger: small copies take equally long.
    copying = ctx.tree.outermost(rows_named(ctx.events, COPYING, Category.OP))[op]
    of_copy = np.where(copying == NO_ROW, op, copying)
    _, kept = np.unique(ctx.step_of(op), return_index=True)
    needless = np.setdiff1d(united(copies, of_copy), (copies[kept], of_copy[kept]))
    owner = distinct(of_copy).astype(np.intp)
    change = ProgramChange(scaled=((needless.astype(np.intp), 0.0),))
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    locations = find_costliest_lines(ctx, owner)
    n_bytes = bytes_of(ctx.events, copies)
    on_host = covered_by(ctx.events, owner)
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=(
            f"Small tensors are copied to the GPU{at_first(locations)} "
            f"{times_per_step(ctx, len(copies))}, {format_bytes(n_bytes / len(copies))} each on "
            f"average. The host takes {time_per_step(ctx, on_host.total_ns)} for that."
        ),
        fix=(
            "Join them in one pinned tensor, copy that with `non_blocking=True`, and `split()` it "
            "on the GPU."
        ),
        locations=locations,
        rows=copies,
        evidence={"bytes": n_bytes, "host_ns": on_host.total_ns},
        spans=on_host.pairs(),
    )


def _find_small_copies(ctx: Context, max_bytes: int) -> tuple[Rows, Rows]:
    """Find small copies in the steps that nothing waits for, and their operators."""
    events, launches = ctx.events, ctx.launches
    to_device = rows_named(events, TO_DEVICE, Category.MEMCPY)[launches.work]
    n_bytes = events.n_bytes.at(launches.work)
    is_small = to_device & (n_bytes >= 0) & (n_bytes <= max_bytes)
    # The wait for a blocking copy costs more than its launch, and has rules of its own.
    return launched_in_windows(ctx, is_small & ~np.isin(launches.work, ctx.syncs.copy))
