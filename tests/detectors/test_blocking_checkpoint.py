"""blocking-checkpoint finds checkpoints that the steps wait for."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "blocking-checkpoint"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

SAVE = ("torch/serialization.py", 925, "save")


def program(frame: tuple[str, int, str] | None, *, every: int = 1) -> TraceBuilder:
    """Four steps of a kernel of 1 ms; the GPU is idle while a checkpoint of 5 ms is written."""
    b = TraceBuilder(stacks=True)
    for number in range(4):
        with b.step(), b.frame("train.py", 10, "train"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=1_000_000)
            if frame is not None and number % every == 0:
                with b.frame("train.py", 50, "checkpoint"), b.frame(*frame):
                    b.to_host(1 << 20, 100_000)
                    b.advance(5_000_000)
            b.synchronize()
    return b


@pytest.mark.parametrize(
    ("frame", "what", "fix"),
    [
        (SAVE, "`save()` of torch", "async_save"),
        (("torch/distributed/checkpoint/logger.py", 87, "save"), "`save()`", "async_save"),
        (("safetensors/torch.py", 280, "save_file"), "`save_file()` of safetensors", "async_save"),
        (("torch/serialization.py", 1300, "load"), "`load()` of torch", "once, before the loop"),
    ],
)
def test_it_costs_what_the_host_takes_and_not_the_wait_for_the_gpu(
    found: Found, frame: tuple[str, int, str], what: str, fix: str
) -> None:
    (finding,) = found(program(frame), RULE)
    # The host no longer writes for 5 ms; it still waits for the kernel, which runs 1 ms before
    # the copy of 0.1 ms, and the sync and calls that follow take up to 4 µs each.
    assert finding.cost.per_step_ns == pytest.approx(5_000_000, abs=10_000)
    assert finding.n == 4
    assert finding.message.startswith(f"{what}")
    assert "in checkpoint (train.py:50) runs once per step" in finding.message
    assert fix in finding.fix


def test_one_checkpoint_in_several_steps_counts_by_its_share_of_all(found: Found) -> None:
    (finding,) = found(program(SAVE, every=4), RULE)
    assert finding.cost.ns == pytest.approx(5_000_000, abs=10_000)
    assert "once in 4 steps" in finding.message
    assert found(program(SAVE, every=4), RULE, min_saved_share=0.6) == ()


def test_steps_without_a_checkpoint_have_none(found: Found) -> None:
    assert found(program(None), RULE) == ()


def test_a_thread_that_writes_while_training_goes_on_is_the_fix(found: Found) -> None:
    b = program(None)
    with b.thread(9), b.frame("train.py", 50, "checkpoint"), b.frame(*SAVE):
        b.advance(50_000_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "frame",
    [
        ("torch/serialization.py", 700, "_load"),
        ("torch/distributed/checkpoint/logger.py", 87, "async_save"),
        ("my_project/serialization.py", 5, "save"),
    ],
)
def test_other_functions_are_silent(found: Found, frame: tuple[str, int, str]) -> None:
    assert found(program(frame), RULE) == ()


def test_without_python_calls_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "DAT006"
