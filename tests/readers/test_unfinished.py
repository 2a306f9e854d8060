"""Operators and annotations that torch closed when it stopped have no length and no figure."""

import json
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.events import Category
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from profkit.testing.trace_format import Format
from tests.corpus.recordings import CORPUS
from tests.traces import load_trace

CASE = CORPUS.parent / "cases" / "unfinished_annotation.json"


def stopped_in_step(n_steps: int = 3) -> TraceBuilder:
    """Build a recording that stops within the last step's optimizer and closes both late."""
    builder = TraceBuilder(device_names=())
    for _ in range(n_steps):
        with builder.step():
            builder.compute("aten::mm", 800_000)
            with builder.annotation("Optimizer.step#SGD.step"):
                builder.compute("aten::add_", 100_000)
    with builder.step() as step:
        builder.compute("aten::mm", 800_000)
        with builder.annotation("Optimizer.step#SGD.step") as optimizer:
            builder.advance(8_000_000)
    builder.stop_within(step, optimizer)
    return builder


def report_on(builder: TraceBuilder, tmp_path: Path) -> Report:
    return analyze(builder.write(tmp_path / "t.pt.trace.json"), strict=True)


def parts_of(report: Report) -> dict[str, int | None]:
    assert report.summary.breakdown is not None
    return {part.kind: part.per_step_ns for part in report.summary.breakdown.parts}


def test_an_unfinished_step_and_its_optimizer_are_in_no_figure(tmp_path: Path) -> None:
    report = report_on(stopped_in_step(), tmp_path)
    assert [step.dur_ns for step in report.summary.steps] == [900_000] * 3
    assert report.summary.n_incomplete_steps == 1
    assert parts_of(report) == {"operators": 800_000, "optimizer": 100_000}
    assert report.summary.critical_path is not None
    assert report.summary.critical_path.total_ns == 3 * 900_000
    # The recording ends with the last event whose end is known.
    assert report.summary.window_ns == 3 * 900_000 + 800_000


@pytest.mark.parametrize("written", [False, "false", "False", 0, "0"])
def test_the_mark_is_read_however_it_is_written(tmp_path: Path, written: object) -> None:
    builder = stopped_in_step()
    for event in builder.events:
        if event.args is not None and "finished" in event.args:
            event.args["finished"] = written
    assert report_on(builder, tmp_path).summary.n_incomplete_steps == 1


@pytest.mark.parametrize("written", [True, "true", 1, None, "maybe", [], {}])
def test_what_is_not_marked_as_unfinished_counts(tmp_path: Path, written: object) -> None:
    builder = stopped_in_step()
    for event in builder.events:
        if event.args is not None and "finished" in event.args:
            event.args["finished"] = written
    events = load_trace(builder.write(tmp_path / "t.pt.trace.json")).events
    assert not len(events.rows_of(Category.UNFINISHED))


@pytest.mark.parametrize("begin_end", [False, True])
def test_children_of_an_unfinished_operator_move_up(tmp_path: Path, *, begin_end: bool) -> None:
    builder = TraceBuilder(device_names=())
    with builder.annotation("train"), builder.op("outer") as outer:
        builder.compute("aten::mm", 5_000)
        builder.compute("aten::add", 3_000)
    builder.stop_within(outer)
    path = builder.write(tmp_path / "t.pt.trace.json", Format(begin_end=begin_end))
    report = analyze(path, strict=True)
    times_of = {op.name: (op.total_ns, op.self_ns) for op in report.summary.top_ops}
    assert times_of == {"aten::mm": (5_000, 5_000), "aten::add": (3_000, 3_000)}


def test_an_unfinished_region_is_neither_a_step_nor_a_region(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    for number in range(4):
        with builder.annotation("batch") as batch:
            builder.compute("aten::mm", 10_000 if number < 3 else 90_000)
    builder.stop_within(batch)
    report = report_on(builder, tmp_path)
    assert [step.dur_ns for step in report.summary.steps] == [10_000] * 3


def test_a_python_call_ends_where_the_recording_ends(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(), stacks=True)
    with builder.frame("train.py", 3, "train") as call:
        builder.compute("aten::mm", 5_000)
    builder.stop_within(call)
    events = load_trace(builder.write(tmp_path / "t.pt.trace.json")).events
    assert events.dur_ns[events.rows_of(Category.PYTHON)].tolist() == [5_000]


def test_a_note_tells_what_the_profiler_was_stopped_within(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    for _ in range(3):
        with builder.annotation("batch"):
            builder.compute("aten::mm", 10_000)
    with (
        builder.annotation("batch") as batch,
        builder.annotation("Optimizer.step#SGD.step") as step,
    ):
        builder.compute("aten::mul", 10_000)
    builder.stop_within(batch, step)
    notes = [finding for finding in report_on(builder, tmp_path).health if finding.rule == "PRF006"]
    assert [(note.n, note.severity) for note in notes] == [(2, "note")]
    assert "such as `batch`" in notes[0].message


def test_the_step_that_the_stop_cut_off_is_told_once(tmp_path: Path) -> None:
    report = report_on(stopped_in_step(), tmp_path)
    assert [finding.rule for finding in report.health if finding.rule == "PRF006"] == []


@pytest.mark.skipif(not CASE.is_file(), reason="the recorded case is not here")
def test_the_recorded_case_has_three_steps_of_a_millisecond(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(json.loads(CASE.read_text())))
    report = analyze(path, strict=True)
    assert [step.dur_ns for step in report.summary.steps] == [1_000_000] * 3
    assert parts_of(report)["optimizer"] == 100_000
