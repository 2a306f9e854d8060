"""Programs with casts, for the tests of repeated-casts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from profkit.testing import TraceBuilder
from tests.examples.on_a_device import BF16, DOWN, UP

DOWN_NS, UP_NS, PRODUCT_NS, RELU_NS = 30_000, 20_000, 100_000, 10_000


def cast(
    b: TraceBuilder,
    kernel: str,
    device_ns: int,
    *,
    sequence: int | None = None,
    asked: str = "aten::to",
    device: int = 0,
) -> None:
    """Add a nested conversion: ``aten::to`` > ``aten::_to_copy`` > ``aten::copy_``."""
    with (
        b.op(asked, sequence=sequence),
        b.op("aten::_to_copy", sequence=sequence),
        b.op("aten::copy_"),
    ):
        ident = b.call("LaunchKernel", 4_000)
        b.kernel(kernel, device_ns, correlation=ident, device=device)


def down(b: TraceBuilder, *, sequence: int | None = None, device: int = 0) -> None:
    cast(b, DOWN, DOWN_NS, sequence=sequence, device=device)


def up(b: TraceBuilder, *, sequence: int | None = None, device: int = 0) -> None:
    cast(b, UP, UP_NS, sequence=sequence, device=device)


def relu(b: TraceBuilder, op: str = "aten::relu") -> None:
    b.launch(op, kernel="relu", host_ns=5_000, device_ns=RELU_NS)


def product(b: TraceBuilder) -> None:
    b.launch("aten::addmm", kernel=BF16, host_ns=5_000, device_ns=PRODUCT_NS)


def layers(b: TraceBuilder, n: int, between: Callable[[TraceBuilder], None] = relu) -> None:
    """Layers that cast down, multiply, and cast up."""
    for _ in range(n):
        with b.frame("net.py", 8, "forward"):
            with b.builtin("method bfloat16 of Tensor object at 0x7f0"):
                down(b)
            product(b)
            with b.frame("net.py", 9, "back"), b.builtin("method float of Tensor object at 0x7f"):
                up(b)
        between(b)


def network(
    n: int = 4, between: Callable[[TraceBuilder], None] = relu, *, runtime: str = "cuda"
) -> TraceBuilder:
    """Three steps of a network of some layers, whose loss is computed in float32."""
    b = TraceBuilder(stacks=True, runtime=runtime)
    for _ in range(3):
        with b.step():
            layers(b, n, between)
            relu(b, "aten::_log_softmax")
            b.synchronize()
    return b


@contextmanager
def backward(b: TraceBuilder, node: str, sequence: int) -> Iterator[None]:
    """Add a node of autograd, on the thread of autograd."""
    name = f"autograd::engine::evaluate_function: {node}"
    with (
        b.thread(2000),
        b.op(name, sequence=sequence) as around,
        b.op(node, sequence=sequence) as event,
    ):
        for operator in (around, event):
            assert operator.args is not None
            operator.args["Fwd thread id"] = 1
        yield


def trained(b: TraceBuilder, n: int, asked: str | None = None) -> None:
    """Add a training step: layers, and the gradients of their casts."""
    first = 10
    with b.frame("net.py", 8, "forward"):
        for number in range(first, first + 2 * n, 2):
            for cast, sequence in ((down, number), (up, number + 1)):
                if asked is None:
                    cast(b, sequence=sequence)
                else:
                    with b.op(asked, sequence=sequence):
                        cast(b, sequence=sequence)
                (product if cast is down else relu)(b)
    relu(b, "aten::_log_softmax")
    for number in reversed(range(first, first + 2 * n)):
        with backward(b, "ToCopyBackward0", number):
            (up if number % 2 == 0 else down)(b)
