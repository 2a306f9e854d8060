"""unused-gpu finds programs that multiply matrices on the CPU of a machine with a GPU."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline_sentences
from profkit.testing import TraceBuilder

RULE = "unused-gpu"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

GPUS = ["NVIDIA H200"]


def program(
    *,
    gpus: list[str] | None = None,
    cuda: str | None = "13.0",
    product_ns: int = 15_000_000,
    rest_ns: int = 5_000_000,
) -> TraceBuilder:
    """Two steps of matrix products and additions."""
    capture = CaptureInfo(
        version="0",
        name="train",
        steps="user",
        torch="2.13.0",
        cuda=cuda,
        unused_gpus=GPUS if gpus is None else gpus,
    )
    b = TraceBuilder(device_names=(), capture=capture)
    for _ in range(2):
        with b.step():
            b.compute("aten::mm", product_ns)
            b.compute("aten::add", rest_ns)
    return b


def test_it_names_the_gpu_and_the_time_of_what_it_is_made_for(found: Found) -> None:
    (finding,) = found(program(), RULE)
    assert finding.message == (
        "All work is on the CPU, and the NVIDIA H200 of this machine is not used. Matrix products "
        "and convolutions take 15.0 ms per step (75%)."
    )
    assert '`model.to("cuda")`' in finding.fix
    assert finding.cost.ns is None
    assert finding.evidence["product_ns"] == 30_000_000


def test_a_build_without_cuda_is_named(found: Found) -> None:
    (finding,) = found(program(cuda=None), RULE)
    assert finding.fix.startswith("Install a build of torch with CUDA")
    assert "torch 2.13.0 has none" in finding.fix


@pytest.mark.parametrize(
    "options",
    [
        {"gpus": []},
        {"product_ns": 1_000_000},
        {"product_ns": 2_000_000, "rest_ns": 500_000},
    ],
    ids=["no GPU", "few products", "short steps"],
)
def test_a_program_that_a_gpu_would_hardly_help_is_not_reported(
    found: Found, options: dict[str, object]
) -> None:
    assert found(program(**options), RULE) == ()  # type: ignore[arg-type]


def test_a_program_that_uses_a_device_is_not_reported(found: Found) -> None:
    capture = CaptureInfo(version="0", name="train", steps="user", unused_gpus=GPUS)
    b = TraceBuilder(capture=capture)
    with b.step():
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=20_000_000)
    assert found(b, RULE) == ()


def test_it_is_in_the_first_sentences(analyzed: Analyzed) -> None:
    first, second, *_ = headline_sentences(analyzed(program(), RULE))
    assert first.startswith("Operators take 100% of each 20.0 ms step on the CPU")
    assert second == "The machine has a GPU that the program does not use."


def test_a_recording_of_another_tool_is_unchecked(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", 50_000_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "CFG005"
