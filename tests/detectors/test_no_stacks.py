"""no-stacks reports a recording without source lines."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, StepKind
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "no-stacks"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def test_a_recording_without_lines_says_how_to_get_them(found: Found) -> None:
    b = TraceBuilder()
    b.compute("aten::mm", 1_000)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert "with_stack=True" in finding.fix
    assert finding.cost.ns is None


@pytest.mark.parametrize(
    ("steps", "n_steps", "fix"),
    [
        ("entry", 0, "`profkit.steps`: one of them is recorded with stacks."),
        ("whole", 0, "with stacks, and memory is monitored over all of them."),
        ("entry", 2, "with `wait=3`"),
        ("optimizer", 2, "`profkit run --wait 3`"),
    ],
)
def test_a_recording_of_profkit_is_not_told_to_use_profkit(
    found: Found, steps: StepKind, n_steps: int, fix: str
) -> None:
    b = TraceBuilder(capture=CaptureInfo(version="0", name="train", steps=steps))
    for _ in range(n_steps):
        with b.step():
            b.compute("aten::mm", 1_000)
    b.compute("aten::mm", 1_000)
    (finding,) = found(b, RULE)
    assert fix in finding.fix
    assert "profkit run`" not in finding.fix


def test_what_kept_stacks_from_being_recorded_is_what_to_leave_out(found: Found) -> None:
    reason = "the program uses a Python profiler itself (cProfile)"
    capture = CaptureInfo(version="0", name="train", steps="optimizer", no_stacks_reason=reason)
    b = TraceBuilder(capture=capture)
    with b.step():
        b.compute("aten::mm", 1_000)
    (finding,) = found(b, RULE)
    assert f"as {reason}: findings" in finding.message
    assert finding.fix == "For source lines, record a run without it."


def test_a_recording_with_lines_is_not_reported(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 10, "train_step"):
        b.compute("aten::mm", 1_000)
    assert found(b, RULE) == ()


def test_without_operators_there_is_nothing_to_name(
    analyzed: Analyzed, device_alone: TraceBuilder
) -> None:
    assert analyzed(device_alone, RULE).unchecked[0].rule == "PRF003"
