"""unfreed-tensors finds lines whose memory grows with every step, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.growth import Growth
from profkit.model.report import Report
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "unfreed-tensors"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
KIB = 1024


class Program:
    """Steps that allocate; what a step allocates is freed in it unless it is kept."""

    def __init__(self, device: int | None = 0) -> None:
        self.b = TraceBuilder(stacks=True, memory=True)
        self.device = device

    def line(self, line: int, op: str, n_bytes: int) -> int:
        """Return a line that allocates within an operator."""
        with self.b.frame("train.py", line, f"line_{line}"), self.b.op(op):
            self.b.advance(1_000)
            address = self.b.alloc(n_bytes, device=self.device)
            self.b.advance(1_000)
        return address

    def steps(self, n: int, body: Callable[[int], None]) -> TraceBuilder:
        """Run some steps."""
        for number in range(n):
            with self.b.step():
                body(number)
        return self.b


@pytest.mark.parametrize(("device", "where"), [(0, "on cuda:0"), (None, "in host memory")])
def test_it_states_the_growth_of_a_line_in_every_step(
    found: Found, device: int | None, where: str
) -> None:
    program = Program(device)

    def body(_: int) -> None:
        program.b.free(program.line(10, "aten::mm", 1 << 20))
        program.line(20, "aten::nll_loss", 80 * KIB)

    (finding,) = found(program.steps(4, body), RULE)
    assert finding.cost.per_step_bytes == 80 * KIB
    assert finding.cost.bytes == 4 * 80 * KIB
    assert finding.cost.ns is None
    assert finding.n == 4
    assert finding.severity == "warning"
    assert finding.evidence["bytes_by_step"] == [80 * KIB] * 4
    n_bytes = tuple(80 * KIB * n for n in range(1, 5))
    assert finding.growth == Growth((1, 2, 3, 4), n_bytes, (1, 2, 3, 4))
    assert (finding.locations[0].line, finding.locations[0].op) == (20, "aten::nll_loss")
    assert finding.message == (
        f"80.0 KiB per step {where}, allocated in line_20 (train.py:20) by `aten::nll_loss`, are "
        "never freed: 4 blocks are left from 4 steps."
    )


def test_a_step_that_other_programs_disturbed_counts(found: Found) -> None:
    program = Program()
    info = CaptureInfo(version="1", name="t", steps="user", left_out_steps=["ProfilerStep#1"])
    program.b = TraceBuilder(stacks=True, memory=True, capture=info)
    (finding,) = found(program.steps(3, lambda _: _lose(program)), RULE)
    assert finding.evidence["bytes_by_step"] == [80 * KIB] * 3
    assert finding.cost.per_step_bytes == 80 * KIB
    assert "3 blocks are left from 3 steps" in finding.message


def _lose(program: Program) -> None:
    program.line(20, "aten::nll_loss", 80 * KIB)


def test_a_program_that_frees_what_it_takes_is_not_reported(found: Found) -> None:
    program = Program()
    b = program.steps(4, lambda _: program.b.free(program.line(10, "aten::mm", 1 << 20)))
    assert found(b, RULE) == ()


def test_what_a_variable_holds_until_the_next_step_is_not_a_leak(found: Found) -> None:
    program = Program()
    held: list[int] = []

    def body(_: int) -> None:
        held.append(program.line(10, "aten::mm", 1 << 20))
        if len(held) > 1:
            program.b.free(held.pop(0))

    assert found(program.steps(5, body), RULE) == ()


def test_state_that_the_first_step_makes_is_not_a_leak(found: Found) -> None:
    program = Program()

    def body(number: int) -> None:
        if number == 0:
            program.line(30, "aten::zeros_like", 1 << 20)
        program.b.free(program.line(10, "aten::mm", 1 << 20))

    assert found(program.steps(5, body), RULE) == ()


def test_a_cache_that_fills_and_stops_is_not_a_leak(found: Found) -> None:
    program = Program()

    def body(number: int) -> None:
        if number < 3:
            program.line(30, "aten::empty", 1 << 20)
        program.b.free(program.line(10, "aten::mm", 1 << 20))

    assert found(program.steps(5, body), RULE) == ()


def test_losses_stored_on_purpose_are_too_small_to_report(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::nll_loss", 512)

    assert found(program.steps(5, body), RULE) == ()


def test_slow_growth_is_a_note(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::nll_loss", 8 * KIB)

    (finding,) = found(program.steps(3, body), RULE)
    assert finding.severity == "note"
    assert finding.confidence == "medium"


def test_the_longer_the_recording_the_surer_the_finding(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::nll_loss", 80 * KIB)

    (finding,) = found(program.steps(6, body), RULE)
    assert finding.confidence == "high"


def test_two_lines_are_two_findings_the_larger_first(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::mm", 10 * KIB)
        program.line(30, "aten::relu", 90 * KIB)

    findings = found(program.steps(4, body), RULE)
    assert [finding.locations[0].line for finding in findings] == [30, 20]


def test_many_lines_together_are_one_retained_graph(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        for line in (24, 23, 22, 21, 20):
            program.line(line, "aten::addmm", line * KIB)

    (finding,) = found(program.steps(4, body), RULE)
    assert finding.cost.per_step_bytes == (20 + 21 + 22 + 23 + 24) * KIB
    assert [location.line for location in finding.locations] == [24, 23, 22, 21, 20]
    assert finding.message.endswith("whose last tensor is allocated at line_20 (train.py:20).")


def test_each_device_is_checked_separately(found: Found) -> None:
    program = Program()

    def body(number: int) -> None:
        program.device = 0
        program.line(20, "aten::mm", 16 * KIB)
        program.device = 1 if number % 2 else None
        program.line(20, "aten::mm", 16 * KIB)

    (finding,) = found(program.steps(4, body), RULE)
    assert finding.evidence["device"] == "cuda:0"
    assert finding.cost.per_step_bytes == 16 * KIB


def test_the_operators_of_a_line_are_named_two_at_most(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        for op in ("aten::addmm", "aten::relu", "aten::tanh", "aten::mul"):
            program.line(20, op, 16 * KIB)

    (finding,) = found(program.steps(4, body), RULE)
    assert "by `aten::addmm` and `aten::mul` and 2 more, are never freed" in finding.message


@pytest.mark.parametrize(("n_evaluated_steps", "n_found"), [(300, 0), (4, 0), (3, 1), (0, 1)])
def test_what_was_watched_over_as_many_steps_is_reported_by_those_who_watched(
    tmp_path: Path, n_evaluated_steps: int, n_found: int
) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::nll_loss", 80 * KIB)

    trace = program.steps(4, body).write(tmp_path / "t.json")
    watched = LiveBuilder(n_evaluated_steps=n_evaluated_steps).write(tmp_path / "t.memory.json.gz")
    report = analyze([trace, watched], select=[RULE], strict=True)
    assert len(report.findings) == n_found


def test_two_steps_cannot_tell(found: Found) -> None:
    program = Program()

    def body(_: int) -> None:
        program.line(20, "aten::mm", 1 << 20)

    assert found(program.steps(2, body), RULE) == ()


def test_without_allocations_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    with b.step():
        b.compute("aten::mm", 1_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "MEM001"
    assert "profile_memory" in unchecked.remedy
