"""Functions sampled over the steps are on the critical path, in the headline and the tables."""

from pathlib import Path

import pytest

from profkit import analyze, render
from profkit.model.capture_info import SampledFunction
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.present.tables import table
from profkit.testing import TraceBuilder
from tests.sampled_steps import MS, busy_python, function, op_lines, recording

COLLECT = [
    function("main", 18, 80, callee="gc.collect"),
    function("main", 20, 20, library="torch", callee="net"),
]


def report_of(tmp_path: Path, b: TraceBuilder) -> Report:
    return analyze(b.write(tmp_path / "t.json"))


def collected(tmp_path: Path) -> Report:
    return report_of(tmp_path, recording(COLLECT, busy_python(8, 2), op_lines(aten__mm=20)))


def test_the_critical_path_has_the_function_its_line_and_its_share(tmp_path: Path) -> None:
    path = collected(tmp_path).summary.critical_path
    assert path is not None
    line = path.lines[0]
    assert (line.kind, line.location.place, line.main_name) == (
        "python",
        "train.py:18",
        "gc.collect()",
    )
    assert line.per_step_ns == 8 * MS
    assert line.share == pytest.approx(0.8)
    assert sum(line.ns for line in path.lines) == path.total_ns
    assert sum(entry.ns for entry in path.entries) == path.total_ns


def test_the_rest_of_the_python_time_keeps_no_name(tmp_path: Path) -> None:
    functions = [function("main", 18, 40, callee="gc.collect"), function("", 0, 60)]
    path = report_of(tmp_path, recording(functions, busy_python(8, 2))).summary.critical_path
    assert path is not None
    python = [line for line in path.lines if line.kind == "python"]
    assert sum(line.ns for line in python) == 3 * 8 * MS


def test_the_headline_says_what_takes_the_step_once(tmp_path: Path) -> None:
    text = headline(collected(tmp_path))
    assert "gc.collect(), called at train.py:18 in main, takes 80% of each 10.0 ms step." in text
    assert "Highest cost" not in text
    assert "No problems found" not in text


@pytest.mark.parametrize(
    ("sampled", "sentence"),
    [
        (function("make_batch", 7, 90), "make_batch (train.py:7) takes 90% of each 10.0 ms step."),
        (
            function("main", 7, 90, callee="torch.save", library="torch"),
            "torch.save(), called at train.py:7 in main, takes 90% of each 10.0 ms step.",
        ),
        (
            function("main", 7, 90, callee="writer.add_histogram", library="torch"),
            "writer.add_histogram(), called at train.py:7 in main, takes 90% of each 10.0 ms step.",
        ),
        (
            function("poll", 7, 90, callee="time.sleep", waits=True),
            "time.sleep(), called at train.py:7 in poll, takes 90% of each 10.0 ms step, in which",
        ),
    ],
)
def test_the_headline_names_a_function_or_a_wait(
    tmp_path: Path, sampled: SampledFunction, sentence: str
) -> None:
    functions = [sampled, function("main", 20, 10, library="torch", callee="net")]
    b = recording(functions, busy_python(9, 1), op_lines(aten__mm=20))
    assert sentence in headline(report_of(tmp_path, b))


@pytest.mark.parametrize(
    ("python_ms", "parts_ms", "first"),
    [
        # Longer than each part of a training step, though not than all of them together.
        (4.2, (2.0, 2.0, 1.8), "torch.save(), called at train.py:9 in save, takes 42% of each"),
        (3.0, (3.5, 2.0, 1.5), "Operators take 70% of each 10.0 ms step"),
    ],
)
def test_a_function_is_named_before_a_sum_of_shorter_parts(
    tmp_path: Path, python_ms: float, parts_ms: tuple[float, float, float], first: str
) -> None:
    forward_ms, backward_ms, optimizer_ms = parts_ms

    def step(b: TraceBuilder) -> None:
        b.advance(round(python_ms * MS))
        b.compute("aten::mm", round(forward_ms * MS))
        with b.op("autograd::engine::evaluate_function: MmBackward0"):
            b.compute("aten::mm", round(backward_ms * MS))
        with b.op("Optimizer.step#SGD.step"):
            b.compute("aten::add_", round(optimizer_ms * MS))

    saving = function("save", 9, 100, callee="torch.save", library="torch")
    b = recording([saving], step, op_lines(aten__mm=20))
    assert headline(report_of(tmp_path, b)).startswith(first)


