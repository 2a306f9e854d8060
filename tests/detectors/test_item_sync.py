"""item-sync finds reads that block the host, and what they cost."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "item-sync"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    n_steps: int = 4, *, read: bool = True, stacks: bool = False, tail_ns: int = 50_000
) -> TraceBuilder:
    """Ten kernels of 30 µs per step, launched every 10 µs; then a read; then Python alone."""
    b = TraceBuilder(stacks=stacks)
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 10, "train_step"):
            for _ in range(10):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=30_000)
            if read:
                with b.builtin("method item of Tensor object at 0x7f00"):
                    b.item(copy_ns=1_000)
            b.advance(tail_ns)
    return b


def test_a_read_in_every_step_costs_the_idle_time_that_follows_it(found: Found) -> None:
    # The kernels run from 10 to 310 µs, the copy to 311. The host waits from 105 µs until then, and
    # goes on for 50 µs. Without the read the device is never idle again.
    (finding,) = found(training(), RULE)
    assert finding.severity == "warning"
    assert finding.confidence == "high"
    assert finding.n == 4
    assert finding.evidence["blocked_ns"] == 4 * (311_000 - 105_000)
    assert finding.evidence["device_busy_ns"] == 4 * 206_000
    assert finding.cost.ns == 4 * 361_000 - (10_000 + 4 * 301_000)
    assert finding.cost.basis == "replay"
    assert sum(end - start for start, end in finding.spans) == 4 * 206_000


def test_it_names_the_line_the_call_and_the_figures(found: Found) -> None:
    (finding,) = found(training(stacks=True), RULE)
    (location,) = finding.locations
    assert (location.file, location.line, location.function) == ("train.py", 10, "train_step")
    assert location.op == "aten::item"
    assert finding.message == (
        "`.item()` in train_step (train.py:10) runs once per step and blocks the host for 206 µs "
        "per step (57%). The GPU works during 100% of it."
    )
    assert ".detach()" in finding.fix


def test_a_program_that_does_not_read_is_not_reported(found: Found) -> None:
    assert found(training(read=False), RULE) == ()


def test_where_the_host_is_the_bottleneck_it_costs_the_time_of_the_read(found: Found) -> None:
    (finding,) = found(training(tail_ns=900_000), RULE)
    # The operator takes 5 µs on the host until it waits for 206.
    assert finding.cost.per_step_ns == 211_000


def test_a_read_that_the_device_does_not_suffer_from_is_a_note(found: Found) -> None:
    # A step of the host takes 141 µs, but the kernels of stream 13 run from 10 µs on without a
    # pause, for 300 µs each.
    b = TraceBuilder()
    launches = []
    for _ in range(3):
        with b.step():
            launches.append(b.call("LaunchKernel", 10_000))
            b.launch("aten::mm", kernel="short", host_ns=10_000, device_ns=100_000)
            b.item()
            b.advance(20_000)
    for number, launch in enumerate(launches):
        at_ns = 10_000 + number * 300_000
        b.kernel("long", 300_000, correlation=launch, at_ns=at_ns, stream=13)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.cost.ns == 0


def test_a_read_that_hardly_waits_is_not_reported(found: Found) -> None:
    b = training(read=False, tail_ns=0)
    with b.step():
        b.advance(50_000_000)
        b.item()
    assert found(b, RULE) == ()


def test_a_read_whose_copy_waits_as_well_is_one_read(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with b.op("aten::item"):
                b.copy("DtoH (Device -> Pageable)", 4, 1_000, blocking=True)
                b.call("StreamSynchronize", 4_000)
            b.advance(50_000)
    (finding,) = found(b, RULE)
    assert finding.n == 3
    assert finding.evidence["blocked_ns"] == 3 * (301_000 + 4_000)


def test_reads_outside_the_steps_do_not_count(found: Found) -> None:
    b = training(read=False)
    b.item()
    assert found(b, RULE) == ()


def test_without_steps_the_whole_recording_counts(found: Found) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
    b.item()
    b.advance(100_000)
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns is None
    assert finding.confidence == "medium"
    assert "runs once and" in finding.message


@pytest.mark.parametrize(
    ("ops", "said", "advice"),
    [
        (["aten::is_nonzero", "aten::item"], "A condition on a tensor", "Use `torch.where"),
        (["aten::equal"], "`torch.equal()`", "Use `torch.where"),
    ],
)
def test_each_kind_of_read_is_named_as_it_was_written(
    found: Found, ops: list[str], said: str, advice: str
) -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            with b.op(ops[0]), b.op(ops[-1]):
                b.synchronize("StreamSynchronize")
            b.advance(50_000)
    (finding,) = found(b, RULE)
    assert finding.message.startswith(said)
    assert finding.fix.startswith(advice)


@pytest.mark.parametrize(
    ("tests", "advice"),
    [
        (("aten::isnan", "aten::any"), "Test for NaN and infinity only every 100 steps"),
        (("aten::isfinite", "aten::all", "aten::bitwise_not"), "Test for NaN and infinity"),
        (("aten::isnan", "aten::sum"), "Use `torch.where"),
        (("aten::any",), "Use `torch.where"),
    ],
)
def test_a_test_for_nan_has_a_function_that_needs_no_condition(
    found: Found, tests: tuple[str, ...], advice: str
) -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)
            for name in tests:
                b.launch(name, kernel="kernel", host_ns=10_000, device_ns=1_000)
            with b.op("aten::is_nonzero"), b.op("aten::item"):
                b.synchronize("StreamSynchronize")
            b.advance(50_000)
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(advice)


@pytest.mark.parametrize("n_reads", [1, 100])
@pytest.mark.parametrize("n_steps", [1, 20])
def test_on_a_cpu_a_read_waits_for_nothing(found: Found, n_steps: int, n_reads: int) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(n_steps):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.compute("aten::mm", 10_000)
            for _ in range(n_reads):
                b.item(on_device=False)
    assert found(b, RULE) == ()


def test_a_recurrent_network_on_a_cpu_uses_no_device(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(2):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.compute("aten::cudnn_is_acceptable", 1_000)
            b.item(on_device=False)
    assert found(b, RULE) == ()


LIBRARY = "torch/distributions/distribution.py"


def test_a_librarys_read_of_a_gpu_needs_an_option_of_the_library(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            for _ in range(10):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=30_000)
            with b.frame(LIBRARY, 40, "__init__"):
                b.item(copy_ns=1_000)
            b.advance(50_000)
    (finding,) = found(b, RULE)
    assert "in `__init__()` of torch, called in train_step (train.py:10), runs" in finding.message
    assert "validate_args=False" in finding.fix


def test_the_filter_of_transformers_trainer_is_an_argument(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "main"):
            with b.frame("transformers/trainer.py", 2200, "_inner_training_loop"):
                for _ in range(10):
                    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=30_000)
                for test in ("aten::isnan", "aten::isinf"):
                    b.launch(test, kernel="test", host_ns=10_000, device_ns=3_000)
                    with b.op("aten::is_nonzero"):
                        b.item()
            b.advance(50_000)

    (finding,) = found(b, RULE)
    assert finding.n == 8
    assert "in `_inner_training_loop()` of transformers, called in main" in finding.message
    assert "logging_nan_inf_filter=False" in finding.fix


def compute_on_gpu(b: TraceBuilder) -> None:
    """Give the next read something to wait for."""
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=300_000)


@pytest.mark.parametrize(
    ("operators", "is_index"),
    [
        (["select", "item"] * 4, False),
        (["item", "select"] * 4, True),
        (["select", "item", "select"] * 4, True),
        (["unbind", *["add", "item", "item", "slice"] * 4, "stack"], True),
        (["item"] * 4, False),
    ],
    ids=["x[i].item()", "x[i] for i in ids", "x[ids[i]]", "x[i : i + n]", "[float(x) for x in t]"],
)
def test_a_tensor_as_an_index_is_told_from_another_read(
    found: Found, operators: list[str], *, is_index: bool
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step():
            with b.frame("data.py", 21, "get_batch"):
                compute_on_gpu(b)
                for name in operators:
                    if name == "item":
                        b.item()
                    else:
                        b.compute(f"aten::{name}", 2_000)
            with b.frame("train.py", 30, "train"):
                b.compute("aten::select", 2_000)
                b.advance(50_000)

    (finding,) = found(b, RULE)
    assert finding.n == 3 * operators.count("item")
    assert ("Indexing with" in finding.message) == is_index
    assert ("`.detach()`" in finding.fix) != is_index


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "SYN001"
    assert unchecked.remedy
