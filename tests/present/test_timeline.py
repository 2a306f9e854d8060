"""The timeline contains every event of its recording."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.api import study
from profkit.engine.context import Context
from profkit.model.events import Category, EventTable, Rows
from profkit.model.report import Report, Source, Summary
from profkit.model.timeline import EVENT_LANES, Slices, Timeline
from profkit.model.trace import RecordedWith
from profkit.present import timeline as timeline_module
from profkit.present import timeline_lanes
from profkit.present.timeline import MAX_ROWS, build_timeline
from profkit.present.timeline_lanes import find_event_lanes
from profkit.testing import TraceBuilder
from tests.catalogue.random_programs import briefly, played, programs

TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*/*.gz"))


def made(path: Path) -> tuple[Timeline, Context, Report]:
    result = study(path)
    ctx = result.recording.context
    drawn = build_timeline(ctx, result.report)
    assert drawn is not None
    return drawn, ctx, result.report


def of_row(slices: Slices, row: int) -> Slices:
    """Return the slices of one row."""
    return slices.of(np.flatnonzero(slices.row == row))


def covered_ns(starts: list[int], ends: list[int]) -> int:
    """Length of a union, by walking along its edges."""
    edges = sorted([(at, 1) for at in starts] + [(at, -1) for at in ends])
    total, n_open, since = 0, 0, 0
    for at, change in edges:
        total += (at - since) if n_open else 0
        n_open, since = n_open + change, at
    return total


def is_sound(drawn: Timeline, events: EventTable) -> None:
    n_rows = sum(lane.n_rows for lane in drawn.lanes)
    assert [lane.first_row for lane in drawn.lanes] == np.cumsum(
        [0, *(lane.n_rows for lane in drawn.lanes)]
    )[:-1].tolist()
    assert sum(lane.n for lane in drawn.lanes if lane.kind in EVENT_LANES) == int(
        (events.category != Category.SPAN).sum()
    )

    finest = drawn.levels[0].slices
    for level in drawn.levels:
        slices = level.slices
        for row in range(n_rows):
            shown_rows, exact = of_row(slices, row), of_row(finest, row)
            assert (shown_rows.start_ns[1:] >= shown_rows.end_ns[:-1]).all()
            assert shown_rows.busy_ns.sum() == exact.busy_ns.sum()
            assert shown_rows.n.sum() == exact.n.sum()
            assert (shown_rows.busy_ns <= shown_rows.end_ns - shown_rows.start_ns).all()
        for lane in drawn.lanes:
            rows = range(lane.first_row, lane.first_row + lane.n_rows)
            assert sum(int(of_row(slices, row).n.sum()) for row in rows) == lane.n
    for lane in drawn.lanes:
        rows = range(lane.first_row, lane.first_row + lane.n_rows)
        every = [of_row(finest, row) for row in rows]
        starts = [at for part in every for at in part.start_ns.tolist()]
        ends = [at for part in every for at in part.end_ns.tolist()]
        assert lane.busy_ns == covered_ns(starts, ends)


@briefly
@given(program=programs, steps=st.booleans())
def test_every_event_of_a_random_program_is_in_the_timeline_and_no_row_overlaps(
    tmp_path: Path,
    program: list[list[int]],
    steps: bool,  # noqa: FBT001
) -> None:
    b = played(program, steps=steps)
    drawn, ctx, report = made(b.write(tmp_path / "t.json"))
    is_sound(drawn, ctx.events)
    events = [event for event in b.events if event.ph == "X"]
    recorded = Counter(event.name for event in events)
    shown: Counter[str] = Counter()
    for site in drawn.sites:
        if site.kind != "finding" and not site.kind.startswith("idle") and not site.is_path:
            shown[site.name] += site.n
    for name, _, _ in drawn.steps:
        shown[name] -= 1  # once more in the lane of the steps
    assert shown == recorded
    idle = {lane.label: lane.busy_ns for lane in drawn.lanes if lane.kind == "idle"}
    assert sum(idle.values()) == sum(device.idle_ns for device in report.summary.devices)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_recorded_traces_are_complete(path: Path) -> None:
    drawn, ctx, report = made(path)
    is_sound(drawn, ctx.events)
    assert len(drawn.steps) == len(report.summary.steps) > 0
    with_line = [site for site in drawn.sites if site.frame is not None]
    assert len(with_line) > len(drawn.sites) / 2


def test_a_kernel_has_the_line_and_the_operator_that_launched_it(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 3, "main"):
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
    drawn, _, _ = made(b.write(tmp_path / "t.json"))
    kernel = next(site for site in drawn.sites if site.name == "gemm")
    assert kernel.frame is not None
    assert (kernel.kind, kernel.op, kernel.frame.file) == ("compute", "aten::mm", "train.py")
    assert (kernel.n, kernel.total_ns) == (1, 70_000)
    labels = [lane.label for lane in drawn.lanes]
    assert labels == ["critical path", "cuda:0 stream 7", "thread 1000"]


def test_a_finding_covers_the_time_that_it_is_about(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 3, "main"):
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=900_000)
            b.item()
            b.advance(900_000)
    drawn, _, report = made(b.write(tmp_path / "t.json"))
    lane = next(lane for lane in drawn.lanes if lane.kind == "findings")
    rows = range(lane.first_row, lane.first_row + lane.n_rows)
    shown = {
        (drawn.sites[site].name, start, end)
        for part in (of_row(drawn.levels[0].slices, row) for row in rows)
        for site, start, end in zip(
            part.site.tolist(), part.start_ns.tolist(), part.end_ns.tolist(), strict=True
        )
    }

    costly = next(finding for finding in report.findings if finding.spans)
    for start, end in costly.spans:
        assert (f"{costly.rule} {costly.title}", start, end) in shown


def test_calls_too_deep_for_a_lane_are_counted_in_its_last_row(tmp_path: Path) -> None:
    b = TraceBuilder()

    def call(depth: int) -> None:
        with b.op(f"op{depth}", self_ns=1_000):
            if depth < MAX_ROWS + 20:
                call(depth + 1)

    call(0)
    call(0)
    drawn, ctx, _ = made(b.write(tmp_path / "t.json"))
    lane = next(lane for lane in drawn.lanes if lane.kind == "thread")
    assert lane.n_rows == MAX_ROWS
    assert lane.n == len(ctx.events)
    last = of_row(drawn.levels[0].slices, lane.first_row + MAX_ROWS - 1)
    assert last.n.tolist() == [22, 22]
    assert last.busy_ns.tolist() == [22_000, 22_000]


def test_the_numbers_of_lanes_and_names_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_lanes, "MAX_LANES", 3)
    monkeypatch.setattr(timeline_module, "MAX_SITES", 4)
    b = TraceBuilder()
    for tid in range(9):
        with b.thread(tid):
            for turn in range(10 - tid):
                b.compute(f"op{tid}", 1_000 + turn)

    drawn, ctx, _ = made(b.write(tmp_path / "t.json"))
    is_sound(drawn, ctx.events)

    labels = [lane.label for lane in drawn.lanes]
    assert labels == [
        "critical path",
        "thread 0",
        "thread 1",
        "thread 2",
        "6 more streams and threads",
    ]

    of_events = [site for site in drawn.sites if not site.is_path]
    assert [site.name for site in of_events][3:] == ["op3", "other names"]
    assert of_events[-1].n == sum(10 - tid for tid in range(4, 9))
    assert sum(site.total_ns for site in of_events) == sum(event.dur_ns or 0 for event in b.events)


def test_a_recording_without_events_has_no_timeline() -> None:
    source = Source("", "live", 0, None, (), None, None, RecordedWith())
    assert build_timeline(Context(), Report("0", source, Summary(window_ns=0))) is None


def test_every_event_is_in_one_lane(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.overhead("Buffer Flush", 30_000)
    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000, device=1)
    ctx = study(b.write(tmp_path / "t.json")).recording.context
    every: list[Rows] = [lane.rows for lane in find_event_lanes(ctx)]
    assert sorted(np.concatenate(every).tolist()) == list(range(len(ctx.events)))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_the_critical_path_is_a_lane_with_exactly_its_segments(path: Path) -> None:
    drawn, ctx, report = made(path)
    (lane,) = [lane for lane in drawn.lanes if lane.kind == "path"]
    assert lane.n_rows == 1
    slices, critical = of_row(drawn.levels[0].slices, lane.first_row), ctx.critical_path
    np.testing.assert_array_equal(slices.start_ns, critical.starts_ns)
    np.testing.assert_array_equal(slices.end_ns, critical.ends_ns)
    assert all(drawn.sites[site].is_path for site in np.unique(slices.site).tolist())
    of_path = [site for site in drawn.sites if site.is_path]
    critical_path = report.summary.critical_path
    assert critical_path is not None
    assert sum(site.total_ns for site in of_path) == lane.busy_ns == critical_path.total_ns
    assert sum(site.n for site in of_path) == lane.n
    ops = sum(site.total_ns for site in of_path if site.kind == "op")
    assert ops == sum(part.ns for part in critical_path.parts if part.kind == "operator")
