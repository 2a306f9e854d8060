"""FLOP/s and GB/s of operators and kernels, with shapes and times that are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze, render
from profkit.index.compute.peaks import peak_of
from profkit.model.report import Report
from profkit.model.work_summary import Throughput
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS, needs_corpus

BF16 = "c10::BFloat16"
H100 = "NVIDIA H100 80GB HBM3"
MATRICES: dict[str, Any] = {"dims": [[1024, 1024], [1024, 1024]], "types": [BF16, BF16]}
"""2**31 FLOPs, 6 MiB."""
BYTES = 3 << 21


def report_of(builder: TraceBuilder, folder: Path) -> Report:
    return analyze(builder.write(folder / "trace.json"))


def throughputs(report: Report) -> dict[str, Throughput | None]:
    ops = {op.name: op.throughput for op in report.summary.top_ops}
    return ops | {kernel.name: kernel.throughput for kernel in report.summary.top_kernels}


@pytest.fixture
def report(tmp_path: Path) -> Report:
    builder = TraceBuilder(device_names=(H100,), shapes=True)
    for device_ns in (4_000, 6_000):
        builder.launch(
            "aten::mm", kernel="gemm_bf16", host_ns=9_000, device_ns=device_ns, **MATRICES
        )

    builder.launch("aten::mm", kernel="gemm_bf16", host_ns=9_000, device_ns=50_000)
    with builder.op("aten::convolution_backward", dims=[[1, 8, 4, 4], [1, 8, 6, 6], [8, 8, 3, 3]]):
        builder.launch("aten::sum", kernel="reduce", host_ns=9_000, device_ns=1_000)
    with builder.op(
        "aten::addmm", **{**MATRICES, "dims": [[1024], *MATRICES["dims"]], "types": [BF16] * 3}
    ):
        for name in ("split_k", "split_k_reduce"):
            ident = builder.call("LaunchKernel", 2_000)
            builder.kernel(name, 2_000, correlation=ident)

    builder.launch(
        "aten::relu",
        kernel="elementwise",
        host_ns=9_000,
        device_ns=2_000,
        dims=[[1024, 1024]],
        types=[BF16],
    )
    builder.compute("aten::view", 1_000)
    return report_of(builder, tmp_path)


def test_calls_with_shapes_are_measured_by_their_kernels(report: Report) -> None:
    throughput_of = throughputs(report)
    # The third call has no shapes: its time does not count either.
    product = Throughput(
        2, 10_000, 2 << 31, 2 * BYTES, (2 << 31) / 10e-6 / 989.4e12, 2 * BYTES / 10e-6 / 3350e9
    )
    assert throughput_of["aten::mm"] == product
    assert throughput_of["gemm_bf16"] == product
    assert product.tflops_per_s == pytest.approx(429.4967)
    assert product.gb_per_s == pytest.approx(1258.2912)
    assert product.peak_share == product.flops_share


def test_an_operator_with_several_kernels_has_their_time_and_they_have_none(report: Report) -> None:
    throughput_of = throughputs(report)
    addmm = throughput_of["aten::addmm"]
    assert addmm is not None
    assert (addmm.n_calls, addmm.time_ns, addmm.flops) == (1, 4_000, 1 << 31)
    assert (throughput_of["split_k"], throughput_of["split_k_reduce"]) == (None, None)


def test_elementwise_kernels_have_bandwidth_and_no_share_of_the_tensor_cores(
    report: Report,
) -> None:
    relu = throughputs(report)["aten::relu"]
    assert relu is not None
    assert (relu.flops, relu.bytes, relu.flops_share) == (1 << 20, 4 << 20, None)
    assert relu.bandwidth_share == pytest.approx((4 << 20) / 2e-6 / 3350e9)
    assert throughputs(report)["aten::view"] is None


def test_every_format_shows_it(report: Report) -> None:
    shown = render(report, "text").decode()
    assert "of peak" in shown
    assert "63%" in shown  # the elementwise kernel, of the bandwidth
    page = render(report, "html").decode()
    assert all(title in page for title in ("TFLOP/s", "GB/s", "Of peak FLOPs", "Of bandwidth"))
    kernels = json.loads(render(report, "json"))["summary"]["top_kernels"]
    (gemm,) = (kernel for kernel in kernels if kernel["name"] == "gemm_bf16")
    assert gemm["throughput"]["flops"] == 2 << 31


def test_without_shapes_there_are_no_columns(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,))
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=4_000)
    report = report_of(builder, tmp_path)
    assert set(throughputs(report).values()) == {None}
    assert "of peak" not in render(report, "text").decode()
    assert "TFLOP/s" not in render(report, "html").decode()


def test_shapes_are_read_beside_an_event_that_cannot_be_read(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,), shapes=True)
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=4_000, **MATRICES)
    path = builder.write(tmp_path / "trace.json")
    whole = throughputs(analyze(path))["aten::mm"]
    events = json.loads(path.read_text())
    events["traceEvents"].append({"ph": "X", "ts": [], "name": "broken"})
    path.write_text(json.dumps(events))
    assert whole is not None
    assert throughputs(analyze(path))["aten::mm"] == whole


def test_without_devices_the_time_is_the_operators(tmp_path: Path) -> None:
    builder = TraceBuilder()
    with builder.op("aten::mm", self_ns=8_000, dims=[[64, 64], [64, 64]]):
        pass
    throughput = throughputs(report_of(builder, tmp_path))["aten::mm"]
    assert throughput == Throughput(1, 8_000, 2 * 64**3, 3 * 4 * 64 * 64)


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        ("ampere_sgemm_128x64_nn", 67.0),
        ("cutlass_80_tensorop_s1688gemm_128x128_nn_align4", 494.7),
        ("gemm", None),  # float32, with TF32 or not: the name does not tell
    ],
)
def test_a_product_in_float32_is_measured_by_what_its_kernel_uses(
    kernel: str, share: float | None, tmp_path: Path
) -> None:
    builder = TraceBuilder(device_names=(H100,))
    builder.launch(
        "aten::mm", kernel=kernel, host_ns=9_000, device_ns=10_000, dims=[[64, 64], [64, 64]]
    )
    throughput = throughputs(report_of(builder, tmp_path))["aten::mm"]
    assert throughput is not None
    expected = None if share is None else pytest.approx(2 * 64**3 / 10e-6 / (share * 1e12))
    assert throughput.flops_share == expected


def test_a_part_of_a_device_and_an_unknown_one_have_no_peaks() -> None:
    assert peak_of(H100, 132) is not None
    assert peak_of(H100, None) is not None
    assert peak_of(f"{H100} MIG 1g.10gb", 16) is None
    assert peak_of("NVIDIA H200", 132) is not None
    assert peak_of("NVIDIA H200 NVL", 132) is None  # as many multiprocessors, lower clocks
    assert peak_of("NVIDIA GeForce RTX 4060", 24) is None
    assert peak_of("Tesla V100-PCIE-16GB", 80) is None
    assert peak_of("", 304) is None


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "Tesla V100-DGXS-32GB"])
def test_a_v100_of_a_server_and_of_a_dgx_station_have_the_same_peaks(name: str) -> None:
    peak = peak_of(name, 80)
    assert peak is not None
    assert peak.flops_per_s == {"float32": 15.7e12, "float16": 125e12}
    assert peak.bytes_per_s == 900e9


@needs_corpus
def test_a_real_trace_has_the_throughput_that_was_worked_out_by_hand() -> None:
    report = analyze(CORPUS / "traces" / "h100-qwen-inference.json.gz")
    throughput_of = throughputs(report)
    product, with_bias = throughput_of["aten::mm"], throughput_of["aten::addmm"]
    assert product is not None
    assert with_bias is not None
    assert product.tflops_per_s == pytest.approx(632, abs=0.5)
    assert product.flops_share == pytest.approx(0.639, abs=5e-4)
    assert with_bias.flops_share == pytest.approx(0.602, abs=5e-4)


def test_a_kernel_for_lists_of_tensors_tells_their_type(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,), shapes=True)
    name = "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpFunctor<c10::Half, 2, 2, 0>>"
    lists: dict[str, Any] = {"dims": [[[1024, 1024], [8]]] * 2, "types": ["TensorList"] * 2}
    builder.launch("aten::_foreach_add_", kernel=name, host_ns=9_000, device_ns=20_000, **lists)
    throughput = throughputs(report_of(builder, tmp_path))["aten::_foreach_add_"]
    n = (1 << 20) + 8
    assert throughput is not None
    assert (throughput.flops, throughput.bytes) == (n, 3 * n * 2)
    assert throughput.bandwidth_share == pytest.approx(3 * n * 2 / 20e-6 / 3350e9)
