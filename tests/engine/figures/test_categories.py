"""Time by category, against sums over the trace's own JSON."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze, render
from profkit.model.report import Report
from profkit.model.work_summary import CategorySummary
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.engine.figures.shown import assert_formats_show


def by_kind(report: Report) -> dict[str, CategorySummary]:
    return {category.kind: category for category in report.summary.categories}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    builder = TraceBuilder()
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=7_000)
    builder.synchronize()  # it ends before the steps

    for _ in range(2):
        with builder.step():
            builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=4_000)
            name = "vectorized_elementwise_kernel<4, float16_copy_kernel_cuda>"
            builder.launch("aten::copy_", kernel=name, host_ns=9_000, device_ns=3_000)
            with builder.annotation("Optimizer.step#SGD.step"):
                builder.launch(
                    "aten::add_", kernel="elementwise_kernel", host_ns=9_000, device_ns=1_000
                )
            builder.to_device(1 << 20, 5_000)  # no kernel
            builder.synchronize()

    return analyze(builder.write(tmp_path / "trace.json"))


def test_kernels_are_summed_by_their_category(report: Report) -> None:
    category_of = by_kind(report)
    assert [*category_of] == ["matmul", "copy", "optimizer"]
    assert {
        kind: (category.n_calls, category.total_ns, category.per_step_ns, category.elementwise_ns)
        for kind, category in category_of.items()
    } == {
        "matmul": (3, 15_000, 4_000, 0),
        "copy": (2, 6_000, 3_000, 6_000),
        "optimizer": (2, 2_000, 1_000, 2_000),
    }
    assert category_of["matmul"].share == pytest.approx(15 / 23)
    kernels = {kernel.name: kernel.category for kernel in report.summary.top_kernels}
    assert (kernels["gemm"], kernels["elementwise_kernel"]) == ("matmul", "optimizer")


def test_work_within_attention_and_embedding_is_theirs(tmp_path: Path) -> None:
    builder = TraceBuilder()
    with builder.op("aten::embedding"):
        builder.launch(
            "aten::index_select", kernel="indexSelectLargeIndex", host_ns=9_000, device_ns=1_000
        )
    with builder.op("aten::_scaled_dot_product_attention_math"):
        builder.launch("aten::bmm", kernel="gemm", host_ns=9_000, device_ns=5_000)
        builder.launch(
            "aten::copy_", kernel="direct_copy_kernel_cuda", host_ns=9_000, device_ns=3_000
        )

    category_of = by_kind(analyze(builder.write(tmp_path / "trace.json")))
    assert {kind: category.total_ns for kind, category in category_of.items()} == {
        "attention": 8_000,
        "embedding": 1_000,
    }


def test_every_format_shows_them(report: Report) -> None:
    assert "Kernel time: matmul 65%, copy 26%, optimizer 8.7% (elementwise 35%)" in (
        render(report, "text").decode()
    )

    assert_formats_show(report, ("Kernel time", "optimizer", "8.7%", "15.0 µs"))
    table = render(report, "csv", table="categories").decode().splitlines()
    assert table[1].startswith("matmul,3,15000,4000,0.65")
    assert json.loads(render(report, "json"))["summary"]["categories"][2]["kind"] == "optimizer"


def test_without_devices_operators_count_with_their_self_time(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    for _ in range(2):
        with builder.step():
            with builder.op("aten::linear", self_ns=1_000):
                builder.compute("aten::addmm", 6_000)
            with builder.annotation("Optimizer.step#SGD.step"):
                builder.compute("aten::add_", 2_000)
            builder.compute("aten::relu", 3_000)

    category_of = by_kind(analyze(builder.write(tmp_path / "trace.json")))
    assert {
        kind: (category.n_calls, category.total_ns, category.per_step_ns, category.elementwise_ns)
        for kind, category in category_of.items()
    } == {
        "matmul": (4, 14_000, 7_000, None),
        "pointwise": (2, 6_000, 3_000, None),
        "optimizer": (2, 4_000, 2_000, None),
    }


def events_of(path: Path) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    return document if isinstance(document, list) else document["traceEvents"]


@needs_corpus
@pytest.mark.parametrize(
    "name", ["h100-qwen-inference", "a100-ddp-rank0-of-2", "mi300-vit-inference", "sglang-decode"]
)
def test_the_categories_of_a_real_trace_add_up_to_its_kernels(name: str) -> None:
    path = CORPUS / "traces" / f"{name}.json.gz"
    kernels = [event for event in events_of(path) if event.get("cat") == "kernel"]
    categories = analyze(path).summary.categories
    assert sum(category.n_calls for category in categories) == len(kernels)

    total_us = sum(kernel["dur"] for kernel in kernels)
    assert sum(category.total_ns for category in categories) == pytest.approx(
        total_us * 1e3, rel=1e-6
    )
    assert sum(category.share for category in categories) == pytest.approx(1)

    elementwise_us = sum(
        kernel["dur"] for kernel in kernels if "elementwise_kernel" in kernel["name"]
    )
    found_ns = sum(category.elementwise_ns or 0 for category in categories)
    assert found_ns == pytest.approx(elementwise_us * 1e3, rel=1e-6)

    if name == "h100-qwen-inference":
        assert elementwise_us / total_us == pytest.approx(0.546, abs=5e-4)


@needs_corpus
def test_the_categories_of_a_real_trace_without_devices_are_the_self_times_of_operators() -> None:
    path = CORPUS / "traces" / "cpu-vae-windows-3-steps.json.gz"
    ops = [event for event in events_of(path) if event.get("cat") == "cpu_op"]
    own_us: Counter[str] = Counter()
    open_ops: list[tuple[float, dict[str, Any]]] = []
    for op in sorted(ops, key=lambda e: (e["tid"], float(e["ts"]), -float(e["dur"]))):
        begin = float(op["ts"])
        while open_ops and (open_ops[-1][1]["tid"] != op["tid"] or open_ops[-1][0] <= begin):
            open_ops.pop()
        if open_ops:
            own_us[open_ops[-1][1]["name"]] -= op["dur"]
        own_us[op["name"]] += op["dur"]
        open_ops.append((begin + float(op["dur"]), op))
    category_of = by_kind(analyze(path))

    total_ns = sum(category.total_ns for category in category_of.values())
    assert total_ns == pytest.approx(sum(own_us.values()) * 1e3, rel=1e-3)

    products = [name for name in own_us if re.search("mm$|Mm|Addmm|linear", name)]
    products_us = sum(own_us[name] for name in products)
    assert category_of["matmul"].total_ns == pytest.approx(products_us * 1e3, rel=1e-3)
