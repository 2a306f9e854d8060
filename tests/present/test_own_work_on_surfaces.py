"""profkit's threads, calls and time are on no surface: each shows the program alone."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from profkit.api import AnalysisResult, analyze, render, study
from profkit.errors import UsageError
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import HIDDEN
from profkit.model.flame import FLAMES
from profkit.present.explanation import explain
from profkit.present.flames import flames
from profkit.present.renderer import renderers
from profkit.present.timeline import build_timeline
from profkit.testing import TraceBuilder
from profkit.testing.event_recorder import MAIN_THREAD
from tests.renderers.trace_viewer import check, events_of

OURS = ("profkit/c", "profkit/_", "click/", "runpy", "stack_sampler", "aten::ones", "thread 41")
SAMPLER, NEW = 41, 42
LAUNCHER = (
    ("<frozen runpy>", 88, "_run_code"),
    ("profkit/__main__.py", 8, "<module>"),
    ("click/core.py", 2054, "invoke"),
    ("profkit/cli/run.py", 121, "command"),
    ("train.py", 1, "<module>"),
    ("train.py", 9, "main"),
)
STEP_NS = 16_000
"""What the program does in each step: 1 µs of Python, an operator, a kernel's launch and a read."""


def build_training(*, own: bool, mark: bool = False) -> TraceBuilder:
    """Build a training loop of three steps, with or without profkit's work in it."""
    builder = TraceBuilder(stacks=True)
    builder.capture = CaptureInfo(
        version="1",
        name="train",
        steps="user",
        pid=MAIN_THREAD,
        argv=["/home/me/train.py"],
        paths={"train.py": "/home/me/train.py"},
    )

    with ExitStack() as stack:
        for call in LAUNCHER if own else LAUNCHER[4:]:
            stack.enter_context(builder.frame(*call))
            builder.advance(10)
        if own:
            profkits_threads(builder)
        for _ in range(3):
            with builder.step():
                if own:
                    profkits_work(builder, mark=mark)
                with ExitStack() as wrapped:
                    if own:
                        wrapper = ("profkit/capture/process/wrappers.py", 164, "wrapper")
                        wrapped.enter_context(builder.frame(*wrapper))
                    one_step(builder)
                if own:
                    profkits_work(builder, mark=mark)

    return builder


def profkits_threads(builder: TraceBuilder) -> None:
    start_ns = builder.now_ns
    sampler = ("profkit/capture/process/stack_sampler.py", 219, "_run")
    with builder.thread(SAMPLER), builder.frame(*sampler), builder.builtin("function sleep"):
        builder.advance(9_000)
    builder.now_ns = start_ns
    waiting = builder.frame("profkit/capture/process/new_thread.py", 14, "in_new_thread")
    with waiting, builder.thread(NEW):
        builder.compute("aten::ones", 5_000)


def profkits_work(builder: TraceBuilder, *, mark: bool) -> None:
    """Work between the steps' operators: as marked, or as a call of profkit."""
    around = (
        builder.annotation("profkit: stop")
        if mark
        else builder.frame("profkit/capture/recording/profiler.py", 226, "stop")
    )
    with around:
        builder.advance(30_000)
        builder.synchronize()


def one_step(builder: TraceBuilder) -> None:
    with builder.frame("train.py", 12, "train_step"):
        builder.advance(1_000)
        builder.compute("aten::mul", 5_000)
        builder.launch("aten::mm", kernel="gemm", host_ns=6_000, device_ns=2_000)
        builder.synchronize()


