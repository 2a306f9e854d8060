"""scaler-sync finds the reads of gradient scalers, and no other read."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "scaler-sync"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"


def build_training(
    *,
    unscale: str = UNSCALE,
    clips: bool = False,
    reads: bool = True,
    update: str = "aten::_foreach_add_",
    between: str = "",
    device: str = "NVIDIA H200",
) -> TraceBuilder:
    """Build a backward pass of 500 µs, then what a gradient scaler's ``step`` runs, then Python."""
    b = TraceBuilder(stacks=True, device_names=(device,))
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=500_000)
            b.launch(unscale, kernel="multi_tensor_apply", host_ns=10_000, device_ns=10_000)
            if clips:
                b.launch("aten::_foreach_mul_", kernel="clip", host_ns=10_000, device_ns=10_000)
            if reads:
                b.item()
            if between:
                b.launch(between, kernel="other", host_ns=10_000, device_ns=1_000)
            with b.annotation("Optimizer.step#AdamW.step"):
                b.launch(update, kernel="multi_tensor_apply", host_ns=10_000, device_ns=50_000)
            b.advance(100_000)

    return b


def test_it_costs_the_idle_time_that_follows_the_wait(found: Found) -> None:
    (finding,) = found(build_training(), RULE)
    # A step takes 631 µs: the kernels run from 10 to 520 µs and the copy to 521 µs, then the host
    # launches the update and goes on for 100 µs. Without the read the device is never idle again.
    assert finding.cost.ns == 4 * 631_000 - (10_000 + 4 * 561_000)
    assert finding.cost.basis == "replay"
    assert (finding.severity, finding.n) == ("warning", 4)
    assert finding.message.startswith("`GradScaler.step()` in train_step (train.py:10) runs once ")
    assert "`fused=True`" in finding.fix
    assert "bfloat16" in finding.fix


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("unscale", [UNSCALE, "aten::_amp_non_finite_check_and_unscale_"])
def test_clipping_between_check_and_step_changes_nothing(
    found: Found, unscale: str, *, clips: bool
) -> None:
    b = build_training(clips=clips, unscale=unscale)
    assert len(found(b, RULE)) == 1
    assert found(b, "item-sync") == ()


def test_a_fused_optimizer_is_the_fix(found: Found) -> None:
    assert found(build_training(reads=False, update="aten::_fused_adamw_"), RULE) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "aten::_fused_adamw_"},
        {"unscale": "aten::add"},
        {"between": "aten::mul"},
    ],
    ids=["before a fused step", "without a scaler", "before other work"],
)
def test_other_reads_are_the_programs(found: Found, changes: dict[str, str]) -> None:
    b = build_training(**changes)  # type: ignore[arg-type]
    assert found(b, RULE) == ()
    assert len(found(b, "item-sync")) == 1


def test_a_gpu_without_bfloat16_is_not_told_to_use_it(found: Found) -> None:
    (finding,) = found(build_training(device="Tesla V100-SXM2-16GB"), RULE)
    assert "bfloat16" not in finding.fix


def test_on_a_cpu_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "SYN005"
