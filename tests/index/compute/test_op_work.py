"""FLOPs of recorded programs, against torch's own counter."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from profkit.index.compute.formulas import is_product
from profkit.index.compute.op_work import UNKNOWN, OpWork, measure_op_work
from profkit.index.host.nesting import build_call_tree
from profkit.model.trace import Trace
from profkit.testing import TraceBuilder
from tests.traces import load_trace

HAS_SCALED_PRODUCTS = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU")
COUNTED = ("mm", "addmm", "bmm", "baddbmm", "_convolution", "convolution_backward")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
        nn.Conv2d(4, 6, 3, dilation=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, OpWork, dict[str, int]]:
    """Return a recording, the work in it, and the FLOPs by operator that torch counts."""
    image, rows = torch.randn(2, 3, 16, 16), torch.randn(5, 7, 16, requires_grad=True)
    model, recurrent = network(), nn.LSTM(16, 8)

    def program() -> None:
        scores = torch.baddbmm(torch.zeros(5, 7, 7), rows, rows.mT)
        total = model(image).sum() + recurrent(rows)[0].sum() + (scores.softmax(-1) @ rows).sum()
        (total + torch.einsum("bij,kj->bik", rows, rows[0]).sum()).backward()

    with FlopCounterMode(display=False) as counter:
        program()
    with torch.profiler.profile(record_shapes=True) as profiler:
        program()
    path = tmp_path_factory.mktemp("shapes") / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = load_trace(path)
    counts = counter.get_flop_counts()["Global"]
    by_name = {str(op).removeprefix("aten."): int(n) for op, n in counts.items()}
    return trace, measure_op_work(trace.events, build_call_tree(trace.events)), by_name


def test_products_and_convolutions_agree_with_the_counts_of_torch(
    recorded: tuple[Trace, OpWork, dict[str, int]],
) -> None:
    trace, work, expected = recorded
    n_by_name: Counter[str] = Counter()
    for row, flops in zip(work.rows.tolist(), work.flops.tolist(), strict=True):
        name = trace.events.name_of(row).removeprefix("aten::")
        if name in COUNTED:
            n_by_name["convolution" if name == "_convolution" else name] += flops
    assert dict(n_by_name) == {name: n for name, n in expected.items() if n}
    assert len(n_by_name) == 6  # every kind of product is in the program


def test_no_work_is_within_other_work(recorded: tuple[Trace, OpWork, dict[str, int]]) -> None:
    trace, work, _ = recorded
    tree = build_call_tree(trace.events)
    counted = set(work.rows.tolist())
    for row in counted:
        above = int(tree.parent[row])
        while above >= 0:
            assert above not in counted
            above = int(tree.parent[above])
    names = {trace.events.name_of(row) for row in counted}
    assert "aten::linear" not in names  # its product is within
    assert "aten::convolution_backward" in names  # and not the sum for the bias within it


def test_causal_attention_is_half(tmp_path: Path) -> None:
    query = torch.randn(2, 4, 10, 16)
    with torch.profiler.profile(record_shapes=True) as profiler:
        functional.scaled_dot_product_attention(query, query, query)
        functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = load_trace(tmp_path / "trace.json")
    work = measure_op_work(trace.events, build_call_tree(trace.events))
    attention = [
        flops
        for row, flops in zip(work.rows.tolist(), work.flops.tolist(), strict=True)
        if "attention" in trace.events.name_of(row)
    ]
    assert attention == [2 * 8 * 10 * 10 * 32, 8 * 10 * 10 * 32]


def test_optimizers_embeddings_and_norms_are_counted_by_their_elements(tmp_path: Path) -> None:
    table, norm = nn.Embedding(10, 8), nn.RMSNorm(8)
    every = [*table.parameters(), *norm.parameters()]
    optimizer = torch.optim.AdamW(every, fused=True)

    def step() -> None:
        norm(table(torch.arange(4))).sum().backward()
        optimizer.step()

    step()
    with torch.profiler.profile(record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = load_trace(tmp_path / "trace.json")
    work = measure_op_work(trace.events, build_call_tree(trace.events))
    work_of = {
        trace.events.name_of(row): (int(flops), int(n_bytes), int(n_untyped))
        for row, flops, n_bytes, n_untyped in zip(
            work.rows.tolist(), work.flops, work.n_bytes, work.n_untyped, strict=True
        )
    }
    n = 10 * 8 + 8
    assert work_of["aten::embedding"] == (0, 4 * (8 + 2 * 4 * 8), 0)
    assert work_of["aten::embedding_dense_backward"] == (4 * 8, 4 * 32 + 8 * 4 + 4 * 80, 0)
    # Seven lists of the parameters' sizes, and a step count for each of the two parameters.
    assert work_of["aten::_fused_adamw_"] == (14 * n, UNKNOWN, 7 * n + 2 * 2)


@pytest.mark.skipif(not HAS_SCALED_PRODUCTS, reason="this torch has none on the CPU")
def test_scaled_products_agree_with_the_counts_of_torch(tmp_path: Path) -> None:
    rows_float8 = torch.randn(16, 32).to(torch.float8_e4m3fn)
    columns_float8 = torch.randn(48, 32).to(torch.float8_e4m3fn).t()
    scale = torch.ones(())

    def program() -> None:
        torch._scaled_mm(rows_float8, columns_float8, scale, scale, out_dtype=torch.bfloat16)

    with FlopCounterMode(display=False) as counter:
        program()
    with torch.profiler.profile(record_shapes=True) as profiler:
        program()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = load_trace(tmp_path / "trace.json")
    work = measure_op_work(trace.events, build_call_tree(trace.events))
    # On the CPU it is a product in float32 within, on a GPU one of its own.
    products = [
        int(flops)
        for row, flops in zip(work.rows.tolist(), work.flops, strict=True)
        if is_product(trace.events.name_of(row))
    ]
    assert sum(products) == counter.get_total_flops() == 2 * 16 * 32 * 48


def test_calls_without_shapes_and_absurd_ones_have_no_work(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for dims in (None, [[4, 8], [8, 16]], [[1 << 31, 1 << 31], [1 << 31, 8]], [[4, 8], [7, 16]]):
        with builder.op("aten::mm", self_ns=1000, dims=dims):
            pass
    with builder.op("aten::mm", self_ns=1000, dims=[[4, 8], [8, 16]], types=["?", "?"]):
        pass
    with builder.op("aten::_foreach_add_", dims=[[[4, 8], [2]]], types=["TensorList"]):
        builder.advance(1000)
    trace = load_trace(builder.write(tmp_path / "trace.json"))
    work = measure_op_work(trace.events, build_call_tree(trace.events))
    assert work.flops.tolist() == [1024, 34]
    assert work.n_bytes.tolist() == [4 * (32 + 128 + 64), UNKNOWN]
