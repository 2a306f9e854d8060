"""The traces of all ranks of a job as one, on one clock."""

from collections.abc import Iterable, Iterator
from functools import partial

from profkit.model.rank_lanes import JobLanes, RankLane
from profkit.names import visible
from profkit.present.rank_timeline import STATE_LABELS, call_name, lane_label
from profkit.readers.kineto.append import OwnPositions
from profkit.readers.kineto.cached import read_trace
from profkit.readers.kineto.merge import RankFile, merge_traces, process_events
from profkit.readers.stream import place_of
from profkit.renderers.chrome._event_writer import EventWriter


def write_job(job: JobLanes) -> Iterator[bytes]:
    """Write one trace, rank by rank; a process for each rank has its collectives, split."""
    files = (
        RankFile(
            place=place_of(lane.file),
            name=visible(lane_label(lane)),
            corrected=lane.clock.corrected,
            added=partial(_write_collectives, lane, job),
            own=partial(_read_own_positions, lane),
        )
        for lane in job.lanes
    )
    return merge_traces(files, job.start_ns)


def _read_own_positions(lane: RankLane) -> OwnPositions:
    """Read which events of a rank are profkit's own: its lane has only what is drawn."""
    return OwnPositions.of(read_trace(place_of(lane.file)).events)


def _write_collectives(lane: RankLane, job: JobLanes, pid: int) -> Iterable[bytes]:
    """Write the slices of the collectives of a rank, in a separate process."""
    slices = lane.slices
    writer = EventWriter((), 0, int(slices.end_ns.max(initial=0)), pid=pid)
    yield from process_events(pid, f"{visible(lane_label(lane))} · collectives", pid)

    rows: dict[int, int] = {}
    for row, start, end, n, number in zip(
        *(getattr(slices, name).tolist() for name in ("row", "start_ns", "end_ns", "n", "site")),
        strict=True,
    ):
        site = job.sites[number]
        if not row:
            continue  # the first row has the other parts of its time
        if row not in rows:
            rows[row], names = writer.add_row("collectives")
            yield from names
        name = f"{call_name(site)}: {STATE_LABELS[site.kind]}"
        args = {"merged slices": n} if n > 1 else {}
        yield writer.slice(rows[row], name, start, end, args)
