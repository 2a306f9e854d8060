"""MEM015 peak-dominated-by-one-line: without the tensors of one line the peak would be much lower.

What it finds:
    A line whose tensors dominate the peak of a GPU's memory: the history without them has a much
    lower peak. Memory that was allocated before recording, parameters and optimizer state are left
    out, since they are always there; so are blocks of unknown use that are never freed. Or a line
    that calls modules whose activations dominate it: the history is replayed as if each call kept
    its output alone, and its backward pass computed the rest again. A program that has checkpoints
    already, or no backward pass in its history, has no such line.

Why it matters:
    The peak limits the batch size. This is the line where a change lowers it most. The figure of
    a line's tensors is exact; that of modules is an estimate, as a checkpoint may keep more than
    one output, and stacks show where calls begin.

How to fix it:
    Compute in chunks, in place or in a smaller dtype, free what is not needed before the next large
    tensor is allocated, or let ``torch.utils.checkpoint`` recompute activations in the backward
    pass, which takes the time of one more forward pass of these modules.

Example:
    ::

        scores = torch.softmax(q @ k.transpose(-2, -1) / scale, dim=-1) @ v

Use instead:
    ::

        out = F.scaled_dot_product_attention(q, k, v)

Reads:
    The allocator's history (allocations and frees, sizes in bytes), the blocks that are live at
    its end, and their stacks.

When to ignore this:
    A model that calls one line in all of its layers is always dominated by that line. A program
    with memory to spare gains nothing, and loses time by checkpoints.

Source:
    "Understanding CUDA Memory Usage" in PyTorch's documentation; ``torch.utils.checkpoint``.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.snapshot.allocation_use import USES
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.live_blocks import LiveBlocks, LiveBlockSites
from profkit.index.snapshot.recomputed_modules import (
    RecomputedModules,
    find_recomputed_modules,
    has_checkpoints,
)
from profkit.index.snapshot.stack_lines import NO_LINE
from profkit.index.sums import sum_by_key
from profkit.rule import (
    Context,
    Cost,
    Finding,
    RuleInfo,
    counted,
    dataclass,
    format_bytes,
    format_share,
    needs,
)

INFO = RuleInfo(
    id="MEM015",
    name="peak-dominated-by-one-line",
    title="Peak memory dominated by one source line",
    severity="note",
    needs=(needs.HISTORY,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a line dominates the peak.

    Attributes:
        min_saved_share: Minimum share of the peak that is saved without the line. With a quarter, a
            batch may be a third larger.
        min_saved_bytes: The same in bytes.
        max_candidates_count: Lines that are simulated, with the most bytes first. A line below a
            quarter of the peak cannot lower it by a quarter.
    """

    min_saved_share: float = 0.25
    min_saved_bytes: int = 256 << 20
    max_candidates_count: int = 4


