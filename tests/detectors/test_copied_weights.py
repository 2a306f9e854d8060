"""copied-weights finds copies and averages of all weights in every step."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "copied-weights"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000
N_STEPS = 3
WEIGHTS = ([512, 20], [512], [512, 512], [1, 512])
AVERAGE = ("mul", "mul", "add")


def program(
    *operators: str,
    weights: tuple[list[int], ...] = WEIGHTS,
    in_bytes: bool = False,
    every: int = 1,
    is_passed_back: bool = False,
    in_optimizer: bool = False,
    other_ns: int = MS,
) -> TraceBuilder:
    """Steps that compute gradients of four weights, and run operators on each weight.

    Args:
        operators: Their names. Each takes 1 ms.
        weights: The weights that they run on.
        in_bytes: Whether they see the bytes of a storage.
        every: The steps in which they run: each, every second one.
        is_passed_back: Whether they have a backward pass.
        in_optimizer: Whether an optimizer's step runs them.
        other_ns: Time of the network.
    """
    b = TraceBuilder(stacks=True, shapes=True, device_names=())
    for step in range(N_STEPS):
        with b.step(), b.frame("train.py", 44, "update"):
            b.compute("aten::mm", other_ns, dims=[[32, 512], [512, 512]])
            for shape in WEIGHTS:
                b.compute("torch::autograd::AccumulateGrad", 1_000, dims=[shape])
            if step % every:
                continue
            calls = [(name, shape) for shape in weights for name in operators]
            if in_optimizer:
                with b.annotation("Optimizer.step#SGD.step"):
                    run(b, calls)
                continue
            run(b, calls, in_bytes=in_bytes, is_passed_back=is_passed_back)

    return b


def run(
    b: TraceBuilder,
    calls: list[tuple[str, list[int]]],
    *,
    in_bytes: bool = False,
    is_passed_back: bool = False,
) -> None:
    for number, (name, shape) in enumerate(calls):
        n_elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        dims = [[4 * n_elements] if in_bytes else shape]
        b.compute(f"aten::{name}", MS, dims=dims, sequence=number if is_passed_back else None)

    for number in range(len(calls) if is_passed_back else 0):
        with b.op("MulBackward0", sequence=number, self_ns=1_000) as node:
            node.args |= {"Fwd thread id": 1}  # type: ignore[operator]


def test_an_average_in_new_tensors_keeps_a_share_in_place(found: Found) -> None:
    (finding,) = found(program(*AVERAGE), RULE)
    assert finding.message == (
        "The program in update (train.py:44) averages all weights in new tensors in every step, "
        "1.04 MiB by 12 operators. They take 12.0 ms per step (92%)."
    )
    assert finding.cost.per_step_ns == pytest.approx(0.8 * 12 * MS)
    assert (finding.cost.basis, finding.severity) == ("estimate", "warning")
    assert "_foreach_lerp_" in finding.fix


def test_a_copy_is_an_upper_bound(found: Found) -> None:
    (finding,) = found(program("copy_", in_bytes=True), RULE)
    assert "copies all weights in every step" in finding.message
    assert (finding.cost.per_step_ns, finding.cost.basis) == (4 * MS, "upper-bound")


def test_an_average_needs_no_copy(found: Found) -> None:
    (finding,) = found(program("clone", *AVERAGE), RULE)
    assert "averages all weights in new tensors, and copies them," in finding.message
    assert finding.fix.endswith("It needs no copy of them.")


@pytest.mark.parametrize(
    ("operators", "changes"),
    [
        (("mul_", "add_"), {}),
        (("mul", "sub_"), {}),
        ((*AVERAGE, *AVERAGE, "sqrt", "div", "sub_"), {}),
        (("clone",), {"is_passed_back": True}),
        (("clone",), {"in_optimizer": True}),
        (("clone",), {"every": 2}),
        (("clone",), {"weights": WEIGHTS[:2]}),
        (("clone",), {"other_ns": 200 * MS}),
    ],
    ids=[
        "in place", "a step by hand", "Adam by hand", "weights of an inner loop", "an optimizer",
        "some steps", "some weights", "little time",
    ],
)  # fmt: skip
def test_other_operators_on_weights_are_not_reported(
    found: Found, operators: tuple[str, ...], changes: dict[str, object]
) -> None:
    assert found(program(*operators, **changes), RULE) == ()  # type: ignore[arg-type]


def test_it_is_silent_without_gradients(found: Found) -> None:
    b = TraceBuilder(shapes=True, device_names=())
    with b.step():
        b.compute("aten::clone", MS, dims=[[512, 512]])
    assert found(b, RULE) == ()


def test_without_shapes_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::clone", MS)
    assert analyzed(b, RULE).unchecked[0].rule == "KER022"
