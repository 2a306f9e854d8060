"""PRF007 odd-snapshot: the snapshot contradicts itself, or was recorded with parts missing.

What it finds:
    Segments whose blocks do not add up to them, or to what they say of themselves; blocks that are
    shorter than what was asked for; entries that are no segment, block or event; a history in which
    more is in use than reserved; one that has lost its beginning, as a ring that is too short does;
    and allocations without a stack.

Why it matters:
    Where blocks do not add up no figure can be trusted. A history that lacks what was had from the
    driver tells what was in use, and nothing of what was reserved. Where the history's beginning is
    lost the peak may lie in what is lost; what was allocated there has no line, and its frees
    belong to nothing. Without stacks there are totals and no lines at all.

How to fix it:
    Record with ``torch.cuda.memory._record_memory_history(max_entries=1_000_000)`` before the
    first tensor is made, and dump the snapshot while the memory of interest stands.

Example:
    ::

        torch.cuda.memory._record_memory_history(max_entries=1000)

Use instead:
    ::

        torch.cuda.memory._record_memory_history(max_entries=1_000_000)

Reads:
    Segments, blocks and history (lengths in bytes), and which of them have stacks.

When to ignore this:
    A program that switches recording off and on again has blocks with stacks and no entry, just as
    if a ring had lost them. Backward passes run on threads without Python: their allocations have
    no Python stack however they are recorded.

Source:
    ``torch/cuda/memory.py`` (``_record_memory_history``); ``c10/cuda/CUDACachingAllocator.cpp``
    (``record_trace``: the ring).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.device_memory.messages import blocks
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.finding import Finding
from profkit.model.snapshot import NO_STACK, MemorySnapshot, State
from profkit.units import format_bytes, format_count, format_share

INFO = RuleInfo(
    id="PRF007",
    name="odd-snapshot",
    title="The snapshot is odd or incomplete",
    severity="note",
    needs=(needs.SNAPSHOT,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When what is missing matters.

    Attributes:
        min_lost_share: Share of the bytes in use whose allocations are lost from the history.
        min_stackless_share: Share of the bytes in use without a stack. What libraries allocate for
            themselves, and what was there before the recording, may be a part; not most of it.
    """

    min_lost_share: float = 0.01
    min_stackless_share: float = 0.5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for what does not add up, for a lost beginning, and for missing stacks."""
    snapshot = ctx.snapshot
    if snapshot is None:
        return
    blocks_in = snapshot.blocks
    # A free block may still say what was asked for when it was in use.
    active = blocks_in.state != State.INACTIVE
    n_short = int((active & (blocks_in.requested_bytes > blocks_in.n_bytes)).sum())
    if snapshot.notes.n_odd_segments or snapshot.notes.n_skipped or n_short:
        yield _contradicts_itself(snapshot, n_short)
    for memory in ctx.device_memories:
        yield from _lacks_segments(memory)
        yield from _lost_beginning(memory, thresholds)
    yield from _without_stacks(ctx.device_memories, thresholds)


def _contradicts_itself(snapshot: MemorySnapshot, n_short: int) -> Finding:
    notes = snapshot.notes
    parts = []
    if notes.n_odd_segments:
        parts.append(
            f"{format_count(notes.n_odd_segments)} of {format_count(len(snapshot.segments))} "
            f"segments are not the sum of their blocks"
        )
    if notes.n_skipped:
        parts.append(f"{format_count(notes.n_skipped)} entries are none that torch writes")
    if n_short:
        parts.append(f"{blocks(n_short)} are shorter than what was asked for")
    return INFO.finding(
        severity="warning",
        confidence="high",
        message=f"{' and '.join(parts)}: the snapshot's figures contradict each other.",
        fix="Dump the snapshot again; one that another program has changed cannot be trusted.",
        n=notes.n_odd_segments + notes.n_skipped + n_short,
        evidence={
            "n_odd_segments": notes.n_odd_segments,
            "n_skipped": notes.n_skipped,
            "n_short_blocks": n_short,
        },
    )


def _lacks_segments(memory: DeviceMemory) -> Iterator[Finding]:
    """More in use than reserved cannot be: what was had from the driver is not in the history."""
    replay = memory.replay
    beyond = replay.active_bytes - replay.reserved_bytes
    n, place = int((beyond > 0).sum()), int(beyond.argmax())
    if not n:
        return
    yield INFO.finding(
        severity="warning",
        confidence="high",
        message=(
            f"The history of {memory.label} lacks what was had from the driver: after "
            f"{format_count(place)} of its {format_count(replay.end)} entries "
            f"{format_bytes(int(replay.active_bytes[place]))} were in use of "
            f"{format_bytes(int(replay.reserved_bytes[place]))} reserved. What was reserved before "
            f"the end, and what was free of it, is not known."
        ),
        fix="Record the history without `skip_actions`.",
        n=n,
        evidence={"device": memory.label, "beyond_bytes": int(beyond[place]), "entry": place},
    )


def _lost_beginning(memory: DeviceMemory, thresholds: Thresholds) -> Iterator[Finding]:
    """Blocks with a stack were allocated while recording was on; without an entry, it is lost."""
    # profkit itself keeps the latest entries alone and begins anew between two windows, on purpose:
    # every block has its stack.
    if not memory.replay.end or memory.snapshot.driver:
        return
    standing = memory.live_blocks_at(memory.replay.end)
    lost = standing.is_before_recording & (standing.stack != NO_STACK)
    n, n_bytes = int(lost.sum()), int(standing.n_bytes[lost].sum())
    if not n or n_bytes < thresholds.min_lost_share * int(standing.n_bytes.sum()):
        return
    yield INFO.finding(
        severity="note",
        confidence="medium",
        message=(
            f"{blocks(n).capitalize()} of {memory.label} ({format_bytes(n_bytes)}) were allocated "
            f"while history was recorded, and before the first entry that it still has (of "
            f"{format_count(memory.replay.end)}): its ring was too short, or recording was begun "
            f"anew. Peaks of before are not seen."
        ),
        fix="Record with a larger `max_entries`, and begin once.",
        n=n,
        evidence={"device": memory.label, "n_bytes": n_bytes, "n_entries": memory.replay.end},
    )


def _without_stacks(
    memories: tuple[DeviceMemory, ...], thresholds: Thresholds
) -> Iterator[Finding]:
    parts = [(memory, memory.live_blocks_at(memory.replay.end)) for memory in memories]
    total = sum(int(standing.n_bytes.sum()) for _, standing in parts)
    bare = 0
    for memory, standing in parts:
        # What was there before a history began could not have one.
        could = (
            ~standing.is_before_recording if memory.replay.end else np.ones(len(standing), np.bool_)
        )
        bare += int(standing.n_bytes[could & (standing.stack == NO_STACK)].sum())
    if not total or bare < thresholds.min_stackless_share * total:
        return
    yield INFO.finding(
        severity="note",
        confidence="high",
        message=(
            f"{format_bytes(bare)} of the {format_bytes(total)} in use "
            f"({format_share(bare / total)}) were allocated without a stack being kept: no line "
            f"can be named for them."
        ),
        fix='Call `torch.cuda.memory._record_memory_history(stacks="python")` before the first '
        "tensor is made.",
        evidence={"without_stack_bytes": bare, "active_bytes": total},
    )
