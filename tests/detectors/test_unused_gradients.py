"""unused-gradients finds backward passes of modules whose parameters no optimizer has."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, OpLines, UnusedGradients
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unused-gradients"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

TEACHER = UnusedGradients("teacher", ["Linear_1"], n_parameters=2, bytes=4096)
NO_LINES = OpLines(
    same_window=True,
    names=[],
    frames=[],
    modules=[],
    name=[],
    parent=[],
    thread=[],
    external_id=[],
    frame=[],
    module=[],
)


def build_program(
    *unused: UnusedGradients, lines: OpLines | None = NO_LINES, backward_ns: int = 6_000_000
) -> TraceBuilder:
    """Two steps of a student, Linear_0, and a teacher, Linear_1, of which each passes back."""
    capture = CaptureInfo(
        version="0", name="train", steps="user", lines=lines, unused_gradients=list(unused)
    )
    b = TraceBuilder(device_names=(), stacks=True, capture=capture)

    for step in range(2):
        numbers = (2 * step, 2 * step + 1)
        with b.step(), b.frame("train.py", 30, "train"):
            for module, number in enumerate(numbers):
                with b.module("Linear", module):
                    b.compute("aten::linear", 2_000_000, sequence=number)
            for module, number in enumerate(numbers):
                spent_ns = backward_ns if module else 3_000_000
                with b.op("AddmmBackward0", sequence=number, self_ns=spent_ns) as node:
                    node.args |= {"Fwd thread id": 1}  # type: ignore[operator]

    return b


def test_the_backward_pass_of_the_module_is_the_most_that_its_fix_saves(found: Found) -> None:
    (finding,) = found(build_program(TEACHER), RULE)
    assert finding.message == (
        "The backward pass of `teacher` in train (train.py:30) takes 6.00 ms per step (46%), and "
        "no optimizer uses the gradients of its 2 parameters (4.00 KiB)."
    )
    assert finding.fix == "Call `teacher.requires_grad_(False)` once, before the loop."
    assert (finding.cost.ns, finding.cost.per_step_ns) == (12_000_000, 6_000_000)
    assert finding.cost.basis == "upper-bound"
    assert finding.evidence["gradient_bytes"] == 4096


def test_what_adds_to_the_unused_gradients_is_part_of_it(found: Found) -> None:
    capture = CaptureInfo(
        version="0", name="train", steps="user", lines=NO_LINES, unused_gradients=[TEACHER]
    )
    b = TraceBuilder(device_names=(), stacks=True, capture=capture)
    node = "autograd::engine::evaluate_function: "

    for step in range(2):
        numbers = (2 * step, 2 * step + 1)
        with b.step(), b.frame("train.py", 30, "train"):
            for module, number in enumerate(numbers):
                with b.module("Linear", module):
                    b.compute("aten::linear", 2_000_000, sequence=number)
            for number in numbers:
                with (
                    b.op(f"{node}AddmmBackward0"),
                    b.op("AddmmBackward0", sequence=number, self_ns=3_000_000) as backward,
                ):
                    backward.args |= {"Fwd thread id": 1}  # type: ignore[operator]
                # Of the weight and of the bias; the student's take as long.
                for _ in range(2):
                    with b.op(f"{node}torch::autograd::AccumulateGrad"):
                        b.compute("aten::add_", 1_000_000)

    (finding,) = found(b, RULE)
    # The teacher's node, and its two additions.
    assert finding.cost.per_step_ns == pytest.approx(5_000_000, rel=0.01)


@pytest.mark.parametrize(
    "unused",
    [(), (UnusedGradients("other", ["Conv2d_0"], 2, 4096),)],
    ids=["all are used", "the module was not called in these steps"],
)
def test_gradients_that_are_used_are_not_reported(
    found: Found, unused: tuple[UnusedGradients, ...]
) -> None:
    assert found(build_program(*unused), RULE) == ()


def test_a_short_backward_pass_is_not_reported(found: Found) -> None:
    assert found(build_program(TEACHER, backward_ns=100_000), RULE) == ()


def test_a_recording_without_lines_is_unchecked(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(build_program(lines=None), RULE).unchecked
    assert unchecked.rule == "KER016"
