"""What the critical paths consist of, compared with reckonings of their own."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from profkit.api import analyze
from profkit.engine.figures.critical_path import (
    MAX_BLOCKING,
    MAX_ENTRIES,
    MAX_LINES,
    summarize_critical_path,
)
from profkit.engine.figures.path_segments import name_of_segment
from profkit.engine.figures.path_step_times import MAX_LINES as MAX_STEP_LINES
from profkit.engine.figures.path_steps import MAX_SEGMENTS
from profkit.index.host.source import NO_FRAME
from profkit.index.replay.replay import MAX_UNEXPLAINED_SHARE
from profkit.model.capture_info import CaptureInfo, OpLines
from profkit.model.critical_path import CriticalPathSummary, PathKind, PathKindName
from profkit.model.events import HOST_CALLS, NO_ROW, Category
from profkit.model.location import Location
from profkit.testing import TraceBuilder
from tests.index.replay.test_replay import each_recording, load_context
from tests.traces import read_context


def summary_of(builder: TraceBuilder, folder: Path) -> CriticalPathSummary:
    path = summarize_critical_path(read_context(builder, folder))
    assert path is not None
    return path


def training(n_steps: int) -> TraceBuilder:
    builder = TraceBuilder(stacks=True)
    for _ in range(n_steps):
        with builder.step():
            with builder.frame("train.py", 7, "fetch"):
                builder.load(10_000)
            with builder.frame("train.py", 9, "forward"):
                builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=20_000)
            with builder.frame("train.py", 12, "log"):
                builder.synchronize()
    return builder


def test_a_step_is_its_wait_for_data_its_launch_and_its_kernel(tmp_path: Path) -> None:
    path = summary_of(training(2), tmp_path)
    assert (path.n_steps, path.total_ns, path.per_step_ns) == (2, 70_000, 35_000)
    assert [(part.kind, part.ns, part.per_step_ns, part.share) for part in path.parts] == [
        ("kernel", 40_000, 20_000, 40 / 70),
        ("data-wait", 20_000, 10_000, 20 / 70),
        ("runtime", 8_000, 4_000, 8 / 70),
        ("operator", 2_000, 1_000, 2 / 70),
    ]

    lines = [(line.kind, line.location.line, line.ns, line.n_segments) for line in path.lines]
    assert lines == [
        ("kernel", 9, 40_000, 2),
        ("data-wait", 7, 20_000, 2),
        ("runtime", 9, 8_000, 2),
        ("operator", 9, 2_000, 2),
    ]

    names = [
        "gemm",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "cudaLaunchKernel",
        "aten::mm",
    ]
    assert [line.main_name for line in path.lines] == names
    assert [entry.name for entry in path.entries] == names
    assert [entry.location.op for entry in path.entries] == ["aten::mm", None, *2 * ["aten::mm"]]

    (call,) = path.blocking
    assert (call.call, call.location.line, call.ns, call.n_calls) == (
        "cudaDeviceSynchronize",
        12,
        40_000,
        2,
    )
    assert (path.unexplained_ns, path.is_explained) == (0, True)


def test_a_line_names_what_takes_most_of_its_time(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(), stacks=True)
    with builder.step(), builder.frame("net.py", 3, "forward"):
        for name, dur_ns in (("aten::mm", 30_000), ("aten::add", 20_000), ("aten::mm", 30_000)):
            builder.compute(name, dur_ns)
    (line,) = summary_of(builder, tmp_path).lines
    assert (line.kind, line.ns, line.share, line.n_segments) == ("operator", 80_000, 1, 3)
    assert (line.main_name, line.main_share) == ("aten::mm", 60 / 80)


def test_the_operators_of_a_function_are_added_over_its_lines(tmp_path: Path) -> None:
    names = ["aten::mm", "aten::add", "aten::mul", "aten::exp"]
    places = ((11, "forward"), (12, "forward"), (31, "forward"), (50, "main"))
    frames = [("/w/net.py", line, function, 1) for line, function in places]
    lines = OpLines(
        same_window=False,
        names=names,
        frames=frames,
        modules=[],
        name=[0, 1, 2, 3],
        parent=[-1] * 4,
        thread=[1] * 4,
        external_id=[-1] * 4,
        frame=[0, 1, 2, 3],
        module=[-1] * 4,
        first_lines=[10, 10, 30, 0],
    )
    builder = TraceBuilder(
        device_names=(), capture=CaptureInfo(version="1", name="train", lines=lines)
    )
    for _ in range(2):
        with builder.step():
            for name, dur_ns in zip(names, (30_000, 20_000, 40_000, 10_000), strict=True):
                builder.compute(name, dur_ns)

    functions = summary_of(builder, tmp_path).functions
    # Of two functions with one name each is its own, and one that has no known definition none.
    assert [(function.first_line, function.location.line) for function in functions] == [
        (10, 11),
        (30, 31),
    ]
    assert [(function.ns, function.per_step_ns, function.share) for function in functions] == [
        (100_000, 50_000, 0.5),
        (80_000, 40_000, 0.4),
    ]
    assert [(function.line_share, function.n_events) for function in functions] == [
        (0.3, 4),
        (0.4, 2),
    ]


def test_the_function_that_runs_the_steps_and_the_top_level_are_left_out(tmp_path: Path) -> None:
    names = ["aten::mm", "aten::add", "Optimizer.step#SGD.step"]
    lines = OpLines(
        same_window=False,
        names=names,
        frames=[("/w/t.py", 40, "<module>", 1), ("/w/t.py", 11, "f", 1), ("/w/t.py", 21, "fit", 1)],
        modules=[],
        name=[0, 1, 2],
        parent=[-1] * 3,
        thread=[1] * 3,
        external_id=[-1] * 3,
        frame=[0, 1, 2],
        module=[-1] * 3,
        first_lines=[1, 10, 20],
    )
    builder = TraceBuilder(
        device_names=(), capture=CaptureInfo(version="1", name="train", lines=lines)
    )
    for _ in range(2):
        with builder.step():
            builder.compute("aten::mm", 30_000)
            builder.compute("aten::add", 20_000)
            with builder.annotation("Optimizer.step#SGD.step"):
                builder.compute("aten::add_", 10_000)

    assert [function.first_line for function in summary_of(builder, tmp_path).functions] == [10]


def test_python_is_named_by_its_function_and_by_nothing_without_stacks(tmp_path: Path) -> None:
    for stacks, name in ((True, "work (train.py:4)"), (False, "")):
        builder = TraceBuilder(device_names=(), stacks=stacks)
        with builder.step():
            if stacks:
                with builder.frame("train.py", 4, "work"):
                    builder.advance(50_000)
            else:
                builder.advance(50_000)
            builder.compute("aten::add", 1_000)
        first = summary_of(builder, tmp_path).entries[0]
        assert (first.kind, first.name, first.ns) == ("python", name, 50_000)


def test_monitoring_within_the_recording_is_not_on_it(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.step(), builder.frame("serve.py", 3, "serve"):
        monitor = builder.frame("profkit/capture/run/step_detection.py", 9, "_on_module")
        with monitor, builder.frame("enum.py", 1, "__hash__"):
            builder.advance(20_000)
        window = builder.frame("profkit/capture/run/run_window.py", 9, "_begin")
        with window, builder.frame("threading.py", 1, "start"):
            builder.advance(10_000)
        with builder.frame("profkit/capture/run/step_detection.py", 7, "step"):
            builder.compute("aten::mm", 10_000)
    lines = summary_of(builder, tmp_path).lines
    assert [(line.kind, line.location.file, line.main_name, line.ns) for line in lines] == [
        ("operator", "serve.py", "aten::mm", 10_000),
    ]


def test_the_start_of_the_recording_is_not_on_it(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.step(), builder.frame("serve.py", 3, "serve"):
        with builder.frame("profkit/capture/recording/session.py", 9, "begin"):
            with builder.frame("torch/autograd/profiler.py", 4, "_start_trace"):
                builder.advance(30_000)
            with builder.frame("pathlib.py", 7, "read_text"):
                builder.advance(20_000)
            builder.advance(1_000)
        builder.compute("aten::mm", 10_000)
    lines = summary_of(builder, tmp_path).lines
    assert [(line.kind, line.location.file, line.main_name, line.ns) for line in lines] == [
        ("operator", "serve.py", "aten::mm", 10_000),
    ]


def test_a_region_that_profkit_opens_outlives_the_call_that_opens_it(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.step(), builder.frame("serve.py", 3, "serve"):
        with builder.frame("profkit/capture/recording/session.py", 9, "_open_annotation"):
            region = builder.annotation("serve")
            region.__enter__()
            builder.advance(1_000)
        with builder.frame("serve.py", 5, "answer"):
            builder.advance(30_000)
        region.__exit__(None, None, None)
    lines = summary_of(builder, tmp_path).lines
    assert [(line.main_name, line.ns) for line in lines] == [("answer (serve.py:5)", 30_000)]


def test_a_call_without_an_end_that_began_to_record_encloses_the_program(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    begin = builder.frame("profkit/capture/recording/session.py", 9, "begin")
    start = builder.frame("torch/autograd/profiler.py", 4, "_start_trace")
    with builder.step(), begin, start:
        builder.compute("aten::mm", 10_000)
    (line,) = summary_of(builder, tmp_path).lines
    assert (line.kind, line.main_name) == ("operator", "aten::mm")


def test_kernels_that_no_later_step_waits_for_are_not_on_it(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        with builder.step():
            builder.compute("aten::prepare", 95_000)
            builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=60_000)
    path = summary_of(builder, tmp_path)
    # Each kernel runs while the host prepares the next step; only the last one is waited for.
    assert path.total_ns == 4 * 100_000 + 60_000
    assert {part.kind: part.ns for part in path.parts}["kernel"] == 60_000


def test_steps_with_other_code_in_between_have_paths_of_their_own(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        with builder.step():
            builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=60_000)
        builder.compute("aten::evaluate", 500_000)
    path = summary_of(builder, tmp_path)
    assert path.total_ns == 3 * 65_000
    assert {part.kind: part.ns for part in path.parts}["kernel"] == 3 * 60_000


def test_the_path_of_device_work_alone_follows_the_streams(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        with builder.step():
            begun = builder.now_ns
            builder.kernel("gemm", 50_000, at_ns=begun)
            builder.kernel("ncclDevKernel_AllReduce", 30_000, stream=9, at_ns=begun + 50_000)
            builder.kernel("gemm", 19_000, at_ns=begun + 80_000)
            builder.advance(100_000)
    path = summary_of(builder, tmp_path)
    kinds = {part.kind: part.ns for part in path.parts}
    assert kinds["kernel"] == 3 * 69_000
    assert kinds["communication"] == 3 * 30_000
    assert path.is_explained


def test_collectives_that_the_host_waits_for_are_collectives(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    for _ in range(3):
        with builder.step():
            builder.compute("aten::mm", 20_000)
            with builder.thread(3000), builder.annotation("gloo:all_reduce"):
                builder.advance(80_000)
            builder.compute("aten::add_", 5_000)
    kinds = {part.kind: part.ns for part in summary_of(builder, tmp_path).parts}
    assert kinds["communication"] == 3 * 80_000


def test_without_steps_it_is_the_path_of_the_recording(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=20_000)
    path = summary_of(builder, tmp_path)
    assert (path.n_steps, path.per_step_ns, path.total_ns) == (0, None, 25_000)
    assert path.parts[0].per_step_ns is None


def test_a_recording_without_events_has_none(tmp_path: Path) -> None:
    assert analyze(TraceBuilder().write(tmp_path / "t.json")).summary.critical_path is None


@each_recording
def test_kinds_add_up_to_the_steps_and_no_list_exceeds_them(path: Path) -> None:
    ctx = load_context(path)
    critical_path = summarize_critical_path(ctx)
    starts, ends = ctx.replay.windows
    lengths = (ends - starts).tolist()
    if critical_path is None:
        assert sum(lengths) == 0 or not ctx.has_program
        return

    assert critical_path.total_ns == sum(lengths) == sum(part.ns for part in critical_path.parts)
    assert critical_path.per_step_ns == (
        round(sum(lengths) / len(lengths)) if len(ctx.steps) else None
    )
    assert sum(part.share for part in critical_path.parts) == pytest.approx(1)

    by_kind = {part.kind: part.ns for part in critical_path.parts}
    for groups in (critical_path.lines, critical_path.entries):
        kinds: dict[PathKindName, int] = defaultdict(int)
        for group in groups:
            kinds[group.kind] += group.ns
        assert all(kinds[kind] <= by_kind[kind] for kind in kinds)
        assert [line.ns for line in groups] == sorted((line.ns for line in groups), reverse=True)
    assert critical_path.unexplained_ns <= critical_path.total_ns
    assert critical_path.is_explained == (critical_path.unexplained_share <= MAX_UNEXPLAINED_SHARE)


@each_recording
def test_segments_tile_each_step(path: Path) -> None:
    ctx = load_context(path)
    critical_path = summarize_critical_path(ctx)
    if critical_path is None:
        return
    starts, ends = ctx.replay.windows

    lengths = [length for length in (ends - starts).tolist() if length]
    assert [step.makespan_ns for step in critical_path.steps] == lengths
    assert (
        sum(step.unexplained_lag_ns for step in critical_path.steps) == critical_path.unexplained_ns
    )
    for path_step in critical_path.steps:
        assert sum(segment.ns for segment in path_step.segments) == path_step.makespan_ns
        assert path_step.unexplained_lag_ns <= path_step.makespan_ns
        assert all(segment.ns > 0 for segment in path_step.segments)
        assert path_step.step in (ctx.steps.names if len(ctx.steps) else ("",))

    n_segments = sum(len(step.segments) for step in critical_path.steps)
    assert n_segments <= max(MAX_SEGMENTS, len(lengths))


@each_recording
def test_parts_and_lines_of_the_steps_are_those_of_all_steps(path: Path) -> None:
    critical_path = summarize_critical_path(load_context(path))
    if critical_path is None:
        return
    kinds: dict[str, int] = defaultdict(int)
    lines: dict[tuple[str, Location], list[int]] = defaultdict(lambda: [0, 0, 0])
    for step in critical_path.steps:
        assert sum(part.ns for part in step.parts) == step.makespan_ns
        assert [line.ns for line in step.lines] == sorted((x.ns for x in step.lines), reverse=True)
        for part in step.parts:
            kinds[part.kind] += part.ns
        for line in step.lines:
            total = lines[line.kind, line.location]
            for i, number in enumerate((line.ns, line.n_segments, line.n_events)):
                total[i] += number

    assert kinds == {part.kind: part.ns for part in critical_path.parts}
    assert sum(len(step.lines) for step in critical_path.steps) <= MAX_STEP_LINES
    # The time of sampled functions is a part of the lines in which they run.
    if not any(line.n_segments == 0 for line in critical_path.lines):
        for line in critical_path.lines[:3]:
            assert lines[line.kind, line.location][0] == line.ns
            assert lines[line.kind, line.location][1] == line.n_segments


def test_a_long_path_has_the_exact_parts_of_each_step(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=(), stacks=True)
    for n_operators in (400, 400, 900):
        with b.step(), b.frame("train.py", 9, "forward"):
            for _ in range(n_operators):
                b.compute("aten::add", 3_000)
                b.advance(1_000)

    # Segments of 1 µs and of 3 µs are joined to few, which have the kind that takes most of them.
    for step, n in zip(summary_of(b, tmp_path).steps, (400, 400, 900), strict=True):
        assert len(step.segments) < n
        parts = {part.kind: part.ns for part in step.parts}
        assert parts["operator"] == n * 3_000
        assert parts["python"] == step.makespan_ns - n * 3_000
        operators = next(line for line in step.lines if line.kind == "operator")
        assert (operators.ns, operators.n_events) == (n * 3_000, n)
        assert operators.share == n * 3_000 / step.makespan_ns
        assert (operators.location.line, operators.main_name) == (9, "aten::add")


@each_recording
def test_lines_and_entries_equal_a_sum_over_single_segments(path: Path) -> None:
    ctx = load_context(path)
    critical_path, critical = summarize_critical_path(ctx), ctx.critical_path
    if critical_path is None:
        return
    launch = dict(zip(ctx.launches.work.tolist(), ctx.launches.launch.tolist(), strict=True))
    op = dict(zip(ctx.launches.work.tolist(), ctx.launches.op.tolist(), strict=True))
    entries: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    lines: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    causes: dict[tuple[str, int], set[int]] = defaultdict(set)
    columns = (critical.kind, critical.row, critical.lengths_ns)
    for kind, row, ns in zip(*(column.tolist() for column in columns), strict=True):
        if kind == PathKind.UNRECORDED:
            continue
        cause = launch[row] if launch.get(row, NO_ROW) != NO_ROW else op.get(row, row)
        frame = NO_FRAME if cause == NO_ROW else int(ctx.source.frame[cause])
        is_named = row != NO_ROW and row not in ctx.steps.annotations
        name = name_of_segment(ctx, kind, int(ctx.events.name[row]) if is_named else -1)
        kind_name = PathKind(kind).name.lower().replace("_", "-")
        for total in (entries[kind_name, name, frame], lines[kind_name, frame]):
            total[0] += ns
            total[1] += 1
        causes[kind_name, frame] |= {cause} - {NO_ROW}
    n_events = {(kind, *lines[kind, frame]): len(rows) for (kind, frame), rows in causes.items()}

    recorded = [line for line in critical_path.lines if line.kind != "unrecorded"]
    assert {(line.kind, line.ns, line.n_segments): line.n_events for line in recorded}.items() <= (
        n_events.items()
    )

    for every, shown, limit in (
        (entries, critical_path.entries, MAX_ENTRIES),
        (lines, critical_path.lines, MAX_LINES),
    ):
        assert len(shown) <= limit
        of_known = [row for row in shown if row.kind != "unrecorded"]
        longest = sorted((ns for ns, _ in every.values()), reverse=True)
        assert [group.ns for group in of_known] == longest[: len(of_known)]
        assert len(shown) == limit or len(of_known) == len(every)
        expected = [(key[0], *total) for key, total in every.items()]
        assert all((group.kind, group.ns, group.n_segments) in expected for group in of_known)
    expected_names = {(kind, name, ns) for (kind, name, _), (ns, _) in entries.items()}
    assert {(e.kind, e.name, e.ns) for e in critical_path.entries if e.kind != "unrecorded"} <= (
        expected_names
    )


@each_recording
def test_host_segments_have_the_innermost_event_of_their_thread(path: Path) -> None:
    """A sample of segments, each against a scan over all events."""
    ctx = load_context(path)
    critical, events = ctx.critical_path, ctx.events
    is_op = critical.kind == PathKind.OPERATOR
    on_host = np.flatnonzero(is_op | (critical.kind == PathKind.RUNTIME))
    categories = {PathKind.OPERATOR: [Category.OP], PathKind.RUNTIME: list(HOST_CALLS)}
    for i in on_host[:: max(1, len(on_host) // 30)].tolist():
        row, start, end = critical.row[i], critical.starts_ns[i], critical.ends_ns[i]
        assert events.category[row] in categories[critical.kind[i]]
        around = (events.lane == critical.lane[i]) & (events.ts_ns <= start)
        around &= (events.end_ns >= end) & (events.category != Category.ANNOTATION)
        around &= np.isin(np.arange(len(events)), ctx.tree.rows)
        assert events.dur_ns[row] == events.dur_ns[around].min()


@each_recording
def test_blocking_calls_overlap_the_path_on_devices(path: Path) -> None:
    ctx = load_context(path)
    critical_path, critical, events = summarize_critical_path(ctx), ctx.critical_path, ctx.events
    expected: dict[str, int] = defaultdict(int)
    on_device = np.flatnonzero(critical.lane == NO_ROW)
    starts, ends = critical.starts_ns[on_device], critical.ends_ns[on_device]
    for row in ctx.syncs.rows.tolist():
        inside = np.minimum(ends, events.end_ns[row]) - np.maximum(starts, events.ts_ns[row])
        expected[events.name_of(row)] += int(inside[inside > 0].sum())
    shown: dict[str, int] = defaultdict(int)
    for call in critical_path.blocking if critical_path else ():
        shown[call.call] += call.ns
    if critical_path is not None and len(critical_path.blocking) < MAX_BLOCKING:
        assert shown == {name: ns for name, ns in expected.items() if ns}


def test_lengths_of_segments_are_not_computed_again_for_each_step(tmp_path: Path) -> None:
    path = read_context(training(2), tmp_path).critical_path
    assert path.lengths_ns is path.lengths_ns
