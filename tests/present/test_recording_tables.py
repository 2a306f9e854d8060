"""Tables of modules, kernels and allocations, against known and independently counted values."""

from pathlib import Path

import pytest

from profkit.api import AnalysisResult, study
from profkit.model.events import Category
from profkit.present.recording_tables import (
    find_kernel_extremes,
    find_largest_allocations,
    find_module_times,
    find_operator_memory,
)
from profkit.testing import TraceBuilder
from tests.tensorboard.recordings import GEMM_NS, MB, RELU_NS, STEPS, write_gpu_training

RECORDED = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    return study(write_gpu_training(tmp_path_factory.mktemp("train")))


def test_device_time_belongs_to_the_innermost_module(trained: AnalysisResult) -> None:
    module_of = {
        module_time.name: module_time
        for module_time in find_module_times(trained.recording.context)
    }
    assert {name: module.device_ns for name, module in module_of.items()} == {
        "Linear_0": STEPS * GEMM_NS,
        "Net_0": STEPS * RELU_NS,
    }
    assert (module_of["Linear_0"].parent, module_of["Net_0"].parent) == ("Net_0", None)
    assert {module.n_calls for module in module_of.values()} == {STEPS}
    assert module_of["Linear_0"].total_ns == STEPS * 20_000
    assert module_of["Net_0"].total_ns == STEPS * 40_000
    assert module_of["Linear_0"].op_ns == module_of["Net_0"].op_ns == STEPS * 20_000


def test_module_times_with_lines_of_another_step_sum_all_operators() -> None:
    (path,) = (RECORDED / "starved_loader").glob("*.gz")
    ctx = study(path).recording.context
    is_op = ctx.events.category == Category.OP
    caller = ctx.tree.enclosing(is_op)
    own_ns: dict[str, int] = {}
    for row in ctx.events.rows_of(Category.OP).tolist():
        if (module := ctx.source.module[row]) >= 0:
            name = ctx.source.modules[module]
            called = ctx.events.dur_ns[(caller == row) & is_op]
            own_ns[name] = own_ns.get(name, 0) + int(ctx.events.dur_ns[row] - called.sum())
    assert own_ns
    assert {
        module.name: module.op_ns for module in find_module_times(ctx) if module.n_ops
    } == own_ns


def test_kernel_extremes_are_the_shortest_and_longest_call(tmp_path: Path) -> None:
    b = TraceBuilder()
    for ns in (30_000, 10_000, 20_000):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=ns)
    studied = study(b.write(tmp_path / "t.json"))
    kernels = studied.report.summary.top_kernels
    assert [kernel.name for kernel in kernels] == ["gemm"]
    assert find_kernel_extremes(studied.recording.context, kernels) == {"gemm": (10_000, 30_000)}


def test_allocations_belong_to_the_innermost_operator(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    with b.op("aten::empty", self_ns=1_000):
        first = b.alloc(3 * MB)
        second = b.alloc(2 * MB)
        b.advance(1_000)
    with b.op("aten::resize_", self_ns=1_000):
        b.free(second)
        b.alloc(1 * MB)
        b.advance(1_000)
    b.advance(1_000)
    b.free(first)
    ctx = study(b.write(tmp_path / "t.json")).recording.context

    memory_of = {operator.op: operator for operator in find_operator_memory(ctx)}
    assert set(memory_of) == {"aten::empty", "aten::resize_"}

    empty, resize = memory_of["aten::empty"], memory_of["aten::resize_"]
    assert (empty.n_allocations, empty.allocated_bytes, empty.net_bytes) == (2, 5 * MB, 5 * MB)
    assert (resize.n_allocations, resize.allocated_bytes, resize.net_bytes) == (1, MB, -MB)
    assert empty.device == "cuda:0"


def test_the_largest_allocations_have_their_lifetimes(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    with b.op("aten::empty", self_ns=1_000):
        block = b.alloc(3 * MB)
        b.alloc(5 * MB)
        b.advance(1_000)
    b.advance(7_000)
    b.free(block)
    b.alloc(MB)

    allocations = find_largest_allocations(study(b.write(tmp_path / "t.json")).recording.context)
    assert [
        (allocation.op, allocation.n_bytes, allocation.lifetime_ns) for allocation in allocations
    ] == [
        ("aten::empty", 5 * MB, None),
        ("aten::empty", 3 * MB, 8_000),
        (None, MB, None),
    ]
