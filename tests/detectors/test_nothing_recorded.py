"""nothing-recorded reports a trace that has no event of the program."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder

RULE = "nothing-recorded"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def by_profiler() -> TraceBuilder:
    """Build what the profiler records of itself: queries, overhead, and the wait at the end."""
    b = TraceBuilder()
    b.call("GetDeviceCount", 1_000)
    b.overhead("Activity Buffer Request", 2_000)
    b.synchronize()
    return b


def test_a_recording_of_the_profiler_alone_is_reported(found: Found) -> None:
    (finding,) = found(by_profiler(), RULE)
    assert (finding.rule, finding.severity) == ("PRF008", "warning")
    assert finding.evidence == {"n_events": 3, "n_runtime_calls": 2}
    assert finding.message == (
        "The recording of 7.00 µs has no operator, no Python call and no device work."
    )
    assert "wait + warmup + active" in finding.fix


def test_a_recording_of_the_profiler_alone_has_no_critical_path(analyzed: Analyzed) -> None:
    assert analyzed(by_profiler(), RULE).summary.critical_path is None


def test_a_file_without_any_event_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": []}))
    (finding,) = analyze(path, select=[RULE], strict=True).health
    assert finding.message.startswith("The recording has no operator")


def test_the_headline_says_that_and_what_to_do(analyzed: Analyzed) -> None:
    text = headline(analyzed(by_profiler(), RULE))
    assert text.startswith("The recording of 7.00 µs has no operator")
    assert "Run the program while the profiler records" in text
    assert "No problems found" not in text


def _operator(b: TraceBuilder) -> None:
    b.compute("aten::mm", 1_000)


def _frame(b: TraceBuilder) -> None:
    with b.frame("train.py", 3, "main"):
        b.advance(1_000)


def _region(b: TraceBuilder) -> None:
    with b.annotation("train"):
        b.advance(1_000)


def _kernel(b: TraceBuilder) -> None:
    b.kernel("gemm", 1_000)


def _launch(b: TraceBuilder) -> None:
    b.call("LaunchKernel", 1_000)


def _allocation(b: TraceBuilder) -> None:
    b.alloc(512)


@pytest.mark.parametrize("record", [_operator, _frame, _region, _kernel, _launch, _allocation])
def test_one_event_of_the_program_is_enough(
    found: Found, record: Callable[[TraceBuilder], None]
) -> None:
    b = by_profiler()
    record(b)
    assert found(b, RULE) == ()


def test_an_event_of_unknown_kind_may_be_the_programs(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "npu_op", "name": "x", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert analyze(path, select=[RULE], strict=True).health == ()
