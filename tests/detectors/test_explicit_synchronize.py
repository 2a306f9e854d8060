"""explicit-synchronize finds the program's own synchronization, and not the profiler's."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "explicit-synchronize"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(*, call: str | None = "DeviceSynchronize", stacks: bool = False) -> TraceBuilder:
    """300 µs of kernel behind 10 µs of host; then a wait; then 40 µs of Python."""
    b = TraceBuilder(stacks=stacks)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            if call:
                with b.frame("torch/cuda/__init__.py", 975, "synchronize"):
                    b.synchronize(call)
            b.advance(40_000)
    return b


def test_it_costs_the_idle_time_that_the_wait_leaves(found: Found) -> None:
    # Host: 10 µs of launch, 300 of waiting, 40 of Python. Device: idle for the 10 and the 40.
    (finding,) = found(training(), RULE)
    assert finding.evidence["blocked_ns"] == 3 * 300_000
    # The steps take 3 x 350 µs. Without the wait kernels follow each other after a switch of 1 µs:
    # 10 + 3 x 300 + 2 x 1.
    assert finding.cost.ns == 1_050_000 - 912_000
    assert (finding.cost.per_step_ns, finding.cost.basis) == (46_000, "replay")
    assert finding.severity == "warning"
    assert finding.n == 3


def test_a_program_that_does_not_synchronize_is_not_reported(found: Found) -> None:
    assert found(training(call=None), RULE) == ()


def test_a_thread_of_gloo_that_waits_for_what_it_sends_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with b.thread(3000), b.annotation("gloo:all_reduce"):
                b.synchronize("StreamSynchronize")
            b.advance(40_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    ("call", "python"),
    [
        ("DeviceSynchronize", "`torch.cuda.synchronize()`"),
        ("StreamSynchronize", "`stream.synchronize()`"),
        ("EventSynchronize", "`event.synchronize()`"),
    ],
)
def test_it_names_the_call_as_python_has_it_and_its_line(
    found: Found, call: str, python: str
) -> None:
    (finding,) = found(training(call=call, stacks=True), RULE)
    assert finding.message.startswith(
        f"{python} in train_step (train.py:10) is called once per step"
    )
    assert finding.locations[0].file == "train.py"
    assert python in finding.fix
    assert ("wait_event" in finding.fix) is (call != "DeviceSynchronize")


@pytest.mark.parametrize(
    ("file", "function", "text"),
    [
        ("deepspeed/utils/timer.py", "stop", "in `stop()` of deepspeed, called in train_step"),
        (
            "torch/distributed/fsdp/_runtime_utils.py",
            "_unshard",
            "in `_unshard()` of torch, called",
        ),
    ],
)
def test_the_call_of_a_library_is_not_the_programs_to_delete(
    found: Found, file: str, function: str, text: str
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"), b.frame(file, 20, function):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with (
                b.frame("deepspeed/accelerator/cuda_accelerator.py", 77, "synchronize"),
                b.frame("torch/cuda/__init__.py", 975, "synchronize"),
            ):
                b.synchronize()
            b.advance(40_000)

    (finding,) = found(b, RULE)
    assert finding.message.startswith(f"`torch.cuda.synchronize()` {text}")
    assert finding.locations[0].file == "train.py"
    assert "Delete" not in finding.fix
    assert "option of the library" in finding.fix


def test_a_wrapper_of_the_call_in_a_library_makes_it_no_call_of_the_library(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with (
                b.frame("deepspeed/accelerator/cuda_accelerator.py", 77, "synchronize"),
                b.frame("torch/cuda/__init__.py", 975, "synchronize"),
            ):
                b.synchronize()
            b.advance(40_000)
    (finding,) = found(b, RULE)
    assert finding.message.startswith("`torch.cuda.synchronize()` in train_step (train.py:10) is")
    assert "Delete" in finding.fix


def test_without_lines_there_is_no_place_to_name(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            b.synchronize()
            b.advance(40_000)
    (finding,) = found(b, RULE)
    assert finding.locations == ()
    assert finding.message.startswith("`torch.cuda.synchronize()` is called once per step")


def test_the_synchronization_that_ends_the_recording_is_the_profilers(found: Found) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
    b.synchronize()
    assert found(b, RULE) == ()


def test_a_synchronization_that_work_follows_is_the_users(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(2):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
        b.synchronize()
        b.advance(40_000)
    (finding,) = found(b, RULE)
    assert finding.n == 1


def test_with_stacks_the_profilers_frames_tell_its_calls_from_the_users(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 3, "main"):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
        with b.frame("torch/autograd/profiler.py", 363, "__exit__"):
            b.synchronize()
    assert found(b, RULE) == ()
    with b.frame("train.py", 3, "main"):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
        b.synchronize()
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
    assert len(found(b, RULE)) == 1


def benchmark(n_steps: int = 0, *, followed: bool = False) -> TraceBuilder:
    """Launches, in steps or not, and one synchronization by the harness after the last."""
    b = TraceBuilder(stacks=True)
    with b.frame("bench.py", 3, "run"):
        for number in range(max(1, n_steps)):
            with b.step() if n_steps else b.annotation("case"):
                for _ in range(10):
                    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
                if number == max(1, n_steps) - 1:
                    b.synchronize()
        if followed:
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=1_000)
    return b


@pytest.mark.parametrize("n_steps", [0, 3])
def test_a_benchmark_may_synchronize_after_its_last_launch(found: Found, n_steps: int) -> None:
    assert found(benchmark(n_steps), RULE) == ()
    (finding,) = found(benchmark(n_steps, followed=True), RULE)
    assert finding.n == 1


def test_in_a_recording_of_one_step_the_next_may_follow(found: Found) -> None:
    assert len(found(benchmark(1), RULE)) == 1


def test_a_benchmark_may_synchronize_before_its_first_launch(found: Found) -> None:
    b = TraceBuilder()
    b.kernel("gemm", 400_000)
    with b.step():
        b.synchronize()
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
    assert found(b, RULE) == ()

    # In later steps it waits for the step before.
    with b.step():
        b.synchronize()
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
    assert len(found(b, RULE)) == 1


def test_waits_within_operators_belong_to_other_rules(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            b.item()
            b.to_host(4096, 2_000)
    assert found(b, RULE) == ()


def test_an_event_that_has_long_happened_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=1_000)
            b.advance(10_000_000)
            b.synchronize("EventSynchronize")
    assert found(b, RULE) == ()


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "SYN002"
