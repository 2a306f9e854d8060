"""DAT005 device-to-device-copies: tensors move from one GPU to another in every step.

What it finds:
    Lines that copy tensors between GPUs within the steps, with the pairs of devices, the bytes and
    the bandwidth. Copies by ``nn.DataParallel`` are reported by data-parallel, and collectives are
    no copies.

Why it matters:
    A copy between GPUs takes as long as dozens of kernels: links carry 10 to 60 GB/s over PCIe and
    up to 450 GB/s over NVLink, memory some thousand. Without peer access it goes through the
    host's memory. By default the copy waits for the work of both devices, and their later work
    waits for it. The cost is what the steps take less in a replay of the recording without these
    copies.

How to fix it:
    Create a tensor on the device that uses it, or move it there once before the loop. Where a model
    is split over devices, cut it where activations are small, and let several batches be under way
    at once (``torch.distributed.pipelining``). For more throughput with a model that fits one
    GPU, run one process per GPU with ``DistributedDataParallel``.

Example:
    ::

        table = torch.randn(4096, 4096, device="cuda:1")
        for x in loader:
            y = x.to("cuda:0") @ table.to("cuda:0")

Use instead:
    ::

        table = torch.randn(4096, 4096, device="cuda:0")
        for x in loader:
            y = x.to("cuda:0") @ table

Reads:
    Copies (``n_bytes`` in bytes, ``ts_ns`` and ``dur_ns`` in nanoseconds, the devices that they
    read and write), the operators that launched them, source lines.

When to ignore this:
    The model is split because it fits no single GPU, and its activations have to move. ROCm's
    profiler does not tell the devices of a copy.

Source:
    "Cross-GPU operations" in PyTorch's CUDA semantics; ``aten/src/ATen/native/cuda/Copy.cu`` (a
    copy between devices synchronizes their streams); "Peer-to-Peer Memory Copy" in the CUDA C++
    Programming Guide; ``libkineto/src/CuptiActivity.cpp`` (``fromDevice``, ``toDevice``).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.distinct import distinct
from profkit.index.ranks.data_parallel import data_parallel_calls
from profkit.rule import (
    MISSING,
    Context,
    Finding,
    ProgramChange,
    Rows,
    RuleInfo,
    at,
    dataclass,
    device_time,
    format_bytes,
    launched_in_windows,
    measure_saving,
    needs,
    time_with_share,
    times_per_step,
    windows_ns,
)

INFO = RuleInfo(
    id="DAT005",
    name="device-to-device-copies",
    title="Tensors copied between GPUs",
    severity="note",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
    no_example="It takes two GPUs, and its tests build what they record.",
)


@dataclass(frozen=True)
class Thresholds:
    """When copies between devices are a finding.

    Attributes:
        min_copies_count: Minimum copies by one line; a single one is set-up.
        min_copy_share: Minimum share of the steps that one line's copies take. Below a thousandth
            no step gets measurably shorter.
        warning_share: Share of the steps that a fix can save from which it is a warning. A split
            model needs some, and its cost is mostly hidden.
    """

    min_copies_count: int = 2
    min_copy_share: float = 0.001
    warning_share: float = 0.05


_MAX_PAIRS: Final = 3


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that copies tensors between devices."""
    copies, op = _find_peer_copies(ctx)
    # A line that copies less than once per step sets something up.
    n_min = max(thresholds.min_copies_count, len(ctx.steps))
    min_ns = max(1, thresholds.min_copy_share * windows_ns(ctx))

    for location, ops in ctx.by_line(distinct(op)):
        line_copies = copies[np.isin(op, ops)]
        spent = device_time(ctx, line_copies)
        if len(line_copies) < n_min or spent.total_ns < min_ns:
            continue

        saving = measure_saving(ctx, ProgramChange(scaled=((line_copies, 0.0),)))
        pairs, n_bytes = _describe_pairs(ctx, line_copies)
        yield saving.finding(
            INFO,
            severity=saving.severity(thresholds.warning_share),
            confidence="high",
            message=(
                f"Tensors are copied between GPUs{at(location)}, "
                f"{times_per_step(ctx, len(line_copies))}: {', '.join(pairs[:_MAX_PAIRS])}. The "
                f"copies take {time_with_share(ctx, spent.total_ns)}."
            ),
            fix=(
                "Create the tensor on the GPU that uses it, or move it there once before the "
                "loop; where a model is split, cut it where activations are small."
            ),
            locations=(location,),
            rows=line_copies,
            evidence={"bytes": n_bytes, "pairs": pairs},
            spans=spent.pairs(),
        )


def _find_peer_copies(ctx: Context) -> tuple[Rows, Rows]:
    """Find the copies between devices in the windows, and the operators that launched them."""
    events, launches = ctx.events, ctx.launches
    source, target = (column.at(launches.work) for column in (events.from_device, events.to_device))
    # ROCm's profiler writes no devices.
    is_copy = (source != target) & (source != MISSING) & (target != MISSING)
    # The copies of DataParallel are reported by data-parallel.
    if is_copy.any() and len(data_parallel_calls(events, ctx.tree)):
        is_copy[:] = False
    return launched_in_windows(ctx, is_copy)


def _describe_pairs(ctx: Context, copies: Rows) -> tuple[list[str], int]:
    """Describe the copies of each pair of devices, the most bytes first.

    Returns:
        Texts such as ``cuda:0 to cuda:1 8.00 MiB per step at 11.2 GB/s``, and the bytes of all.
    """
    events, n_steps = ctx.events, max(1, len(ctx.steps))
    source, target = events.from_device.at(copies), events.to_device.at(copies)
    n_bytes = np.maximum(events.n_bytes.at(copies), 0)

    texts = []
    for from_device, to_device in np.unique(np.stack((source, target)), axis=1).T.tolist():
        is_pair = (source == from_device) & (target == to_device)
        # Bytes per nanosecond are gigabytes per second.
        pair_bytes = int(n_bytes[is_pair].sum())
        pair_ns = int(events.dur_ns[copies[is_pair]].sum())
        size = f"{format_bytes(pair_bytes / n_steps)}{' per step' if len(ctx.steps) else ''}"
        text = f"{ctx.device_label(from_device)} to {ctx.device_label(to_device)} {size}"
        texts.append((-pair_bytes, f"{text} at {pair_bytes / max(1, pair_ns):.3g} GB/s"))
    return [text for _, text in sorted(texts)], int(n_bytes.sum())
