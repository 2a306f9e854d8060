"""no-warm-up finds recordings whose first step is an outlier."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, CpuTime
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "no-warm-up"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def steps_of(*lengths_ns: int, capture: CaptureInfo | None = None) -> TraceBuilder:
    b = TraceBuilder(device_names=(), capture=capture)
    for length_ns in lengths_ns:
        with b.step():
            b.compute("aten::mm", length_ns)
    return b


def test_a_long_first_step_is_a_fault_of_the_recording(analyzed: Analyzed) -> None:
    report = analyzed(steps_of(9_000_000, 1_000_000, 1_100_000, 1_050_000), RULE)
    assert report.findings == ()
    (finding,) = report.health
    assert finding.severity == "note"
    assert finding.confidence == "high"
    assert (finding.evidence["first_ns"], finding.evidence["others_median_ns"]) == (
        9_000_000,
        1_050_000,
    )
    assert finding.message.startswith(
        "The first step, ProfilerStep#0, takes 9.00 ms, the others take 1.05"
    )
    assert "warmup=1" in finding.fix


@pytest.mark.parametrize(("delayed_ns", "n_found"), [(100_000, 1), (4_000_000, 0)])
def test_a_first_step_without_a_core_is_no_warm_up(
    analyzed: Analyzed, delayed_ns: int, n_found: int
) -> None:
    cpu = CpuTime(
        window_ns=12_150_000, thread_ns=8_000_000, process_ns=8_000_000, delayed_ns=delayed_ns
    )
    capture = CaptureInfo(version="0", name="train", cpu=cpu)
    lengths_ns = (9_000_000, 1_000_000, 1_100_000, 1_050_000)
    assert len(analyzed(steps_of(*lengths_ns, capture=capture), RULE).health) == n_found


@pytest.mark.parametrize(
    "lengths_ns",
    [
        (1_200_000, 1_000_000, 1_000_000, 1_000_000),
        (1_000_000, 1_000_000, 9_000_000, 1_000_000),
        (9_000_000, 1_000_000, 5_000_000, 1_000_000),
        (9_000_000, 1_000_000),
        (900_000, 100_000, 100_000, 100_000),
    ],
    ids=["alike", "another step is long", "steps differ anyway", "two cannot tell", "a moment"],
)
def test_other_recordings_are_not_reported(found: Found, lengths_ns: tuple[int, ...]) -> None:
    assert found(steps_of(*lengths_ns), RULE) == ()


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    b.compute("aten::mm", 1_000)
    assert analyzed(b, RULE).unchecked[0].rule == "PRF001"