@pytest.mark.parametrize(
    ("callee", "library", "sentence"),
    [
        ("optimizer.step", "torch", "Python of torch, in optimizer.step(), called at train.py:20"),
        ("trainer.fit", "trainers", "Python of trainers, in trainer.fit(), called at train.py:20"),
        ("gc.collect", "", "gc.collect(), called at train.py:20 in main, takes"),
    ],
)
def test_a_librarys_python_around_its_operators_is_named_as_such(
    tmp_path: Path, callee: str, library: str, sentence: str
) -> None:
    functions = [function("main", 20, 100, callee=callee, library=library)]
    b = recording(functions, busy_python(7, 3), op_lines(aten__mm=20))
    text = headline(report_of(tmp_path, b))
    assert sentence in text
    assert "70% of each 10.0 ms step." in text
    assert ("No check explains most of this time" in text) == bool(library)


def test_the_functions_are_in_the_tables_of_the_steps(tmp_path: Path) -> None:
    report = collected(tmp_path)
    sampled = report.summary.sampled
    assert sampled is not None
    assert (sampled.n_steps, sampled.functions[0].callee) == (20, "gc.collect")
    assert table(report, "functions").rows[0][1:3] == (80, 24 * MS)
    text = render(report, "text", verbose=True).decode()
    assert "Python outside operators" in text
    assert "100 samples over 20 steps" in text
    assert "Python outside operators, sampled" in render(report, "html").decode()


def test_python_without_a_known_function_is_not_called_free_of_problems(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            busy_python(9, 1)(b)
    report = report_of(tmp_path, b)
    assert "No problems found" not in headline(report)
    assert "No check explains most of this time" in headline(report)
    assert "No problems found" not in render(report, "html").decode()
    assert '<p class="none partly">No check explains' in render(report, "html").decode()


def test_a_recording_full_of_operators_has_no_problems(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            busy_python(1, 9)(b)
    report = report_of(tmp_path, b)
    assert "No problems found" in headline(report)
    assert "No problems found" in render(report, "html").decode()


def test_without_lines_of_operators_the_samples_say_where_they_are(tmp_path: Path) -> None:
    functions = [
        function("main", 21, 35, library="torch", callee="loss.backward", part="backward"),
        function("alpha_bar", 16, 30),
        function("alpha_bar", 17, 10, library="torch", callee="torch.stack"),
        function("forward", 39, 20, library="torch"),
        function("main", 22, 5, library="torch", callee="opt.step"),
    ]
    report = report_of(tmp_path, recording(functions, lambda b: b.compute("aten::mm", 10 * MS)))
    assert report.summary.sampled is not None

    sampled = report.summary.sampled.with_operators
    # `main` runs the steps: that it takes 40% of them is no news.
    assert [(function.location.function, function.location.line) for function in sampled] == [
        ("alpha_bar", 16),
        ("forward", 39),
    ]
    assert [(function.n_samples, function.time_ns, function.share) for function in sampled] == [
        (40, 12 * MS, 0.4),
        (20, 6 * MS, 0.2),
    ]
    assert ": 40% in alpha_bar at train.py:16, by samples, aten::mm." in headline(report)


def test_where_lines_are_known_samples_of_operators_say_no_more(tmp_path: Path) -> None:
    b = recording(
        [function("f", 20, 100)], lambda b: b.compute("aten::mm", 10 * MS), op_lines(aten__mm=20)
    )
    report = report_of(tmp_path, b)
    assert report.summary.sampled is not None
    assert report.summary.sampled.with_operators == ()
    assert "by samples" not in headline(report)


def test_few_samples_name_no_function_with_operators(tmp_path: Path) -> None:
    functions = [function("alpha_bar", 16, 1), function("main", 20, 2, callee="net")]
    report = report_of(tmp_path, recording(functions, lambda b: b.compute("aten::mm", 10 * MS)))
    assert report.summary.sampled is not None
    assert report.summary.sampled.with_operators == ()
