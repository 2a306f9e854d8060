"""grown-by-copies finds tensors that a loop appends to by ``torch.cat``."""

from collections.abc import Callable
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "grown-by-copies"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS, US = 1_000_000, 1_000
N_CALLS, ROWS, WIDTH = 8, 16, 32
ROW_NS = US
"""What a call takes for each row that it copies."""


def append(b: TraceBuilder, n_rows: int, n_new: int = ROWS) -> None:
    b.compute(
        "aten::cat",
        ROW_NS * (n_rows + n_new),
        dims=[[[n_rows, WIDTH], [n_new, WIDTH]], []],
        types=["TensorList", "Scalar"],
    )


def appending(*, n_calls: int = N_CALLS, reads: bool = False, other_ns: int = US) -> TraceBuilder:
    """A step that appends rows to a tensor, one batch after the other.

    Args:
        reads: Whether a layer reads the tensor after each call.
        other_ns: Time of what follows.
    """
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("embed.py", 10, "embed_all"):
        for n_rows in range(2 * ROWS, (n_calls + 2) * ROWS, ROWS):
            append(b, n_rows)
            if reads:
                b.compute("aten::linear", US, dims=[[n_rows + ROWS, WIDTH], [WIDTH, WIDTH]])
        b.compute("aten::relu", other_ns, dims=[[ROWS, WIDTH]])
    return b


def test_what_was_there_before_is_copied_in_vain(found: Found) -> None:
    (finding,) = found(appending(), RULE)
    assert finding.message == (
        "The loop in embed_all (embed.py:10) appends to a tensor by `torch.cat`, which copies all "
        "of it in each call: from 1,024 to 5,120 elements in 8 recorded calls, which take 832 µs "
        "per step (100%)."
    )
    assert "once after the loop" in finding.fix

    copied_ns = ROW_NS * sum(range(2 * ROWS, (N_CALLS + 2) * ROWS, ROWS))
    assert finding.cost.ns == pytest.approx(copied_ns, rel=0.01)
    assert (finding.cost.basis, finding.severity) == ("estimate", "warning")


def test_a_tensor_grows_from_step_to_step(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for number in range(3):
        with b.step(), b.frame("train.py", 5, "log"):
            append(b, ROWS * (number + 10))
            b.compute("aten::relu", 10 * US, dims=[[ROWS, WIDTH]])
    (finding,) = found(b, RULE)
    assert finding.cost.ns == pytest.approx(ROW_NS * ROWS * (10 + 11 + 12), rel=0.01)


def test_a_chain_of_other_shapes_beside_it_does_not_matter(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("embed.py", 10, "embed_all"):
        for n_rows in range(2 * ROWS, 10 * ROWS, ROWS):
            append(b, n_rows)
            append(b, 5, n_new=3)
    (finding,) = found(b, RULE)
    assert finding.evidence["last_elements"] == 10 * ROWS * WIDTH


def equal_tensors(b: TraceBuilder) -> None:
    for _ in range(N_CALLS):
        append(b, ROWS)


def unrelated_sizes(b: TraceBuilder) -> None:
    for n_rows in (2 * ROWS, 7 * ROWS, 20 * ROWS):
        append(b, n_rows)


@pytest.mark.parametrize("fill", [equal_tensors, unrelated_sizes])
def test_other_joins_are_not_reported(found: Found, fill: Callable[[TraceBuilder], None]) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step():
        fill(b)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(
    "changes",
    [{"reads": True}, {"n_calls": 2}, {"other_ns": 100 * MS}],
    ids=["layers read it, as of a DenseNet", "two calls", "little time"],
)
def test_other_loops_are_not_reported(found: Found, changes: dict[str, Any]) -> None:
    assert found(appending(**changes), RULE) == ()


def test_on_a_gpu_the_copies_are_kernels(found: Found) -> None:
    b = TraceBuilder()
    with b.step():
        for n_rows in range(2 * ROWS, 10 * ROWS, ROWS):
            b.launch(
                "aten::cat",
                kernel="CatArrayBatchedCopy",
                host_ns=5 * US,
                device_ns=ROW_NS * (n_rows + ROWS),
                dims=[[[n_rows, WIDTH], [ROWS, WIDTH]], []],
                types=["TensorList", "Scalar"],
            )
        b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.ns == pytest.approx(ROW_NS * ROWS * sum(range(2, 10)), rel=0.1)


def test_without_shapes_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    assert "KER024" in {check.rule for check in analyzed(device_alone, RULE).unchecked}
