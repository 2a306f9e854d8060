"""PRF007 odd-snapshot: the memory snapshot is inconsistent or incomplete.

What it finds:
    Segments whose blocks do not add up to their size or to their own totals; blocks that are
    smaller than the allocation that they serve; entries that are no segment, block or event; a
    history with more active than reserved memory; a history whose beginning is missing, because
    its buffer was too short; and allocations without a stack.

Why it matters:
    Where blocks do not add up no figure can be trusted. A history without segments has no figures
    on reserved memory. Where the beginning is missing the peak may be in it, and the blocks
    allocated there have no source line. Without stacks there are totals but no source lines.

How to fix it:
    Record with ``torch.cuda.memory._record_memory_history(max_entries=1_000_000)`` before the
    first tensor is allocated, and dump the snapshot while the memory of interest is allocated.

Example:
    ::

        torch.cuda.memory._record_memory_history(max_entries=1000)

Use instead:
    ::

        torch.cuda.memory._record_memory_history(max_entries=1_000_000)

Reads:
    Segments, blocks and history (sizes in bytes), and which of them have stacks.

When to ignore this:
    The program stops and restarts recording: blocks then have stacks but no entry, as if the
    history buffer had overflowed. Backward passes run on threads without Python: their allocations
    never have a Python stack.

Source:
    ``torch/cuda/memory.py`` (``_record_memory_history``); ``c10/cuda/CUDACachingAllocator.cpp``
    (``record_trace``: the history buffer).
"""

from collections.abc import Iterator

from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.rule import (
    NO_STACK,
    Context,
    Finding,
    MemorySnapshot,
    RuleInfo,
    State,
    counted,
    dataclass,
    format_bytes,
    format_count,
    format_share,
    needs,
)

INFO = RuleInfo(
    id="PRF007",
    name="odd-snapshot",
    title="Snapshot is inconsistent or incomplete",
    severity="note",
    needs=(needs.SNAPSHOT,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """When missing data is a finding.

    Attributes:
        min_lost_share: Minimum share of live bytes whose allocations are missing in the history.
        min_stackless_share: Minimum share of live bytes without a stack. Allocations by libraries
            and before recording are usually a smaller part.
    """

    min_lost_share: float = 0.01
    min_stackless_share: float = 0.5


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield findings for inconsistent figures, a missing beginning, and missing stacks."""
    snapshot = ctx.snapshot
    if snapshot is None:
        return

    # A free block may still have the size that was requested when it was allocated.
    table = snapshot.blocks
    is_active = table.state != State.INACTIVE
    n_short = int((is_active & (table.requested_bytes > table.n_bytes)).sum())
    if snapshot.notes.n_inconsistent_segments or snapshot.notes.n_skipped or n_short:
        yield _report_inconsistency(snapshot, n_short)

    for memory in ctx.device_memories:
        yield from _report_missing_segments(memory)
        yield from _report_missing_beginning(memory, thresholds)
    yield from _report_missing_stacks(ctx.device_memories, thresholds)


def _report_inconsistency(snapshot: MemorySnapshot, n_short: int) -> Finding:
    notes = snapshot.notes
    parts = []
    if notes.n_inconsistent_segments:
        of = format_count(len(snapshot.segments))
        parts.append(
            f"{format_count(notes.n_inconsistent_segments)} of {of} segments are not the sum of "
            "their blocks"
        )
    if notes.n_skipped:
        parts.append(f"{format_count(notes.n_skipped)} entries are invalid")
    if n_short:
        parts.append(f"{counted(n_short, 'block')} are smaller than requested")

    return INFO.finding(
        severity="warning",
        confidence="high",
        message=f"The snapshot is inconsistent: {' and '.join(parts)}.",
        fix="Dump the snapshot again, and do not modify it.",
        n=notes.n_inconsistent_segments + notes.n_skipped + n_short,
        evidence={
            "n_odd_segments": notes.n_inconsistent_segments,
            "n_skipped": notes.n_skipped,
            "n_short_blocks": n_short,
        },
    )


def _report_missing_segments(memory: DeviceMemory) -> Iterator[Finding]:
    """Yield a finding if segments are missing in a device's history."""
    # More active than reserved memory is impossible.
    replay = memory.replay
    excess_bytes = replay.active_bytes - replay.reserved_bytes
    n, place = int((excess_bytes > 0).sum()), int(excess_bytes.argmax())
    if not n:
        return

    yield INFO.finding(
        severity="warning",
        confidence="high",
        message=(
            f"Segments are missing in the history of {memory.label}: after {format_count(place)} "
            f"of {format_count(replay.end)} entries "
            f"{format_bytes(int(replay.active_bytes[place]))} "
            f"are active but only {format_bytes(int(replay.reserved_bytes[place]))} reserved. "
            "Reserved and free memory before the end are unknown."
        ),
        fix="Record the history without `skip_actions`.",
        n=n,
        evidence={"device": memory.label, "beyond_bytes": int(excess_bytes[place]), "entry": place},
    )


def _report_missing_beginning(memory: DeviceMemory, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if a device's history lacks its beginning."""
    # profkit itself keeps only the latest entries and restarts recording between two windows, on
    # purpose: every block has its stack.
    if not memory.replay.end or memory.snapshot.driver:
        return

    # Blocks with a stack but without an entry were allocated in the missing beginning.
    live = memory.live_blocks_at(memory.replay.end)
    is_lost = live.is_before_recording & (live.stack != NO_STACK)
    n, n_bytes = int(is_lost.sum()), int(live.n_bytes[is_lost].sum())
    if not n or n_bytes < thresholds.min_lost_share * int(live.n_bytes.sum()):
        return

    yield INFO.finding(
        confidence="medium",
        message=(
            f"{counted(n, 'block')} of {memory.label} ({format_bytes(n_bytes)}) "
            f"{'was' if n == 1 else 'were'} allocated before the history begins, which still has "
            f"{counted(memory.replay.end, 'entry', 'entries')}: the history buffer overflowed or "
            "was restarted. Earlier peaks are missing."
        ),
        fix="Record with a larger `max_entries`, and start recording once.",
        n=n,
        evidence={"device": memory.label, "n_bytes": n_bytes, "n_entries": memory.replay.end},
    )


def _report_missing_stacks(
    memories: tuple[DeviceMemory, ...], thresholds: Thresholds
) -> Iterator[Finding]:
    total_bytes = stackless_bytes = 0
    for memory in memories:
        live = memory.live_blocks_at(memory.replay.end)
        is_stackless = live.stack == NO_STACK

        # Blocks allocated before recording cannot have a stack.
        if memory.replay.end:
            is_stackless &= ~live.is_before_recording
        total_bytes += int(live.n_bytes.sum())
        stackless_bytes += int(live.n_bytes[is_stackless].sum())

    if not total_bytes or stackless_bytes < thresholds.min_stackless_share * total_bytes:
        return

    share = format_share(stackless_bytes / total_bytes)
    yield INFO.finding(
        confidence="high",
        message=(
            f"No stack was recorded for {format_bytes(stackless_bytes)} of the "
            f"{format_bytes(total_bytes)} allocated ({share}), so their source lines are unknown."
        ),
        fix='Call `torch.cuda.memory._record_memory_history(stacks="python")` before the first '
        "tensor is allocated.",
        evidence={"without_stack_bytes": stackless_bytes, "active_bytes": total_bytes},
    )
