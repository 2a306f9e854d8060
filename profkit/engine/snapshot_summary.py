"""A snapshot's figures, each by its definition in ``profkit.model.memory_summary``."""

from profkit.engine.context import Context
from profkit.index.replay import DeviceReplay
from profkit.model.events import MISSING
from profkit.model.memory_summary import OomSummary, SnapshotDevice
from profkit.model.snapshot import Action, MemorySnapshot, State


def snapshot_devices(ctx: Context) -> tuple[SnapshotDevice, ...]:
    """The figures of every device."""
    if ctx.snapshot is None:
        return ()
    return tuple(_device(ctx.snapshot, replay) for replay in ctx.replays)


def _device(snapshot: MemorySnapshot, replay: DeviceReplay) -> SnapshotDevice:
    segments, blocks, history = snapshot.segments, snapshot.blocks, snapshot.history
    here = segments.device == replay.device
    state = blocks.state[here[blocks.segment]]
    n_bytes = blocks.n_bytes[here[blocks.segment]]
    free = n_bytes[state == State.INACTIVE]
    return SnapshotDevice(
        device=f"cuda:{replay.device}",
        n_segments=int(here.sum()),
        n_blocks=len(state),
        reserved_bytes=int(segments.total_bytes[here].sum()),
        allocated_bytes=int(segments.allocated_bytes[here].sum()),
        active_bytes=int(segments.active_bytes[here].sum()),
        inactive_bytes=int(free.sum()),
        largest_free_block_bytes=int(free.max(initial=0)),
        n_trace_events=len(replay.rows),
        peak_active_bytes=int(replay.active_bytes.max()),
        peak_reserved_bytes=int(replay.reserved_bytes.max()),
        n_live_from_window=len(replay.live),
        live_from_window_bytes=int(history.n_bytes[replay.rows[replay.live]].sum()),
        n_frees_of_earlier=len(replay.earlier_frees),
        oom=_ooms(snapshot, replay),
    )


def _ooms(snapshot: MemorySnapshot, replay: DeviceReplay) -> tuple[OomSummary, ...]:
    history = snapshot.history
    rows = replay.rows[history.action[replay.rows] == Action.OOM]
    return tuple(
        OomSummary(
            bytes=int(history.n_bytes[row]),
            device_free_bytes=None if free_bytes == MISSING else int(free_bytes),
        )
        for row, free_bytes in zip(rows, history.free_bytes.at(rows), strict=True)
    )
