"""cold-start finds the capture of CUDA graphs in a recording."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder

RULE = "cold-start"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def capture(b: TraceBuilder, n_launches: int = 500) -> None:
    """Issue operators whose launches run nothing."""
    b.call("StreamBeginCapture", 5_000)
    for _ in range(n_launches):
        with b.op("aten::mm", self_ns=15_000):
            b.call("LaunchKernel", 5_000)
    b.call("StreamEndCapture", 5_000)


def program(*, captures: bool, steps: bool = True, runtime: str = "cuda") -> TraceBuilder:
    """Three passes that replay a graph, of which the first may capture it."""
    b = TraceBuilder(runtime=runtime)
    for number in range(3):
        with b.step() if steps else nullcontext():
            b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=40_000)
            if captures and number == 0:
                capture(b)
            b.graph_launch([("gemm", 1_000)] * 500)
            b.synchronize()
    return b


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("runtime", ["cuda", "hip"])
def test_it_gives_the_time_of_the_capture(analyzed: Analyzed, runtime: str, *, steps: bool) -> None:
    report = analyzed(program(captures=True, steps=steps, runtime=runtime), RULE)
    (finding,) = report.health
    assert finding.severity == "note"
    assert finding.evidence["n_launches"] == 500
    captured_ns = finding.evidence["captured_ns"]
    assert isinstance(captured_ns, int)
    assert 9_900_000 < captured_ns <= 10_010_000
    extent = "the steps" if steps else "the recording"
    assert f" of {extent} (8" in finding.message
    assert "500 launches within only become a part of a graph." in finding.message
    assert ("warmup=1" in finding.fix) == steps


def test_replays_alone_are_none(found: Found) -> None:
    assert found(program(captures=False), RULE) == ()


def test_a_capture_while_the_gpu_works_is_none(found: Found) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=20_000_000)
    capture(b)
    b.graph_launch([("gemm", 1_000)] * 500)
    assert found(b, RULE) == ()


def test_a_short_capture_among_long_steps_is_none(found: Found) -> None:
    b = TraceBuilder()
    for number in range(3):
        with b.step():
            if number == 0:
                capture(b, 10)
            b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=20_000_000)
            b.synchronize()
    assert found(b, RULE) == ()


def test_without_steps_the_capture_is_why_the_gpu_is_idle(tmp_path: Path) -> None:
    recording = program(captures=True, steps=False).write(tmp_path / "t.json")
    text = headline(analyze(recording, strict=True))
    assert "because a CUDA graph is being captured, which runs nothing. Warm up before" in text


def test_the_first_sentence_names_the_capture_and_no_slow_launches(tmp_path: Path) -> None:
    report = analyze(program(captures=True).write(tmp_path / "t.json"), strict=True)
    text = headline(report)
    assert text.startswith(
        "The first step takes 10.5 ms, 9.97 ms of it while a CUDA graph is captur"
    )
    assert "busy 96% of each later 560 µs step, nearly all with matrix products." in text
    assert "too slowly" not in text
    assert {finding.rule for finding in report.findings} & {"KER001", "CPU002"} == set()
