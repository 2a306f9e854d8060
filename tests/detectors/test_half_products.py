"""half-products finds products in half precision that a CPU has no arithmetic for."""

from collections.abc import Callable
from typing import Any

import pytest

from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "half-products"
Found = Callable[..., tuple[Finding, ...]]
MS = 1_000_000
SQUARE = [[64, 64], [64, 64]]


def on_cpu(
    kind: str = "c10::BFloat16",
    operator: str = "aten::mm",
    dims: list[list[int]] = SQUARE,
    *,
    has: tuple[str, ...] | None = (),
    dur_ns: int = 8 * MS,
) -> TraceBuilder:
    """Three steps of 10 ms with a product at line 10."""
    half_types = None if has is None else list(has)
    capture = CaptureInfo(version="0", name="train", steps="user", half_types=half_types)
    b = TraceBuilder(stacks=True, shapes=True, device_names=(), capture=capture)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.compute(operator, dur_ns, dims=dims, types=[kind] * len(dims))
            b.compute("aten::relu", 10 * MS - dur_ns)
    return b


@pytest.mark.parametrize(
    ("kind", "name", "saved_ns"),
    [("c10::BFloat16", "bfloat16", 6 * MS), ("c10::Half", "float16", 6_800_000)],
)
def test_products_take_a_part_of_their_time_in_float32(
    found: Found, kind: str, name: str, saved_ns: int
) -> None:
    (finding,) = found(on_cpu(kind), RULE)
    assert finding.message == (
        f"Products in forward (train.py:10) run once per step in {name}, which takes 8.00 ms per "
        "step (80%). This processor has no arithmetic for it and converts each number first."
    )
    assert (finding.cost.per_step_ns, finding.cost.basis) == (saved_ns, "estimate")
    assert "leave out `torch.autocast`" in finding.fix


@pytest.mark.parametrize(
    ("operator", "dims"),
    [
        ("aten::addmm", [[64], [64, 64], [64, 64]]),
        ("aten::bmm", [[2, 64, 64], [2, 64, 64]]),
        ("aten::baddbmm", [[2, 64, 64], [2, 64, 64], [2, 64, 64]]),
    ],
)
def test_it_finds_all_kinds_of_products(found: Found, operator: str, dims: list[list[int]]) -> None:
    assert len(found(on_cpu("c10::BFloat16", operator, dims), RULE)) == 1


@pytest.mark.parametrize(
    "words",
    [
        {"has": ("bfloat16",)},
        {"kind": "float"},
        {"operator": "aten::mul"},
        {"dims": [[1, 64], [64, 64]]},
        {"operator": "aten::addmm", "dims": [[64], [4, 64], [64, 64]]},
        {"dur_ns": MS // 2},
    ],
    ids=["arithmetic", "float32", "no product", "one row", "four rows", "short"],
)
def test_what_is_as_fast_as_in_float32_is_not_reported(found: Found, words: dict[str, Any]) -> None:
    assert found(on_cpu(**words), RULE) == ()


def test_products_of_a_gpu_are_not_a_processors(found: Found) -> None:
    capture = CaptureInfo(version="0", name="train", steps="user", half_types=[])
    b = TraceBuilder(shapes=True, capture=capture)
    for _ in range(3):
        with b.step():
            b.launch(
                "aten::mm",
                kernel="gemm",
                host_ns=10_000,
                device_ns=8 * MS,
                dims=SQUARE,
                types=["c10::BFloat16"] * 2,
            )
            b.synchronize()
    assert found(b, RULE) == ()


def test_it_is_skipped_where_the_processor_is_not_known(
    analyzed: Callable[..., Report],
) -> None:
    (unchecked,) = analyzed(on_cpu(has=None), RULE).unchecked
    assert unchecked.rule == "KER025"
