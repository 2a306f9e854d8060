"""KER010 wave-tail: products have a few more blocks than the GPU's multiprocessors share evenly.

What it finds:
    Kernels of matrix products and convolutions whose blocks are slightly more than a multiple of
    the GPU's multiprocessors. Kernels with at most one block for each do not count: persistent
    kernels and those that split a product evenly (stream-K) have as many.

Why it matters:
    Every block takes about as long. Where there are 1.1 blocks for each multiprocessor, one in ten
    computes two of them while the others wait: the kernel takes nearly twice as long as it would
    with a tenth less to compute. The cost is an upper bound: what the steps take less in a replay
    of the recording in which these kernels take as long as if all multiprocessors were busy until
    the end.

How to fix it:
    Change the batch size, the sequence length or a layer's width by some percent, so that the
    tiles of the result are a multiple of the multiprocessors or slightly fewer. On an A100 (108)
    in tiles of 256 x 128, a result of 4,096 x 2,048 has 256 blocks, which take as long as 324.
    ``torch.compile(mode="max-autotune")`` also tries other tiles, and products split along k.

Example:
    ::

        loader = DataLoader(data, batch_size=36)  # 144 blocks on 108 multiprocessors: two rounds

Use instead:
    ::

        loader = DataLoader(data, batch_size=54)  # 216 blocks: two full rounds

Reads:
    Kernels (``name``, ``dur_ns`` in nanoseconds, blocks per multiprocessor), the operators that
    launched them, the number of multiprocessors of the GPUs, source lines.

When to ignore this:
    The sizes are those of the data. Blocks of one kernel that take different times (causal
    attention, sparse matrices) even out, and kernels of other streams use idle multiprocessors.

Source:
    "Wave Quantization" and "Tile Quantization" in NVIDIA's "Matrix Multiplication Background
    User's Guide"; ``blocks per SM`` in ``libkineto/src/CuptiActivity.cpp``.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.distinct import distinct
from profkit.rule import (
    Category,
    Context,
    Finding,
    Need,
    ProgramChange,
    RuleInfo,
    at_first,
    dataclass,
    device_time,
    find_costliest_lines,
    find_rows,
    format_share,
    measure_saving,
    needs,
    regex,
    short_kernel,
    time_per_step,
)

BLOCKS: Final = Need(
    name="blocks of kernels",
    reason="The number of blocks of kernels was not recorded.",
    remedy="Record on an NVIDIA GPU: ROCm's profiler does not write it.",
    is_met=lambda ctx: len(ctx.events.blocks_per_sm.rows) > 0,
    requires=(needs.DEVICE_WORK,),
)

INFO = RuleInfo(
    id="KER010",
    name="wave-tail",
    title="Multiprocessors wait for the last blocks of products",
    severity="note",
    needs=(BLOCKS,),
    since="0.1.0",
    no_example="cuBLAS and cuDNN choose tiles by GPU and version: no size has a tail on all.",
)


@dataclass(frozen=True)
class Thresholds:
    """When the last blocks are a finding.

    Attributes:
        min_kernel_ns: Shorter kernels do not count: starting and ending them takes as long.
        min_idle_share: Minimum share of a kernel's time that multiprocessors wait: with at most
            0.6 of the last round of blocks in use, of one or two rounds.
        min_lost_share: Minimum share of the kernel time that is lost to such waits.
    """

    min_kernel_ns: int = 20_000
    min_idle_share: float = 0.2
    min_lost_share: float = 0.05


# Blocks of attention take different times, so that they have no common last round.
_PRODUCT: Final = regex(
    r"^(?!.*(fmha|flash|attention)).*(gemm|conv(?!ert)|[fdw](prop|grad)|cutlass|xmma|nvjet)",
    re.IGNORECASE,
)
_ROUNDING: Final = 1e-4
"""Kineto writes blocks per multiprocessor as 32-bit floats."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for all kernels with such a last round."""
    events = ctx.events
    rows = find_rows(ctx, _PRODUCT, Category.KERNEL)
    rows = rows[events.dur_ns[rows] >= thresholds.min_kernel_ns]
    blocks = events.blocks_per_sm.figures_at(rows)
    rows, blocks = rows[blocks > 1], blocks[blocks > 1]

    # Rounds of blocks take equally long, so a kernel takes as long as if its last round were full.
    used_share = blocks / np.ceil(blocks - _ROUNDING)
    is_wasteful = 1 - used_share >= thresholds.min_idle_share
    rows, blocks, used_share = rows[is_wasteful], blocks[is_wasteful], used_share[is_wasteful]
    lost_ns = np.rint(events.dur_ns[rows] * (1 - used_share)).astype(np.int64)
    kernels_ns = device_time(ctx, events.kernels).total_ns
    lost_share = int(lost_ns.sum()) / max(1, kernels_ns)
    if not len(rows) or lost_share < thresholds.min_lost_share:
        return

    factors = distinct(used_share)
    change = ProgramChange(scaled=tuple((rows[used_share == share], share) for share in factors))
    saving = measure_saving(ctx, change, "upper-bound")
    if not saving.reaches(thresholds.min_lost_share / 10):
        return

    op = ctx.launches.op[np.searchsorted(ctx.launches.work, rows)]
    locations = find_costliest_lines(ctx, op, lost_ns)
    spent = device_time(ctx, rows)
    worst = int(np.argmax(lost_ns))

    yield saving.finding(
        INFO,
        confidence="medium",
        message=(
            f"Products and convolutions{at_first(locations)} have slightly more "
            "blocks than a multiple of the multiprocessors, such as "
            f"`{short_kernel(events.name_of(int(rows[worst])))}` with {blocks[worst]:.2f} for each."
            f" They take {time_per_step(ctx, spent.total_ns)}; multiprocessors wait for the last "
            f"blocks in up to {format_share(int(lost_ns.sum()) / spent.total_ns)} of it."
        ),
        fix=(
            "Change the batch size or the width of a layer by some percent, so that the number of "
            f"blocks is at most a multiple of the multiprocessors{_quote_n_sms(ctx)}."
        ),
        locations=locations,
        rows=rows,
        evidence={"lost_share": round(lost_share, 4)},
        spans=spent.pairs(),
    )


def _quote_n_sms(ctx: Context) -> str:
    """Return the number of multiprocessors in parentheses, if it is the same for all devices."""
    numbers = {device.n_sms for device in ctx.trace.devices.values()}
    return f" ({numbers.pop()})" if len(numbers) == 1 and None not in numbers else ""
