"""pairwise-broadcast finds tensors of all pairs that a matrix product replaces."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "pairwise-broadcast"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000
A, B, PAIRS = [256, 1, 64], [1, 256, 64], [256, 256, 64]
Operator = tuple[str, list[list[int]], int]

DISTANCES: list[Operator] = [
    ("aten::sub", [A, B], 4 * MS),
    ("aten::pow", [PAIRS], 2 * MS),
    ("aten::sum", [PAIRS], 2 * MS),
]
PRODUCTS: list[Operator] = [("aten::mul", [A, B], 6 * MS), ("aten::sum", [PAIRS], 2 * MS)]
COSINES: list[Operator] = [("aten::cosine_similarity", [A, B], 8 * MS)]


def program(operators: list[Operator], *, other_ns: int = 2 * MS) -> TraceBuilder:
    """Three steps of 10 ms with some operators of one function."""
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with b.step():
            with b.frame("train.py", 10, "compare"):
                for name, dims, dur_ns in operators:
                    with b.op(name, self_ns=dur_ns, dims=dims, types=["float"] * len(dims)):
                        pass
            with b.frame("train.py", 20, "forward"):
                b.compute("aten::mm", other_ns)
    return b


@pytest.mark.parametrize(
    ("operators", "fix"),
    [(DISTANCES, "torch.cdist(a, b)"), (PRODUCTS, "`a @ b.mT`"), (COSINES, "F.normalize(a")],
    ids=["distances", "products", "cosines"],
)
def test_it_costs_what_a_product_saves_of_the_operators_on_the_large_tensor(
    found: Found, operators: list[Operator], fix: str
) -> None:
    (finding,) = found(program(operators), RULE)
    assert finding.message == (
        "Tensors of (256, 1, 64) and (1, 256, 64) are broadcast to (256, 256, 64), 16.0 MiB, in "
        "compare (train.py:10) and reduced again, which takes 8.00 ms per step (80%)."
    )
    assert (finding.cost.per_step_ns, finding.cost.basis) == (7_200_000, "estimate")
    assert fix in finding.fix
    assert finding.n == 3


def test_the_backward_pass_belongs_to_it(found: Found) -> None:
    backward: Operator = ("PowBackward0", [PAIRS], 5 * MS)
    (finding,) = found(program([*DISTANCES, backward]), RULE)
    assert finding.cost.per_step_ns == round(0.9 * 13 * MS)


def test_operators_within_one_count_once(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for _ in range(3):
        with (
            b.step(),
            b.op("aten::cosine_similarity", dims=[A, B], types=["float"] * 2),
            b.op("aten::mul", self_ns=10 * MS, dims=[PAIRS, PAIRS], types=["float"] * 2),
        ):
            pass
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 9 * MS


def test_on_a_gpu_the_kernels_count(found: Found) -> None:
    b = TraceBuilder(stacks=True, shapes=True)
    for _ in range(3):
        with b.step():
            for name, dims, dur_ns in DISTANCES:
                b.launch(
                    name,
                    kernel="elementwise",
                    host_ns=10_000,
                    device_ns=dur_ns,
                    dims=dims,
                    types=["float"] * len(dims),
                )
            b.synchronize()

    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == pytest.approx(7_200_000, rel=0.02)


@pytest.mark.parametrize(
    "operators",
    [
        [*PRODUCTS, ("aten::tanh", [PAIRS], MS)],
        [("aten::mul", [A, B], 8 * MS)],
        [("aten::mul", [PAIRS, [1, 1, 64]], 6 * MS), ("aten::sum", [PAIRS], 2 * MS)],
        [("aten::mul", [[8, 1, 64], [1, 8, 64]], 6 * MS), ("aten::sum", [[8, 8, 64]], 2 * MS)],
        [("aten::mul", [[256, 1], [1, 256]], 6 * MS), ("aten::sum", [[256, 256]], 2 * MS)],
    ],
    ids=["nonlinear", "not reduced", "a bias", "small", "an outer product"],
)
def test_what_a_product_does_not_replace_is_not_reported(
    found: Found, operators: list[Operator]
) -> None:
    assert found(program(operators), RULE) == ()


def test_where_it_takes_little_it_is_not_reported(found: Found) -> None:
    assert found(program(DISTANCES, other_ns=200 * MS), RULE) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mul", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "KER018"
