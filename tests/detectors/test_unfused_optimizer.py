"""unfused-optimizer finds optimizers that loop over parameters, and what a fused step saves."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "unfused-optimizer"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
LOOP = ("aten::mul_", "aten::add_", "aten::add_")
FOREACH = ("aten::_foreach_mul_", "aten::_foreach_add_", "aten::_foreach_add_")


def training(
    operators: tuple[str, ...] = LOOP * 30,
    *,
    mark: str = "Optimizer.step#SGD.step",
    device_ns: int = 500,
    on_gpu: bool = True,
    host_ns: int = 10_000,
    forward_ns: int = 1_000_000,
) -> TraceBuilder:
    """Steps of a forward pass on the host, then an optimizer's operators, 1 µs of Python each."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if on_gpu else ())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.compute("aten::mm", forward_ns)
            with b.annotation(mark):
                for name in operators:
                    b.advance(1_000)
                    if on_gpu:
                        b.launch(name, kernel="elementwise", host_ns=host_ns, device_ns=device_ns)
                    else:
                        b.compute(name, host_ns)
    return b


def test_on_a_gpu_it_costs_nine_tenths_of_the_operators_and_python(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # Nothing follows the last step, in which a kernel of 1.5 µs takes longer than its launch.
    assert finding.cost.ns == 3 * (90 * 9_000 + 89 * 1_000) - 89 * 500
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "high", 3)
    assert finding.evidence["n_operators_per_step"] == 90
    assert finding.evidence["device_ns"] == 3 * 90 * 500
    (where,) = finding.locations
    assert (where.file, where.line) == ("train.py", 10)
    assert finding.message == (
        "`SGD.step()` in train_step (train.py:10) updates one parameter after the other with 90 "
        "operators in all. It takes 990 µs per step (50%) on the host for 45.0 µs per step "
        "of kernels."
    )
    assert "`fused=True` to `torch.optim.SGD` (from torch 2.3 on)" in finding.fix


