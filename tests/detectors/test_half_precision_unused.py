"""half-precision-unused finds float32 products on GPUs whose tensor cores multiply float16."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "half-precision-unused"
FULL = "volta_sgemm_128x64_tn"
CONVOLVED = "volta_scudnn_128x64_relu_interior_nn_v1"
HALF = "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    kernel: str = FULL,
    *,
    name: str = "Tesla V100-SXM2-16GB",
    capability: tuple[int, int] = (7, 0),
    device_ns: int = 300_000,
    other: str = "relu",
) -> TraceBuilder:
    """Three steps of a product of 300 µs at line 12 and another kernel of 100 µs."""
    major, minor = capability
    device = {"id": 0, "name": name, "computeMajor": major, "computeMinor": minor}
    b = TraceBuilder(head={"deviceProperties": [device]}, stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 12, "forward"):
            b.launch("aten::addmm", kernel=kernel, host_ns=9_000, device_ns=device_ns)
            b.launch("aten::relu", kernel=other, host_ns=9_000, device_ns=100_000)
            b.synchronize()
    return b


@pytest.mark.parametrize("kernel", [FULL, CONVOLVED])
def test_it_costs_two_thirds_of_the_products(found: Found, kernel: str) -> None:
    (finding,) = found(training(kernel), RULE)
    assert finding.cost.per_step_ns == 200_000
    assert finding.cost.basis == "estimate"
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 3)
    assert finding.evidence["busy_share"] == 0.75
    (where,) = finding.locations
    assert (where.file, where.line) == ("train.py", 12)
    assert finding.message == (
        "Matrix products and convolutions in float32 in forward (train.py:12), once per step, take "
        "300 µs per step (75% of the GPU's busy time). Nothing runs on its tensor cores, which "
        "multiply float16."
    )
    assert finding.fix.startswith("Run the model under `torch.autocast(")


@pytest.mark.parametrize(("torch", "before"), [("2.2.0", True), ("2.9.1+cu128", False)])
def test_gradients_need_a_scaler(found: Found, torch: str, before: bool) -> None:  # noqa: FBT001
    b = training()
    b.capture = CaptureInfo(version="1", name="train", steps="optimizer", torch=torch)
    with b.annotation("Optimizer.step#SGD.step"):
        b.compute("aten::add_", 1_000)
    (finding,) = found(b, RULE)
    assert "and scale the loss by `torch.amp.GradScaler()`" in finding.fix
    assert ("`torch.cuda.amp.GradScaler()` before torch 2.3" in finding.fix) == before


def test_bfloat16_that_these_gpus_multiply_on_cuda_cores_is_found(found: Found) -> None:
    kernel = "void magma_sgemmEx_kernel<float, __nv_bfloat16, __nv_bfloat16, false, 6, 4, 6>(int)"
    (finding,) = found(training(kernel, name="Tesla T4", capability=(7, 5)), RULE)
    assert finding.cost.per_step_ns == 200_000
    assert finding.message.startswith(
        "Matrix products and convolutions in bfloat16 in forward (train.py:12), once per step,"
    )
    assert finding.fix.startswith("Use `torch.float16` instead of `torch.bfloat16`")


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA GeForce RTX 2080 Ti", "Quadro RTX 6000"])
def test_turing_boards_with_tensor_cores_are_found(found: Found, name: str) -> None:
    assert len(found(training(name=name, capability=(7, 5)), RULE)) == 1


@pytest.mark.parametrize("name", ["NVIDIA GeForce GTX 1660 Ti", "NVIDIA GeForce MX450", "T1000"])
def test_turing_boards_without_tensor_cores_are_not_reported(found: Found, name: str) -> None:
    assert found(training(name=name, capability=(7, 5)), RULE) == ()


@pytest.mark.parametrize("capability", [(6, 0), (6, 1), (8, 0), (9, 0)])
def test_other_architectures_are_not_reported(found: Found, capability: tuple[int, int]) -> None:
    assert found(training(capability=capability), RULE) == ()


def test_under_autocast_it_is_silent(found: Found) -> None:
    assert found(training(HALF), RULE) == ()


def test_a_program_that_uses_tensor_cores_has_chosen_float32_for_the_rest(found: Found) -> None:
    assert found(training(other=HALF), RULE) == ()


@pytest.mark.parametrize("kernel", ["volta_dgemm_64x64_nn", "elementwise_kernel", "ncclAllReduce"])
def test_other_kernels_are_not_reported(found: Found, kernel: str) -> None:
    assert found(training(kernel), RULE) == ()


def test_short_kernels_and_small_shares_are_not_reported(found: Found) -> None:
    assert found(training(device_ns=9_000), RULE) == ()
    assert found(training(), RULE, min_busy_share=0.8) == ()


def test_where_the_host_is_late_it_is_a_note(found: Found) -> None:
    b = training()
    for _ in range(3):
        with b.step():
            b.launch("aten::addmm", kernel=FULL, host_ns=90_000_000, device_ns=300_000)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"


def test_it_is_skipped_without_a_compute_capability(
    analyzed: Analyzed, device_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert (unchecked.rule, unchecked.reason) == (
        "KER011",
        "The compute capability of an NVIDIA GPU was not recorded.",
    )
