"""MEM015 peak-dominated-by-one-line: without what one line holds the peak would be much lower.

What it finds:
    A line whose tensors make the peak of a device's memory stick out: the whole history played
    again without them has a much lower peak. What was there before the history began, parameters
    and optimizer state are left out, since they stand at every moment; so is what stays to the end
    and does not show what it is for.

Why it matters:
    The peak decides which batch fits. Of all lines this is the one where a change lowers it most,
    and by how much is known exactly.

How to fix it:
    Compute in chunks what the line computes at once, work in place or in a shorter dtype, drop
    what is not needed before the next large tensor is made, or let ``torch.utils.checkpoint``
    compute activations anew in the backward pass.

Example:
    ::

        scores = torch.softmax(q @ k.transpose(-2, -1) / scale, dim=-1) @ v

Use instead:
    ::

        out = F.scaled_dot_product_attention(q, k, v)

Reads:
    The history of the allocator (requests and frees, lengths in bytes), the blocks that stand in
    the end, and their stacks.

When to ignore this:
    A model that calls one line in all of its layers is dominated by that line as a matter of
    course. A program that runs on with room to spare has nothing to gain.

Source:
    "Understanding CUDA Memory Usage" in PyTorch's documentation; ``torch.utils.checkpoint``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.device_memory.messages import blocks
from profkit.index.snapshot.allocation_use import USES
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.live_blocks import LiveBlocks, LiveBlockSites
from profkit.index.snapshot.stack_lines import NO_LINE
from profkit.model.finding import Cost, Finding
from profkit.units import format_bytes, format_share

INFO = RuleInfo(
    id="MEM015",
    name="peak-dominated-by-one-line",
    title="One line makes the peak of memory",
    severity="note",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a line makes the peak.

    Attributes:
        min_saved_share: Share of the peak that is gone without the line. From a quarter on a batch
            may be a third longer.
        min_saved_bytes: The same in bytes: below this it decides nothing.
        max_candidates_count: Lines of the peak that are played without, those with the most bytes
            first. A line below a quarter of the peak cannot lower it by a quarter.
    """

    min_saved_share: float = 0.25
    min_saved_bytes: int = 256 << 20
    max_candidates_count: int = 4


_STAYS: Final = tuple(USES.index(use) for use in ("parameter", "optimizer-state"))
_UNKNOWN: Final = USES.index("unknown")
_ADVICE: Final = {
    "activation": (
        "Use a smaller batch or `torch.autocast`, compute it in chunks, or in training put "
        "`torch.utils.checkpoint` around it."
    ),
    "gradient": "Use a smaller batch, or accumulate gradients over parts of it.",
}
_OTHER_ADVICE: Final = (
    "Compute it in chunks, in place or in a shorter dtype, or drop what is not needed before it."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each device whose peak one line makes."""
    for memory in ctx.device_memories:
        peak = int(memory.replay.active_bytes.max())
        least = max(thresholds.min_saved_bytes, thresholds.min_saved_share * peak)
        saved = [
            (peak - memory.peak_without(line), line)
            for line in _candidates(memory, least, thresholds.max_candidates_count)
        ]
        most, line = max(saved, default=(0, NO_LINE))
        if most >= least:
            yield _finding(memory, line, most, peak)


def _candidates(memory: DeviceMemory, least: float, limit: int) -> list[int]:
    """Lines that hold enough at the peak, of what does not stand at every moment."""
    sites, standing = _at_peak(memory)
    use = sites.use[sites.of_block]
    comes = (
        ~standing.is_before_recording
        & ~np.isin(use, _STAYS)
        & ((use != _UNKNOWN) | standing.is_freed)
    )
    line = sites.line[sites.of_block]
    comes &= line != NO_LINE
    lines, group = np.unique(line[comes], return_inverse=True)
    held = np.zeros(len(lines), dtype=np.int64)
    np.add.at(held, group, standing.n_bytes[comes])
    order = np.argsort(-held, kind="stable")[:limit]
    return [int(lines[i]) for i in order if held[i] >= least]


def _at_peak(memory: DeviceMemory) -> tuple[LiveBlockSites, LiveBlocks]:
    peak = memory.replay.peak
    return memory.sites_at(peak), memory.live_blocks_at(peak)


def _finding(memory: DeviceMemory, line: int, saved: int, peak: int) -> Finding:
    sites, standing = _at_peak(memory)
    own = (sites.line[sites.of_block] == line) & ~standing.is_before_recording
    held, n = int(standing.n_bytes[own].sum()), int(own.sum())
    use = USES[sites.use[sites.of_block[own].min()]]
    location = memory.lines.location(line)
    what = "" if use == "unknown" else f" ({use})"
    them = "it" if n == 1 else "them"
    return INFO.finding(
        severity="note",
        confidence="high",
        message=(
            f"At the peak of {memory.label}, {format_bytes(peak)}, {location.place} held "
            f"{format_bytes(held)} in {blocks(n)}{what}. Without {them} the most at once would be "
            f"{format_bytes(peak - saved)}: {format_bytes(saved)} ({format_share(saved / peak)}) "
            f"less."
        ),
        fix=_ADVICE.get(use, _OTHER_ADVICE),
        locations=(location,),
        n=n,
        cost=Cost(bytes=saved, basis="upper-bound"),
        evidence={
            "device": memory.label,
            "peak_bytes": peak,
            "held_bytes": held,
            "peak_without_bytes": peak - saved,
            "category": use,
            "entry": memory.replay.peak,
        },
    )