def build_updates(*, host_ns: int, python_ns: int, device_ns: int) -> TraceBuilder:
    """Build steps that wait for the update's 90 kernels, launched at some pace."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 200_000)
            with b.annotation("Optimizer.step#SGD.step"):
                for name in LOOP * 30:
                    b.launch(name, kernel="elementwise", host_ns=host_ns, device_ns=device_ns)
                    b.advance(python_ns)
            b.synchronize()
    return b


@pytest.mark.parametrize("device_ns", [500, 4_000, 9_000])
def test_it_costs_the_difference_to_a_program_with_a_tenth_of_the_host_time(
    found: Found, analyzed: Analyzed, device_ns: int
) -> None:
    """Both programs are built, so that the difference owes nothing to a replay."""
    slow = build_updates(host_ns=10_000, python_ns=1_000, device_ns=device_ns)
    # Launched so fast, kernels follow each other, with a microsecond from one to the next.
    fast = build_updates(host_ns=1_000, python_ns=0, device_ns=device_ns + 1_000)
    slow_ns, fast_ns = (
        sum(step.dur_ns for step in analyzed(b, RULE).summary.steps) for b in (slow, fast)
    )
    (finding,) = found(slow, RULE)
    assert finding.cost.ns == pytest.approx(slow_ns - fast_ns, rel=0.05)


def test_kernels_that_take_as_long_as_their_launches_remain(found: Found) -> None:
    b = training(device_ns=9_000, forward_ns=100_000)
    (finding,) = found(b, RULE)
    # The host needs 2 µs per operator instead of 11 µs, the kernels 10 µs: each of 9 µs starts 1 µs
    # after the one before. From 3,279 µs the end moves to 102 + 270 * 9 + 269 µs.
    assert finding.cost.ns == 478_000


def test_a_device_that_is_behind_saves_nothing(found: Found) -> None:
    assert found(training(device_ns=40_000, forward_ns=10_000), RULE) == ()


@pytest.mark.parametrize(
    ("optimizer", "kept_share"), [("Adam", 0.33), ("AdamW", 0.33), ("Adagrad", 0.45), ("SGD", 0.7)]
)
def test_on_a_cpu_it_costs_what_a_fused_step_was_measured_to_save(
    found: Found, optimizer: str, kept_share: float
) -> None:
    b = training(mark=f"Optimizer.step#{optimizer}.step", on_gpu=False)
    (finding,) = found(b, RULE)
    # Of 10 µs, 2 µs are those of any operator. Between two of them there is 1 µs of Python.
    assert finding.cost.per_step_ns == 90 * 10_000 - round(90 * 8_000 * kept_share) + 89 * 1_000
    assert finding.confidence == "medium"
    assert f"`fused=True` to `torch.optim.{optimizer}` (on a CPU from torch 2.4" in finding.fix
    assert "kernels" not in finding.message


def test_sgd_without_momentum_saves_dispatches_on_a_cpu(found: Found) -> None:
    (finding,) = found(training(("aten::add_",) * 90, on_gpu=False), RULE)
    assert finding.cost.per_step_ns == 90 * 2_000 + 89 * 1_000


def test_adam_reads_its_steps_in_a_loop_on_a_cpu(found: Found) -> None:
    mark = "Optimizer.step#Adam.step"
    (without,) = found(training(LOOP * 30, mark=mark, on_gpu=False), RULE)
    (finding,) = found(training((*LOOP, "aten::item") * 30, mark=mark, on_gpu=False), RULE)
    assert finding.cost.per_step_ns == (without.cost.per_step_ns or 0) + 30 * 11_000
    # Other operators and long pauses of the loop stay, with the Python beside them.
    (finding,) = found(training((*LOOP, "aten::dot") * 30, mark=mark, on_gpu=False), RULE)
    assert finding.cost.per_step_ns == (without.cost.per_step_ns or 0) - 29 * 1_000


def test_an_optimizer_without_a_fused_step_on_a_cpu_is_not_reported(found: Found) -> None:
    assert found(training(mark="Optimizer.step#RMSprop.step", on_gpu=False), RULE) == ()


@pytest.mark.parametrize("version", ["2.3.1", "2.4.0", "2.13.0+cpu"])
def test_a_version_that_the_program_has_is_no_condition(found: Found, version: str) -> None:
    b = training(on_gpu=False)
    b.capture = CaptureInfo(version="0", name="train", steps="user", torch=version)
    (finding,) = found(b, RULE)
    assert ("from torch 2.4 on" in finding.fix) == (version == "2.3.1")


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("Optimizer.step#RMSprop.step", "`foreach=True`, the default on GPUs since torch 2.0, to"),
        ("Optimizer.step#Lion.step", "a function that `torch.compile` compiles"),
        ("Optimizer.step#Adam.step", "`fused=True` to `torch.optim.Adam` (from torch 1.13 on)"),
    ],
)
def test_the_fix_is_one_that_the_class_has(found: Found, mark: str, said: str) -> None:
    (finding,) = found(training(mark=mark), RULE)
    assert said in finding.fix


@pytest.mark.parametrize("operators", [FOREACH, ("aten::_fused_sgd_",), FOREACH * 9])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_foreach_and_fused_are_the_fix(
    found: Found, operators: tuple[str, ...], *, on_gpu: bool
) -> None:
    b = training(operators, on_gpu=on_gpu, host_ns=300_000)
    assert found(b, RULE) == ()


def test_a_foreach_step_on_a_cpu_consists_of_operators_of_one_tensor(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step(), b.annotation("Optimizer.step#Adam.step"), b.op("aten::_foreach_add_"):
            for _ in range(50):
                b.compute("aten::add_", 10_000)
    assert found(b, RULE) == ()


def test_few_parameters_are_not_a_loop(found: Found) -> None:
    assert found(training(LOOP * 6, forward_ns=1_000), RULE) == ()


def test_little_time_is_a_note_and_next_to_none_is_not_a_finding(found: Found) -> None:
    (finding,) = found(training(forward_ns=40_000_000), RULE)
    assert finding.severity == "note"
    assert found(training(forward_ns=100_000_000), RULE) == ()


def test_operators_on_the_host_beside_a_gpu_do_not_count(found: Found) -> None:
    b = training(FOREACH)
    with b.step(), b.annotation("Optimizer.step#SGD.step"):
        for _ in range(500):
            b.compute("aten::add_", 10_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_closure_within_the_step_does_not_count(
    found: Found, analyzed: Analyzed, *, is_fused: bool
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.annotation("Optimizer.step#Adam.step"):
            for _ in range(100):
                b.launch("aten::mul", kernel="elementwise", host_ns=10_000, device_ns=1_000)
            with b.thread(3000), b.op("autograd::engine::evaluate_function: MulBackward0"):
                for _ in range(100):
                    b.launch("aten::mul", kernel="elementwise", host_ns=10_000, device_ns=1_000)
            for name in ("aten::_fused_adam_",) if is_fused else LOOP * 20:
                b.advance(1_000)
                b.launch(name, kernel="elementwise", host_ns=10_000, device_ns=500)
    findings = found(b, RULE)
    saved_ns = 3 * (60 * 9_000 + 59 * 1_000) - 59 * 500
    assert [finding.cost.ns for finding in findings] == ([] if is_fused else [saved_ns])

    # Neither is it the optimizer's time in a message, or among the kinds of work.
    update_ns = 3 * 60 * 11_000
    assert [finding.evidence["host_ns"] for finding in findings] == [update_ns][: len(findings)]
    kinds = {work.kind: work.n_calls for work in analyzed(b, RULE).summary.categories}
    assert kinds == {"pointwise": 600, "optimizer": 3 * (1 if is_fused else 60)}


def test_operators_outside_an_optimizer_are_not_an_optimizer(found: Found) -> None:
    b = training(FOREACH)
    with b.step():
        for _ in range(100):
            b.launch("aten::mul_", kernel="elementwise", host_ns=10_000, device_ns=1_000)
    assert found(b, RULE) == ()


def test_without_optimizer_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == ("KER004", "No step of an optimizer was recorded.")
