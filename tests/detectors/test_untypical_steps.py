"""untypical-steps finds runs of which most time is in no step like the recorded ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo, HostThreads
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline_sentences
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "untypical-steps"
MS = 1_000_000
PLAIN = LiveBuilder(n_steps=400, n_samples=100)
"""Steps of 20 ms on average."""


def record_steps(step_ms: int, *, n_workers: int = 0) -> TraceBuilder:
    threads = HostThreads(2, n_threads=1, n_workers=n_workers)
    capture = CaptureInfo(version="0", name="train", steps="optimizer", threads=threads)
    b = TraceBuilder(device_names=(), capture=capture)
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", step_ms * MS)
    return b


@pytest.fixture
def report_of(tmp_path: Path) -> Callable[..., Report]:
    """Return the report of the rule on recorded steps and the memory of their run."""

    def run(b: TraceBuilder, live: LiveBuilder) -> Report:
        live.write(tmp_path / "run.memory.json.gz")
        return analyze(b.write(tmp_path / "run.pt.trace.json.gz"), select=[RULE], strict=True)

    return run


@pytest.fixture
def found(report_of: Callable[..., Report]) -> Callable[..., tuple[Finding, ...]]:
    """Return the findings of the rule on recorded steps and the memory of their run."""

    def run(b: TraceBuilder, live: LiveBuilder) -> tuple[Finding, ...]:
        report = report_of(b, live)
        assert not report.unchecked
        return report.health

    return run


def test_the_headline_has_the_run_beside_the_recorded_steps(
    report_of: Callable[..., Report],
) -> None:
    report = report_of(record_steps(5), PLAIN)
    (fault,) = report.health
    assert fault.evidence == {
        "mean_step_ns": 20 * MS,
        "recorded_step_ns": 5 * MS,
        "elsewhere_share": 0.75,
    }
    says = (
        "Over 399 steps of the run a step takes 20.0 ms on average, the recorded ones 5.00 ms: "
        "75% of the run is in none like them."
    )
    assert headline_sentences(report)[1] == says


@pytest.mark.parametrize(("n_workers", "is_told"), [(4, True), (0, False)])
def test_workers_that_start_anew_are_a_possible_cause(
    found: Callable[..., tuple[Finding, ...]], n_workers: int, *, is_told: bool
) -> None:
    (fault,) = found(record_steps(5, n_workers=n_workers), PLAIN)
    assert ("`persistent_workers=True`" in fault.fix) == is_told


def test_recorded_steps_of_more_than_half_the_mean_are_typical(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    assert found(record_steps(11), PLAIN) == ()


def test_one_pause_among_few_steps_says_nothing(
    found: Callable[..., tuple[Finding, ...]],
) -> None:
    assert found(record_steps(5), LiveBuilder(n_steps=30)) == ()


def test_profkits_own_time_is_not_the_steps(found: Callable[..., tuple[Finding, ...]]) -> None:
    live = LiveBuilder(n_steps=400, n_samples=100, slowing_ns=100_000, own_ns=100_000)
    assert found(record_steps(15), live) == ()


def test_without_monitored_steps_it_is_skipped(analyzed: Callable[..., Report]) -> None:
    (unchecked,) = analyzed(record_steps(5), RULE).unchecked
    assert unchecked.rule == "PRF015"


@pytest.mark.parametrize(("step_ms", "words"), [(5, "Start workers once."), (15, "Raise `num_w")])
def test_a_loader_that_starts_workers_anew_is_not_told_to_prefetch(
    tmp_path: Path, step_ms: int, words: str
) -> None:
    threads = HostThreads(8, n_threads=1, n_workers=2)
    b = TraceBuilder(
        device_names=(),
        capture=CaptureInfo(version="0", name="train", steps="optimizer", threads=threads),
    )
    for _ in range(3):
        with b.step():
            b.load(step_ms * MS // 2, workers=True)
            b.compute("aten::mm", step_ms * MS // 2)
    PLAIN.write(tmp_path / "run.memory.json.gz")
    report = analyze(b.write(tmp_path / "run.pt.trace.json.gz"), select=["starved-by-loader"])
    assert [finding.fix.startswith(words) for finding in report.findings] == [True]
