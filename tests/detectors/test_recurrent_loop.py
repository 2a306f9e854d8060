"""recurrent-loop finds recurrent cells that run operator by operator."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "recurrent-loop"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS, US = 1_000_000, 1_000
N_STEPS, N_TIMES = 2, 30
OP_NS = 5 * US

LSTM: tuple[str, ...] = (
    "select",
    "cat",
    "linear",
    "chunk",
    "sigmoid",
    "sigmoid",
    "sigmoid",
    "tanh",
    "mul",
    "mul",
)
LSTM += ("add", "tanh", "mul")
GRU = ("select", "linear", "linear", "sigmoid", "sigmoid", "tanh", "rsub", "mul", "mul", "add")
RNN = ("select", "linear", "linear", "add", "tanh")
CELL = ("select", "lstm_cell")
MLP = ("linear", "tanh")
GATED = ("linear", "linear", "tanh", "sigmoid", "mul", "add")
ATTENTION = ("select", "bmm", "softmax", "bmm", "cat", "lstm_cell")
LEAKY = ("select", "linear", "tanh", "mul", "add")


def program(
    body: tuple[str, ...], *, n_times: int = N_TIMES, op_ns: int = OP_NS, other_ns: int = MS
) -> TraceBuilder:
    """Steps in which a loop runs the same operators for each time step.

    Args:
        body: The operators of a time step.
        op_ns: The time of each.
        other_ns: Time of what follows.
    """
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(N_STEPS):
        with b.step(), b.frame("train.py", 20, "forward"):
            for _ in range(n_times):
                for name in body:
                    b.compute(f"aten::{name}", op_ns)
            b.compute("aten::relu", other_ns)

    return b


@pytest.mark.parametrize(
    ("body", "layer", "kept"),
    [(LSTM, "LSTM", 0.1), (GRU, "GRU", 0.55), (RNN, "RNN", 0.55), (CELL, "LSTM", 0.1)],
    ids=["LSTM", "GRU", "RNN", "nn.LSTMCell"],
)
def test_what_calling_the_operators_takes_is_saved_but_a_share(
    found: Found, body: tuple[str, ...], layer: str, kept: float
) -> None:
    (finding,) = found(program(body, other_ns=US), RULE)
    assert finding.fix.startswith(f"Use `nn.{layer}`")
    loop_ns = N_TIMES * len(body) * OP_NS
    assert finding.cost.per_step_ns == pytest.approx((1 - kept) * loop_ns, rel=0.02)
    assert (finding.cost.basis, finding.evidence["time_steps"]) == ("estimate", N_TIMES)


def test_it_names_the_loop_and_counts_its_backward_pass(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for step in range(N_STEPS):
        numbers = range(step * 2 * N_TIMES, (step + 1) * 2 * N_TIMES, 2)
        with b.step(), b.frame("train.py", 20, "forward"):
            for number in numbers:
                b.compute("aten::select", OP_NS)
                b.compute("aten::lstm_cell", OP_NS, sequence=number)
            for number in reversed(numbers):
                with b.op("LstmCellBackward0", sequence=number, self_ns=2 * OP_NS) as node:
                    node.args |= {"Fwd thread id": 1}  # type: ignore[operator]
    (finding,) = found(b, RULE)
    assert finding.message == (
        "The loop in forward (train.py:20) runs the operators of an LSTM for one time step after "
        "the other: 60 operators per step of the program, in up to 30 time steps. With their "
        "backward pass they take 600 µs per step (100%)."
    )

    assert finding.cost.per_step_ns == pytest.approx(0.9 * 600 * US, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": MLP},
        {"body": GATED},
        {"body": ATTENTION},
        {"body": LEAKY},
        {"body": LSTM, "n_times": 8},
        {"body": LSTM, "other_ns": 500 * MS},
    ],
    ids=[
        "layers of a network", "gated layers", "attention to the state", "another cell",
        "a few time steps", "little time",
    ],
)  # fmt: skip
def test_other_loops_are_not_reported(found: Found, changes: dict[str, object]) -> None:
    assert found(program(**changes), RULE) == ()  # type: ignore[arg-type]


def test_large_products_take_as_long_in_one_call(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(N_STEPS):
        with b.step(), b.frame("train.py", 20, "forward"):
            for _ in range(N_TIMES):
                for name in LSTM:
                    with b.op(f"aten::{name}", self_ns=US):
                        if name == "linear":
                            b.compute("aten::addmm", 2 * MS)
    assert found(b, RULE) == ()


def test_on_a_gpu_it_saves_launches(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(N_STEPS):
        with b.step():
            for _ in range(N_TIMES):
                for name in LSTM:
                    b.launch(f"aten::{name}", kernel=name, host_ns=10 * US, device_ns=2 * US)
            b.synchronize()
    (finding,) = found(b, RULE)
    assert finding.cost.ns is not None
    assert finding.cost.ns > 0


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    assert "KER021" in {check.rule for check in analyzed(device_alone, RULE).unchecked}
