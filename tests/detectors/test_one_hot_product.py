"""one-hot-product finds one-hot vectors that are multiplied by a matrix."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "one-hot-product"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000
INDICES, VECTORS, FLAT, MATRIX = [128, 4], [128, 4, 5000], [512, 5000], [5000, 100]
READ_SHARE = 4 / 5000 + 4 / 512


def program(
    *,
    vectors: list[int] = VECTORS,
    factors: tuple[list[int], list[int]] = (FLAT, MATRIX),
    other_ns: int = MS,
    is_made_first: bool = True,
) -> TraceBuilder:
    """Three steps that make one-hot vectors, multiply them, and compute something else."""
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            if not is_made_first:
                b.compute("aten::mm", 4 * MS, dims=factors)
            b.compute("aten::one_hot", MS, dims=[INDICES])
            with b.op("aten::to", dims=[vectors]):
                b.compute("aten::_to_copy", 2 * MS, dims=[vectors])
            if is_made_first:
                with b.op("aten::linear", dims=[vectors, [100, 5000]]):
                    b.compute("aten::mm", 4 * MS, dims=factors)
            b.compute("aten::relu", other_ns, dims=[[512, 100]])
    return b


def test_it_costs_what_a_lookup_saves_of_the_vectors_and_the_product(found: Found) -> None:
    (finding,) = found(program(), RULE)
    assert finding.message == (
        "Indices of (128, 4) become one-hot vectors of 5,000 classes, which are multiplied by a "
        "matrix in forward (train.py:10). Both take 7.00 ms per step (88%)."
    )
    assert finding.cost.per_step_ns == round((1 - READ_SHARE) * 7 * MS)
    assert finding.cost.basis == "estimate"
    assert "`nn.Embedding(5000, width)`" in finding.fix


def test_the_product_of_the_backward_pass_belongs_to_it(found: Found) -> None:
    b = program()
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.compute("aten::one_hot", MS, dims=[INDICES])
            b.compute("aten::to", MS, dims=[VECTORS])
            b.compute("aten::mm", 4 * MS, dims=[[100, 512], FLAT])
    (finding,) = found(b, RULE)
    assert finding.evidence["spent_ns"] == 3 * 7 * MS + 3 * 6 * MS


def test_few_classes_cost_nine_tenths(found: Found) -> None:
    few = program(vectors=[128, 4, 64], factors=([512, 64], [64, 100]))
    (finding,) = found(few, RULE)
    assert finding.cost.per_step_ns == round((1 - 4 / 64 - 4 / 512) * 7 * MS)
    assert found(program(vectors=[8, 4, 64], factors=([32, 64], [64, 100])), RULE) == ()


def test_on_a_gpu_the_kernels_count(found: Found) -> None:
    b = TraceBuilder(shapes=True)
    for _ in range(3):
        with b.step():
            for name, dims in (
                ("aten::one_hot", [INDICES]),
                ("aten::to", [VECTORS]),
                ("aten::mm", [FLAT, MATRIX]),
            ):
                b.launch(name, kernel=name, host_ns=10_000, device_ns=2 * MS, dims=dims)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == pytest.approx((1 - READ_SHARE) * 6 * MS, rel=0.02)


def test_an_embedding_is_the_fix(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.compute("aten::embedding", MS, dims=[MATRIX, INDICES])
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"vectors": [128, 4, 10], "factors": ([512, 10], [10, 100])},
        {"factors": ([512, 300], [300, 100]), "vectors": [512, 5000]},
        {"is_made_first": False},
        {"other_ns": 500 * MS},
    ],
    ids=["few classes", "labels of a loss", "a product before", "little time"],
)
def test_what_a_lookup_does_not_replace_is_not_reported(
    found: Found, changes: dict[str, object]
) -> None:
    assert found(program(**changes), RULE) == ()  # type: ignore[arg-type]


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::one_hot", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "KER019"
