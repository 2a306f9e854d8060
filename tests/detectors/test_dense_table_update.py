"""dense-table-update finds tables that are updated whole, and none that a product uses too."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "dense-table-update"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
TABLE = [10_000, 16]
UPDATES = ("aten::lerp_", "aten::sqrt", "aten::addcdiv_")


def build_training(  # noqa: PLR0913  (each is a part of the program)
    n_read: int = 100,
    *,
    table: list[int] = TABLE,
    updated: Any = TABLE,  # noqa: ANN401  (a shape, or several)
    updates: tuple[str, ...] = UPDATES,
    optimizer: str = "Adam",
    operand: list[int] | None = None,
    n_tables: int = 1,
    is_sparse: bool = False,
    norm: tuple[str, Any] | None = None,
) -> TraceBuilder:
    """Steps of 1 ms of other work, of a gradient of 1 ms and of updates of 1 ms each."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            for _ in range(n_tables):
                b.compute("aten::embedding", 500_000, dims=[table, [n_read], [], [], []])
            if operand is not None:
                b.compute("aten::linear", 500_000, dims=[[32, 16], operand, []])
            else:
                b.compute("aten::relu", 500_000, dims=[[32, 16]])
            kind = "sparse" if is_sparse else "dense"
            b.compute(
                f"aten::embedding_{kind}_backward", 1_000_000, dims=[[n_read, 16], [n_read], []]
            )
            if norm is not None:
                b.compute(norm[0], 1_000, dims=norm[1])
            with b.annotation(f"Optimizer.step#{optimizer}.step") if optimizer else nullcontext():
                for name in updates:
                    b.compute(name, 1_000_000, dims=[updated])

    return b


def test_it_costs_what_sparse_updates_take_less(found: Found) -> None:
    (finding,) = found(build_training(), RULE)
    assert finding.cost.per_step_ns == pytest.approx(4_000_000 * (1 - 8 * 0.01), abs=3)
    assert (finding.severity, finding.confidence, finding.n) == ("warning", "medium", 3)
    assert finding.message == (
        "`Adam.step()` in train (train.py:10) updates all 10,000 rows of an embedding table in "
        "each step, which reads 100 of them at most. The update and its dense gradient take 4.00 "
        "ms per step (80%)."
    )
    assert "`torch.optim.SparseAdam`" in finding.fix


def test_tables_of_one_optimizer_are_one_finding(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    tables = ([10_000, 16], [5_000, 16])
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            for table in tables:
                b.compute("aten::embedding", 500_000, dims=[table, [100], [], [], []])
            b.compute("aten::embedding_dense_backward", 1_000_000, dims=[[100, 16], [100], []])
            b.compute("aten::embedding_dense_backward", 1_000_000, dims=[[100, 16], [100], []])
            with b.annotation("Optimizer.step#Adam.step"):
                for table in tables:
                    b.compute("aten::addcdiv_", 2_000_000, dims=[table])

    (finding,) = found(b, RULE)
    assert finding.message == (
        "`Adam.step()` in train (train.py:10) updates all 15,000 rows of embedding tables (10,000 "
        "and 5,000) in each step, which reads 200 of them at most. The update and its dense "
        "gradient take 6.00 ms per step (86%)."
    )
    assert finding.fix.endswith("give them to an optimizer of their own, `torch.optim.SparseAdam`.")
    # Eight times the share of read rows remains. Each gradient may be of either table.
    gradients_ns, updates_ns = 2_000_000 * (1 - 8 * 0.02), 2_000_000 * (2 - 8 * 0.01 - 8 * 0.02)
    assert finding.cost.per_step_ns == pytest.approx(gradients_ns + updates_ns, abs=5)


def test_tables_of_two_optimizers_are_two_findings(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    tables = {"Adam": [10_000, 16], "Adagrad": [5_000, 16]}
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            for table in tables.values():
                b.compute("aten::embedding", 500_000, dims=[table, [100], [], [], []])
                b.compute("aten::embedding_dense_backward", 1_000_000, dims=[[100, 16], [100], []])
            for name, table in tables.items():
                with b.annotation(f"Optimizer.step#{name}.step"):
                    b.compute("aten::addcdiv_", 2_000_000, dims=[table])
    findings = found(b, RULE)
    assert len(findings) == 2


def test_optimizers_that_take_sparse_gradients_are_kept(found: Found) -> None:
    (finding,) = found(build_training(optimizer="SGD", updates=("aten::add_",)), RULE)
    assert "SparseAdam" not in finding.fix
    assert "`torch.optim.SGD` then updates no others." in finding.fix


def test_a_fused_step_takes_no_sparse_gradients(found: Found) -> None:
    b = build_training(optimizer="SGD", updates=("aten::_fused_sgd_",), updated=[TABLE])
    (finding,) = found(b, RULE)
    assert finding.fix.endswith("; `torch.optim.SGD` without `fused=True` then updates no others.")


@pytest.mark.parametrize(
    ("name", "dims", "is_clipped"),
    [
        ("aten::linalg_vector_norm", [TABLE, [], []], True),
        ("aten::_foreach_norm", [[[16], TABLE], []], True),
        ("aten::_foreach_norm", [[[16], [16, 16]], []], False),
        ("aten::mul_", [TABLE], False),
    ],
)
def test_a_norm_of_gradients_takes_no_sparse_ones(
    found: Found,
    name: str,
    dims: Any,  # noqa: ANN401  (shapes)
    is_clipped: bool,  # noqa: FBT001
) -> None:
    (finding,) = found(build_training(norm=(name, dims)), RULE)
    advice = "Leave the table out of `clip_grad_norm_`, which takes no sparse gradients."
    assert finding.fix.endswith(advice) == is_clipped


def test_of_an_operator_for_all_parameters_the_tables_share_counts(found: Found) -> None:
    b = build_training(updated=[TABLE, [40_000]], updates=("aten::_fused_adam_",))
    (finding,) = found(b, RULE)
    # The gradient of 1 ms, and of the update the share 160,000 / 200,000.
    assert finding.cost.per_step_ns == pytest.approx(1_800_000 * (1 - 25 * 0.01), abs=3)


@pytest.mark.parametrize(
    "b",
    [
        build_training(1_001),  # more than a tenth of the rows
        build_training(400, n_tables=3),
        build_training(is_sparse=True, updates=("aten::add_",)),
        build_training(operand=TABLE),  # the output layer has the same weights
        build_training(operand=TABLE[::-1]),
        build_training(updated=[4]),
        build_training(optimizer=""),
        build_training(table=[10_000]),
        build_training(0),
    ],
)
def test_other_updates_are_silent(found: Found, b: TraceBuilder) -> None:
    assert found(b, RULE) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    with b.step():
        b.compute("aten::embedding", 1_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "KER015"


@pytest.mark.parametrize(("n_read", "is_dense_advice"), [(100, False), (5_000, True)])
def test_the_update_of_a_table_is_no_reason_to_fuse_the_optimizer(
    found: Found, n_read: int, *, is_dense_advice: bool
) -> None:
    b = build_training(n_read, updates=UPDATES * 8)
    assert bool(found(b, "unfused-optimizer")) == is_dense_advice
    assert bool(found(b, RULE)) != is_dense_advice
