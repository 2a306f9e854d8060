"""Programs that do anything that a builder can, for tests of what holds for all of them."""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from profkit.testing import TraceBuilder

ACTIONS: tuple[Callable[[TraceBuilder], object], ...] = (
    lambda b: b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=700_000, stream=13),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=90_000, device=1),
    lambda b: b.launch(
        "aten::mm",
        kernel="cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align1",
        host_ns=9_000,
        device_ns=70_000,
        dims=[[64, 63], [63, 65]],
    ),
    lambda b: b.launch(
        "aten::mm",
        kernel="cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4",
        host_ns=9_000,
        device_ns=30_000,
        dims=[[64, 64], [64, 64]],
    ),
    lambda b: b.kernel("sgemm", 60_000, **{"blocks per SM": 1.25}),
    lambda b: b.peer_copy(1 << 20, 50_000),
    lambda b: b.item(),
    lambda b: b.item(on_device=False),
    lambda b: b.to_host(4_096, 3_000),
    lambda b: b.to_device(1 << 22, 90_000),
    lambda b: b.to_device(32, 1_000, pinned=True),
    lambda b: b.compute("aten::zeros", 2_000),
    lambda b: b.synchronize(),
    lambda b: b.synchronize("EventSynchronize"),
    lambda b: b.load(80_000),
    lambda b: b.call("Malloc", 70_000),
    lambda b: b.call("Free", 70_000),
    lambda b: b.call("LaunchKernel", 4_000),
    lambda b: b.kernel("orphan", 5_000),
    lambda b: b.graph_launch([("a", 2_000), ("b", 1_000)]),
    lambda b: b.alloc(1 << 20),
    lambda b: b.alloc(1 << 12, device=None),
    lambda b: b.free_earlier(1 << 20),
    lambda b: b.overhead("Buffer Flush", 30_000),
    lambda b: b.advance(250_000),
)

programs = st.lists(st.lists(st.integers(0, len(ACTIONS) - 1), max_size=12), min_size=1, max_size=5)

briefly = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
"""A few dozen programs, the same ones each time, that may share a test's folder."""


def played(program: list[list[int]], *, steps: bool, stacks: bool = True) -> TraceBuilder:
    """Build the recording of a program.

    Args:
        program: The numbers of its actions, in stretches, each below a line and in a module.
        steps: Whether each stretch is a step, or else a region.
        stacks: Whether Python's stacks are recorded.
    """
    b = TraceBuilder(stacks=stacks, memory=True)
    for body in program:
        around = b.step() if steps else b.annotation("region")
        with around, b.frame("train.py", 3, "main"), b.module("Net"):
            for number in body:
                ACTIONS[number](b)
    return b
