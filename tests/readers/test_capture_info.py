"""The record of compilations in profkit's traces is read back; an invalid one is dropped."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.model.capture_info import (
    CaptureInfo,
    Compiled,
    Compiles,
    GraphBreak,
    HostThreads,
    LoaderWorkers,
    OpLines,
    SampledFunction,
    SampledTime,
)
from profkit.present.diagnosis import headline
from profkit.present.tables import table
from profkit.testing import TraceBuilder
from tests.traces import load_trace

COMPILES = Compiles(
    [Compiled("0/1", ("/a.py", 3, "f"), caller=("/b.py", 4, "g"), again=True, reason="n == 3")],
    [GraphBreak("print", [("/a.py", 3, "f")], user=0, n=2)],
    n_left_out=1,
)
HUGE = 10**40


def written(path: Path, compiles: object) -> Path:
    b = TraceBuilder(capture=CaptureInfo(version="1", name="run", compiles=COMPILES))
    for _ in range(2):
        with b.step(), b.op("Torch-Compiled Region: 0/1"):
            with b.op("dynamo"):
                b.advance(1_000)
            b.compute("aten::mm", 1_000)
            with b.op("Torch-Compiled Region: 1/1"):
                b.compute("aten::mm", 1_000)
    file = b.write(path)
    document = json.loads(file.read_text())
    document["profkit"]["compiles"] = compiles
    file.write_text(json.dumps(document))
    return file


def test_the_record_is_read_back_unchanged(tmp_path: Path) -> None:
    b = TraceBuilder(capture=CaptureInfo(version="1", name="run", compiles=COMPILES))
    b.compute("aten::mm", 1_000)
    capture = load_trace(b.write(tmp_path / "t.json")).capture
    assert capture is not None
    assert capture.compiles == COMPILES


@pytest.mark.parametrize(
    "compiles",
    [
        3, "x", [], {"compiled": 3}, {"compiled": [3]}, {"compiled": [{"number": []}]},
        {"breaks": [{"reason": "x"}]}, {"breaks": [{"reason": "x", "stack": [["a"]]}]},
        {"compiled": [{"code": ["a", "b", "c"]}]},
    ],
)  # fmt: skip
def test_an_invalid_record_is_dropped_and_the_rest_is_used(
    tmp_path: Path, compiles: object
) -> None:
    capture = load_trace(written(tmp_path / "t.json", compiles)).capture
    assert capture is not None
    assert capture.name == "run"
    assert capture.compiles is None


@pytest.mark.parametrize(
    "compiles",
    [
        {"compiled": [{"number": "0/1", "start_ns": HUGE, "dur_ns": -HUGE, "again": True}]},
        {"compiled": [{"number": "////", "again": True}, {"number": "-1/-1"}, {"number": "0/²"}]},
        {"compiled": [{"number": "1/1", "code": ["", -5, ""], "caller": ["", HUGE, ""]}]},
        {"compiled": [{"number": "1/1", "code": ["/a.py", 3, "torch_dynamo_resume_in_"]}],
         "breaks": [{"reason": "", "stack": [], "user": 7}]},
        {"compiled": [{"number": "1/1", "code": ["/a.py", 3, "torch_dynamo_resume_in_f_at_3"],
                       "n_ops": HUGE}],
         "breaks": [{"reason": "\x1b[31m</script>", "stack": [["/a.py", 3, "f"]], "user": 7}]},
        {"compiled": [{"number": "0/9", "failure": "recompile_limit", "reason": "\n\n"}]},
    ],
)  # fmt: skip
def test_no_rule_crashes_on_values_that_torch_would_not_write(
    tmp_path: Path, compiles: object
) -> None:
    path = written(tmp_path / "t.json", compiles)
    report = analyze(path, select=["recompiles", "graph-breaks"], strict=True)
    assert not report.unchecked


LINES = OpLines(
    same_window=True,
    names=["aten::mm", "step"],
    frames=[("/a.py", 3, "f", 1)],
    modules=["Linear_0"],
    name=[1, 0, 0],
    parent=[-1, 0, 1],
    thread=[1, 1, 1],
    external_id=[-1, 1, 2],
    frame=[-1, 0, 0],
    module=[-1, 0, 0],
)


def traced(path: Path, **changes: object) -> Path:
    capture = CaptureInfo(version="1", name="run", lines=LINES, compiles=COMPILES)
    b = TraceBuilder(capture=capture)
    for _ in range(3):
        with b.step(), b.op("step"), b.op("aten::mm"):
            b.compute("aten::mm", 1_000)
    file = b.write(path)
    document = json.loads(file.read_text())
    document["profkit"].update(changes)
    file.write_text(json.dumps(document))
    return file


INVALID_LINES = [
    {"parent": [1, 2, 0]},
    {"parent": [0, 0, 1]},
    {"parent": [-1, 0]},
    {"parent": [-1, 0, 1 << 70]},
    {"name": [1, 0, 2]},
    {"name": [1, 0, -1]},
    {"names": []},
    {"frames": []},
    {"frames": [["/a.py", 1 << 64, "f", 1]]},
    {"frames": [["/a.py", -1, "f", 1]]},
    {"first_lines": [1, 2]},
    {"first_lines": [-1]},
    {"first_lines": [1 << 64]},
    {"frame": []},
    {"module": [-1, 0, 1]},
    {"modules": 7},
    {"thread": [1, 1, HUGE]},
    {"external_id": [-1, 1, -HUGE]},
]


@pytest.mark.parametrize("change", INVALID_LINES)
def test_lines_that_refer_to_nothing_are_dropped_and_reported(
    tmp_path: Path, change: dict[str, object]
) -> None:
    lines = {**asdict(LINES), **change}
    path = traced(tmp_path / "t.json", lines=lines)
    capture = load_trace(path).capture
    assert capture is not None
    assert capture.lines is None
    assert capture.compiles == COMPILES
    report = analyze(path, strict=True)
    (finding,) = [finding for finding in report.health if finding.rule == "PRF006"]
    assert finding.message.endswith("is invalid and is not used: `lines`.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cost", {"overhead_ratio": 1e308}),
        ("cost", {"n_events": HUGE}),
        ("cost", {"start_ns": -1}),
        ("steps", "sometimes"),
        ("paths", {"a": 1}),
        ("argv", "train.py"),
        ("rank", HUGE),
        ("rank", -HUGE),
    ],
)
def test_each_part_is_dropped_alone(tmp_path: Path, name: str, value: object) -> None:
    trace = load_trace(traced(tmp_path / "t.json", **{name: value}))
    assert trace.notes.invalid_metadata == (name,)
    assert trace.capture is not None
    assert trace.capture.lines == LINES
    assert getattr(trace.capture, name) == getattr(CaptureInfo("1", "run"), name)


def test_without_a_version_nothing_is_used(tmp_path: Path) -> None:
    trace = load_trace(traced(tmp_path / "t.json", version=3))
    assert trace.capture is None
    assert trace.notes.invalid_metadata == ("profkit",)


def test_what_profkit_wrote_is_used_without_a_finding(tmp_path: Path) -> None:
    path = traced(tmp_path / "t.json")
    trace = load_trace(path)
    assert trace.notes.invalid_metadata == ()
    assert trace.capture is not None
    assert trace.capture.lines == LINES
    assert not [
        finding for finding in analyze(path, strict=True).health if finding.rule == "PRF006"
    ]


def test_threads_and_settings_are_read_back_unchanged(tmp_path: Path) -> None:
    threads, settings = HostThreads(8, 4, n_ranks=2, n_workers=3), {"PYTHONDEVMODE": "1"}
    info = CaptureInfo(version="1", name="run", threads=threads, settings=settings)
    capture = load_trace(TraceBuilder(capture=info).write(tmp_path / "t.json")).capture
    assert capture is not None
    assert (capture.threads, capture.settings) == (threads, settings)


@pytest.mark.parametrize(
    "threads",
    [
        HostThreads(0, 4), HostThreads(8, -1), HostThreads(8, 4, n_workers=-1),
        HostThreads(8, HUGE), HostThreads(8, 4, n_ranks=1 << 30),
    ],
)  # fmt: skip
def test_threads_that_cannot_be_are_dropped(tmp_path: Path, threads: HostThreads) -> None:
    path = TraceBuilder(capture=CaptureInfo(version="1", name="run")).write(tmp_path / "t.json")
    document = json.loads(path.read_text())
    document["profkit"]["threads"] = asdict(threads)
    path.write_text(json.dumps(document))
    capture = load_trace(path).capture
    assert capture is not None
    assert capture.threads is None


SAMPLED = SampledTime(
    interval_ns=20_000_000,
    n_samples=100,
    running_ns=1_000,
    functions=[
        SampledFunction(("/service.py", 31, "tokenize"), n=30, ns=600),
        SampledFunction(("/service.py", 9, "answer"), n=15, ns=300, library="json"),
        SampledFunction(("", 0, ""), n=5, ns=100, library="uvicorn"),
    ],
)


def of_service(path: Path, **changes: object) -> Path:
    b = TraceBuilder(capture=CaptureInfo(version="1", name="service", sampled=SAMPLED))
    with b.annotation("service"):
        b.compute("aten::mm", 1_000)
        b.advance(9_000)
    file = b.write(path)
    document = json.loads(file.read_text())
    document["profkit"]["sampled"] |= changes
    file.write_text(json.dumps(document))
    return file


def test_sampled_functions_are_in_the_report_and_its_headline(tmp_path: Path) -> None:
    report = analyze(of_service(tmp_path / "t.json"))

    sampled = report.summary.sampled
    assert sampled is not None
    assert [function.share for function in sampled.functions] == [0.6, 0.3, 0.1]
    assert [function.location.place for function in sampled.functions[:2]] == [
        "service.py:31",
        "service.py:9",
    ]
    assert ", most in tokenize at service.py:31 (60%)." in headline(report)

    text = render(report, "text").decode()
    assert "50 samples of running threads, every 20.0 ms" in text
    assert ">tokenize<" in render(report, "html").decode()
    assert [row[:3] for row in table(report, "functions").rows] == [
        ("", 30, 600),
        ("json", 15, 300),
        ("uvicorn", 5, 100),
    ]


def test_few_samples_are_shown_to_who_asks_for_all(tmp_path: Path) -> None:
    few = [{"place": ["/service.py", 31, "tokenize"], "n": 3, "ns": 600}]
    report = analyze(of_service(tmp_path / "t.json", functions=few))
    assert "tokenize" not in headline(report)
    assert "running threads" not in render(report, "text").decode()
    assert "3 samples of running threads" in render(report, "text", verbose=True).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"interval_ns": 0},
        {"interval_ns": HUGE},
        {"n_samples": -1},
        {"running_ns": 999},
        {"functions": []},
        {"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": 0}]},
        {"functions": [{"place": ["/a.py", HUGE, "f"], "n": 1, "ns": 5}]},
        {"functions": [{"place": ["/a.py", -1, "f"], "n": 1, "ns": 5}]},
        {"functions": [{"place": ["/a.py", 1, "f"], "n": 0, "ns": 5}]},
        {"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": -5}] * 2},
        {"functions": [{"place": "/a.py", "n": 1, "ns": 5}]},
        {"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": 5, "waiting_ns": 6}]},
        {"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": 5, "part": "forward"}]},
        {"n_steps": 3},
        {"steps_ns": 5},
        {"n_steps": -1, "steps_ns": 5},
        {"functions": 7},
    ],
)
def test_sampled_functions_that_do_not_hold_are_dropped(
    tmp_path: Path, change: dict[str, object]
) -> None:
    capture = load_trace(of_service(tmp_path / "t.json", **change)).capture
    assert capture is not None
    assert (capture.name, capture.sampled) == ("service", None)


WORKERS = LoaderWorkers(
    n_workers=2,
    n_samples=90,
    sampled_ns=1_000,
    fetching_ns=900,
    functions=[SampledFunction(("/data.py", 31, "augment"), n=30, ns=600)],
)


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({}, True),
        ({"functions": []}, True),
        ({"n_workers": 0}, False),
        ({"n_samples": 0}, False),
        ({"sampled_ns": HUGE}, False),
        ({"fetching_ns": 1_001}, False),
        ({"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": HUGE}]}, False),
        ({"functions": [{"place": ["/a.py", 1, "f"], "n": 0, "ns": 5}]}, False),
        ({"functions": [{"place": ["/a.py", 1, "f"], "n": 1, "ns": -5}]}, False),
    ],
)
def test_samples_of_workers_that_do_not_hold_are_dropped(
    tmp_path: Path,
    change: dict[str, object],
    is_kept: bool,  # noqa: FBT001
) -> None:
    info = CaptureInfo(version="1", name="train", loader_workers=WORKERS)
    file = TraceBuilder(capture=info).write(tmp_path / "t.json")
    document = json.loads(file.read_text())
    document["profkit"]["loader_workers"] |= change
    file.write_text(json.dumps(document))
    capture = load_trace(file).capture
    assert capture is not None
    assert (capture.loader_workers is not None) == is_kept