_PERMANENT: Final = tuple(USES.index(use) for use in ("parameter", "optimizer-state"))
_UNKNOWN: Final = USES.index("unknown")
_ADVICE: Final = {
    "activation": (
        "Use a smaller batch or `torch.autocast`, compute it in chunks, or in training put "
        "`torch.utils.checkpoint` around it."
    ),
    "gradient": "Use a smaller batch, or accumulate gradients over parts of it.",
}
_ADVICE_BESIDE_CHECKPOINTS: Final = (
    "Use a smaller batch or `torch.autocast`, compute it in chunks, or have the program's "
    "checkpoints keep less: they keep these."
)
_OTHER_ADVICE: Final = (
    "Compute it in chunks, in place or in a smaller dtype, or free what is not needed before it."
)


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each device whose peak one line dominates."""
    for memory in ctx.device_memories:
        if not memory.replay.has_peak:
            continue

        # How far a peak falls without a line takes a replay, so few lines are tried.
        peak = int(memory.replay.active_bytes.max())
        min_bytes = max(thresholds.min_saved_bytes, thresholds.min_saved_share * peak)
        saved = [
            (peak - memory.peak_without(line), line)
            for line in _find_candidates(memory, min_bytes, thresholds.max_candidates_count)
        ]
        n_bytes, line = max(saved, default=(0, NO_LINE))
        modules = find_recomputed_modules(memory.snapshot, memory.replay)
        if modules is not None and peak - modules.peak_bytes >= max(min_bytes, n_bytes):
            yield _build_modules_finding(memory, modules, peak)
        elif n_bytes >= min_bytes:
            yield _build_finding(memory, line, n_bytes, peak)


def _find_candidates(memory: DeviceMemory, min_bytes: float, limit: int) -> list[int]:
    """Find lines with enough bytes at the peak, without permanent blocks."""
    sites, live = _at_peak(memory)
    use = sites.use[sites.of_block]
    # Blocks of unknown use that are never freed are most likely parameters.
    is_candidate = (
        ~live.is_before_recording & ~np.isin(use, _PERMANENT) & ((use != _UNKNOWN) | live.is_freed)
    )
    line = sites.line[sites.of_block]
    is_candidate &= line != NO_LINE

    lines, group = np.unique(line[is_candidate], return_inverse=True)
    line_bytes = sum_by_key(len(lines), group, live.n_bytes[is_candidate])
    order = np.argsort(-line_bytes, kind="stable")[:limit]
    return [int(lines[i]) for i in order if line_bytes[i] >= min_bytes]


def _at_peak(memory: DeviceMemory) -> tuple[LiveBlockSites, LiveBlocks]:
    peak = memory.replay.peak
    return memory.sites_at(peak), memory.live_blocks_at(peak)


def _build_finding(memory: DeviceMemory, line: int, saved: int, peak: int) -> Finding:
    sites, live = _at_peak(memory)
    is_of_line = (sites.line[sites.of_block] == line) & ~live.is_before_recording
    n_bytes, n = int(live.n_bytes[is_of_line].sum()), int(is_of_line.sum())
    # A line may allocate for several uses. Sites are ordered by bytes: the first has most of them.
    use = USES[sites.use[sites.of_block[is_of_line].min()]]
    location = memory.lines.location(line)
    used_for = "" if use == "unknown" else f" ({use})"
    is_checkpointed = use == "activation" and has_checkpoints(memory.snapshot.stacks)

    return INFO.finding(
        confidence="high",
        message=(
            f"At the peak of {format_bytes(peak)} on {memory.label}, {location.place} had "
            f"{format_bytes(n_bytes)} in {counted(n, 'block')}{used_for}. Without this "
            f"line the peak would be {format_bytes(peak - saved)}, {format_bytes(saved)} "
            f"({format_share(saved / peak)}) lower."
        ),
        fix=_ADVICE_BESIDE_CHECKPOINTS if is_checkpointed else _ADVICE.get(use, _OTHER_ADVICE),
        locations=(location,),
        n=n,
        cost=Cost(bytes=saved, basis="upper-bound"),
        evidence={
            "device": memory.label,
            "peak_bytes": peak,
            "line_bytes": n_bytes,
            "peak_without_bytes": peak - saved,
            "category": use,
            "entry": memory.replay.peak,
        },
    )


def _build_modules_finding(memory: DeviceMemory, modules: RecomputedModules, peak: int) -> Finding:
    location = memory.lines.location(modules.frame)
    saved = peak - modules.peak_bytes

    return INFO.finding(
        confidence="medium",
        message=(
            f"At the peak of {format_bytes(peak)} on {memory.label}, "
            f"{format_bytes(modules.n_bytes)} are activations of the modules that "
            f"{location.place} calls, kept for the backward pass. Computed again there, the peak "
            f"would be about {format_bytes(modules.peak_bytes)} "
            f"({format_share(saved / peak)} lower)."
        ),
        fix=(
            "Call these modules through `torch.utils.checkpoint.checkpoint(module, x, "
            "use_reentrant=False)`, which takes the time of one more forward pass of them."
        ),
        locations=(location,),
        n=modules.n,
        cost=Cost(bytes=saved, basis="estimate"),
        evidence={
            "device": memory.label,
            "peak_bytes": peak,
            "modules_bytes": modules.n_bytes,
            "peak_without_bytes": modules.peak_bytes,
            "category": "activation",
            "entry": memory.replay.peak,
        },
    )