@pytest.fixture(scope="module", params=[False, True], ids=["call", "mark"])
def studied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AnalysisResult:
    folder = tmp_path_factory.mktemp("own")
    return study(build_training(own=True, mark=request.param).write(folder / "t.pt.trace.json"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    folder = tmp_path_factory.mktemp("plain")
    return study(build_training(own=False).write(folder / "t.pt.trace.json"))


def shows_ours(text: str) -> list[str]:
    return [word for word in OURS if word in text]


def test_steps_parts_and_path_agree_with_the_program_alone(
    studied: AnalysisResult, plain: AnalysisResult
) -> None:
    for shown, alone in ((studied.report.summary, plain.report.summary),):
        assert [step.dur_ns for step in shown.steps] == [STEP_NS] * 3
        assert shown.breakdown is not None
        assert alone.breakdown is not None
        assert shown.breakdown.parts == alone.breakdown.parts
        assert shown.critical_path is not None
        assert alone.critical_path is not None
        assert shown.critical_path.parts == alone.critical_path.parts
        assert shown.critical_path.lines == alone.critical_path.lines
        assert [step.n_syncs for step in shown.steps] == [step.n_syncs for step in alone.steps]
        assert shown.top_ops == alone.top_ops
        assert shown.sync_sites == alone.sync_sites


def test_findings_tell_what_they_tell_of_the_program_alone(
    studied: AnalysisResult, plain: AnalysisResult
) -> None:
    def told(found: AnalysisResult) -> list[tuple[str, str]]:
        return [(finding.rule, finding.message) for finding in found.report.findings]

    assert told(studied) == told(plain)


@pytest.mark.parametrize("name", list(FLAMES))
def test_flame_graphs_have_the_programs_calls_alone(
    studied: AnalysisResult, plain: AnalysisResult, name: str
) -> None:
    def sites(found: AnalysisResult) -> list[set[tuple[str, str]]]:
        every = flames(found.recording.context, (name,))
        return [{(site.kind, site.name) for site in flame.sites} for flame in every]

    assert sites(studied) == sites(plain)


def test_the_flame_graph_of_host_time_leaves_profkits_time_to_nobody(
    studied: AnalysisResult, plain: AnalysisResult
) -> None:
    (flame,) = flames(studied.recording.context, ("host-stack",))
    (alone,) = flames(plain.recording.context, ("host-stack",))
    assert int(flame.own.sum()) == int(alone.own.sum())


def test_the_timeline_has_the_programs_threads_alone(
    studied: AnalysisResult, plain: AnalysisResult
) -> None:
    def lanes(found: AnalysisResult) -> list[tuple[str, int, int]]:
        drawn = build_timeline(found.recording.context, found.report)
        assert drawn is not None
        assert not shows_ours(" ".join(f"{site.name} {site.frame}" for site in drawn.sites))
        return [(lane.label, lane.n_rows, lane.n) for lane in drawn.lanes]

    assert lanes(studied) == lanes(plain)
    assert "train.py" in [label for label, _, _ in lanes(studied)]


def test_a_finding_is_called_from_the_program_alone(studied: AnalysisResult) -> None:
    rule = next(
        finding.rule for finding in studied.report.findings if finding.evidence.get("events")
    )
    calls = explain(studied.report, studied.recording, rule).calls
    assert [(frame.file, frame.function) for frame in calls] == [
        ("/home/me/train.py", name) for name in ("<module>", "main", "train_step")
    ]


# A Parquet file has all events as recorded, with their categories.
@pytest.mark.parametrize(
    "name", sorted({renderer.INFO.name for renderer in renderers()} - {"parquet"})
)
def test_no_format_shows_profkits_calls(studied: AnalysisResult, name: str) -> None:
    try:
        product = render(studied.report, name, recording=studied.recording)
    except UsageError:
        product = render(studied.report, name)
    assert not shows_ours(product.decode("utf-8", "replace"))


def test_an_exported_trace_keeps_the_ids_of_events(studied: AnalysisResult, tmp_path: Path) -> None:
    product = render(studied.report, "chrome", recording=studied.recording)

    assert isinstance(product, bytes)
    check(events_of(product))
    written = json.loads(product)["traceEvents"]
    events = studied.recording.context.events
    for row in range(len(events)):
        if events.category[row] not in HIDDEN:
            assert written[events.position[row]]["name"] == events.name_of(row)
    again = tmp_path / "again.pt.trace.json"
    again.write_bytes(product)
    report = analyze(again)
    assert [finding.evidence.get("events") for finding in report.findings] == [
        finding.evidence.get("events") for finding in studied.report.findings
    ]
    assert [step.dur_ns for step in report.summary.steps] == [STEP_NS] * 3


def steps_of(builder: TraceBuilder, tmp_path: Path) -> list[int]:
    report = analyze(builder.write(tmp_path / "t.pt.trace.json"))
    assert report.summary.breakdown is not None
    assert report.summary.breakdown.total_ns == sum(step.dur_ns for step in report.summary.steps)
    return [step.dur_ns for step in report.summary.steps]


def by_profiler_step(builder: TraceBuilder, number: int) -> Any:  # noqa: ANN401  (a context)
    return builder.step(f"ProfilerStep#{number}")


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("on_device", [False, True])
def test_marked_time_within_a_step_is_not_the_steps(
    tmp_path: Path, where: str, *, on_device: bool
) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        with builder.step():
            for place in ("first", "middle", "last"):
                if place == where:
                    with builder.annotation("profkit: memory"):
                        builder.advance(50_000)
                if on_device:
                    builder.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=2_000)
                    builder.synchronize()
                else:
                    builder.compute("aten::mm", 10_000)
    assert steps_of(builder, tmp_path) == [3 * (14_000 if on_device else 10_000)] * 3


@pytest.mark.parametrize(
    "delimit",
    [
        lambda builder: builder.annotation("Optimizer.step#SGD.step"),
        lambda builder: builder.annotation("enumerate(DataLoader)#_SingleProcess.__next__"),
    ],
    ids=["optimizer", "loader"],
)
def test_marked_time_between_steps_found_by_marks_is_not_steps(
    tmp_path: Path, delimit: Callable[[TraceBuilder], Any]
) -> None:
    builder = TraceBuilder()
    for _ in range(6):
        builder.compute("aten::mm", 10_000)
        with delimit(builder):
            builder.compute("aten::add_", 1_000)
        with builder.annotation("profkit: stop"):
            builder.advance(50_000)
    assert set(steps_of(builder, tmp_path)) == {11_000}


def test_a_device_that_works_while_profkit_does_is_busy(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(3):
        with builder.step():
            builder.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=40_000)
            with builder.annotation("profkit: memory"):
                builder.advance(50_000)
            builder.synchronize()
    report = analyze(builder.write(tmp_path / "t.pt.trace.json"))
    assert [step.gpu_busy_ns for step in report.summary.steps] == [40_000] * 3
    assert report.summary.breakdown is not None
    assert report.summary.breakdown.total_ns == sum(step.dur_ns for step in report.summary.steps)
