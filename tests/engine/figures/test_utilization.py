"""FLOP utilization of steps, MFU, source lines and peaks that the user states."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze, render
from profkit.errors import UsageError
from profkit.model.report import Report
from profkit.model.work_summary import FlopSummary
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS, needs_corpus

BF16 = "c10::BFloat16"
H100 = "NVIDIA H100 80GB HBM3"
UNKNOWN = "NVIDIA L4"
PEAKS = {UNKNOWN: {"float16_tflops": 121, "float32_tflops": 30.3, "bandwidth_gb_per_s": 300}}
MATRICES: dict[str, Any] = {"dims": [[1024, 1024], [1024, 1024]], "types": [BF16, BF16]}
"""2**31 FLOPs."""


def analyze_training(
    folder: Path,
    device: str = H100,
    *,
    n_unknown: int = 0,
    **options: Any,  # noqa: ANN401
) -> Report:
    """Two steps of 100 us each with a product forward and one backward."""
    builder = TraceBuilder(device_names=(device,), shapes=True, stacks=True)
    for number in range(2):
        with builder.step():
            began = builder.now_ns
            dims = [[1024], *MATRICES["dims"]]
            with (
                builder.frame("train.py", 7, "forward"),
                builder.op("aten::addmm", sequence=number, dims=dims, types=[BF16] * 3),
            ):
                ident = builder.call("LaunchKernel", 5_000)
                builder.kernel("gemm", 20_000, correlation=ident)
            with builder.thread(2), builder.op("AddmmBackward0", sequence=number) as node:
                node.args |= {"Fwd thread id": 1}  # type: ignore[operator]
                builder.launch(
                    "aten::mm", kernel="gemm", host_ns=5_000, device_ns=20_000, **MATRICES
                )
            for _ in range(n_unknown):
                builder.launch("aten::mm", kernel="gemm", host_ns=2_000, device_ns=10_000)
            builder.synchronize()
            builder.advance(began + 100_000 - builder.now_ns)

    return analyze(builder.write(folder / "trace.json"), **options)


def flops_of(report: Report) -> FlopSummary:
    assert report.summary.flops is not None
    return report.summary.flops


def test_the_flops_of_the_steps_are_a_share_of_the_peak(tmp_path: Path) -> None:
    utilization = flops_of(analyze_training(tmp_path))
    assert (utilization.flops, utilization.per_step_flops, utilization.time_ns) == (
        4 << 31,
        2 << 31,
        200_000,
    )
    assert (utilization.precision, utilization.known_share) == ("float16", 1.0)
    assert utilization.utilization_share == pytest.approx((2 << 31) / 100e-6 / 989.4e12)
    assert utilization.tflops_per_s == pytest.approx((2 << 31) / 100e-6 / 1e12)


def test_a_product_without_shapes_makes_it_a_lower_bound(tmp_path: Path) -> None:
    report = analyze_training(tmp_path, n_unknown=2)
    assert flops_of(report).known_share == pytest.approx(2 / 3)
    assert "at least: FLOPs are known of 67% of the time of matmuls" in " ".join(
        render(report, "text").decode().split()
    )


def test_each_precision_counts_with_its_own_peak(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,), shapes=True)
    with builder.step():
        builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=20_000, **MATRICES)
        builder.launch(
            "aten::mm",
            kernel="ampere_sgemm_128x64_nn",
            host_ns=9_000,
            device_ns=50_000,
            dims=MATRICES["dims"],
        )
        builder.synchronize()
    utilization = flops_of(analyze(builder.write(tmp_path / "trace.json")))
    least_s = 2**31 / 989.4e12 + 2**31 / 67e12
    assert utilization.utilization_share == pytest.approx(least_s / (utilization.time_ns * 1e-9))


def test_an_unknown_precision_has_flops_and_no_share(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,), shapes=True)
    with builder.step():
        builder.launch(
            "aten::mm", kernel="gemm", host_ns=9_000, device_ns=20_000, dims=MATRICES["dims"]
        )
    utilization = flops_of(analyze(builder.write(tmp_path / "trace.json")))
    assert (utilization.flops, utilization.precision, utilization.utilization_share) == (
        1 << 31,
        None,
        None,
    )


def test_an_unknown_device_has_figures_without_shares_until_the_user_states_its_peak(
    tmp_path: Path,
) -> None:
    report = analyze_training(tmp_path, UNKNOWN)
    utilization = flops_of(report)
    assert (utilization.flops, utilization.utilization_share, utilization.unknown_devices) == (
        4 << 31,
        None,
        (UNKNOWN,),
    )

    shown = render(report, "text").decode()
    assert "The peak of NVIDIA L4 is not known: state it in `[tool.profkit.peaks]`" in shown
    stated = analyze_training(tmp_path, UNKNOWN, peaks=PEAKS)
    utilization = flops_of(stated)
    assert utilization.utilization_share == pytest.approx((2 << 31) / 100e-6 / 121e12)
    assert utilization.unknown_devices == ()

    (product,) = (op for op in stated.summary.top_ops if op.name == "aten::mm")
    assert product.throughput is not None
    assert product.throughput.bandwidth_share == pytest.approx(6 * 2**20 / 20e-6 / 300e9)


def test_peaks_of_the_cpu_can_be_stated(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(), shapes=True)
    with builder.step(), builder.op("aten::mm", self_ns=10_000, dims=[[64, 64], [64, 64]]):
        pass
    path = builder.write(tmp_path / "trace.json")
    assert flops_of(analyze(path)).utilization_share is None
    utilization = flops_of(analyze(path, peaks={"cpu": {"float32_tflops": 0.5}}))
    assert utilization.utilization_share == pytest.approx(2 * 64**3 / 10e-6 / 0.5e12)


@pytest.mark.parametrize("figures", [{"float17_tflops": 1}, {"float16_tflops": 0}])
def test_invalid_peaks_are_refused(figures: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no peak"):
        analyze_training(tmp_path, peaks={UNKNOWN: figures})


def test_model_flop_utilization_counts_tokens_and_parameters(tmp_path: Path) -> None:
    report = analyze_training(tmp_path, tokens_per_step=1000, parameters=2_000_000)
    utilization = flops_of(report)
    assert utilization.model_flops_per_step == 6 * 1000 * 2_000_000
    assert utilization.model_utilization_share == pytest.approx(12e9 / 100e-6 / 989.4e12)
    assert (
        "model FLOP utilization (MFU): 12% of the float16 peak" in render(report, "text").decode()
    )
    assert "MFU" in render(report, "html").decode()


def test_without_a_backward_pass_a_token_takes_a_third(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(H100,))
    with builder.step():
        builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=20_000)
    path = builder.write(tmp_path / "trace.json")
    report = analyze(path, tokens_per_step=10, parameters=100)

    utilization = flops_of(report)
    assert (
        utilization.flops,
        utilization.model_flops_per_step,
        utilization.model_utilization_share,
    ) == (
        0,
        2000,
        None,
    )
    assert "MFU) is not known" in render(report, "text").decode()


def test_source_lines_have_the_work_of_their_backward_pass(tmp_path: Path) -> None:
    report = analyze_training(tmp_path)
    (line,) = report.summary.lines
    assert (line.location.file, line.device_ns, line.n_ops) == ("train.py", 80_000, 6)
    assert line.throughput is not None
    assert (line.throughput.n_calls, line.throughput.flops) == (4, 4 << 31)
    assert line.throughput.flops_share == pytest.approx(2**31 / 20e-6 / 989.4e12)
    for shown in (render(report, "text", verbose=True), render(report, "html")):
        assert "Source lines" in shown.decode()
    assert ",train.py," in render(report, "csv", table="lines").decode()
    assert "float16,8589934592," in render(report, "csv", table="flops").decode()
    assert json.loads(render(report, "json"))["summary"]["flops"]["flops"] == 4 << 31


def test_kernels_say_whether_a_matmul_uses_tensor_cores(tmp_path: Path) -> None:
    names = {
        "volta_sgemm_128x64_nn": (False, True),
        "volta_fp16_s884gemm_fp16_128x128_tn": (True, False),
        "void cutlass::Kernel<cutlass_80_simt_sgemm_64x128_8x5_nt_align1>()": (False, True),
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": (True, False),
        "nvjet_sm103_tst_32x64_64x16_4x1_v_bz_splitK_TNN": (True, False),
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1": (True, False),
        "vectorized_elementwise_kernel": (False, False),
    }
    builder = TraceBuilder()
    for name in names:
        builder.launch("aten::mm", kernel=name, host_ns=9_000, device_ns=20_000)
    report = analyze(builder.write(tmp_path / "trace.json"))

    tensor_cores_of = {
        kernel.name: (kernel.tensor_cores, kernel.cuda_cores)
        for kernel in report.summary.top_kernels
    }
    assert tensor_cores_of == names


@needs_corpus
def test_the_utilization_of_a_real_trace_follows_from_its_own_shapes() -> None:
    path = CORPUS / "traces" / "h100-qwen-inference.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    (step,) = (
        e for e in events if e.get("cat") == "user_annotation" and "ProfilerStep" in e["name"]
    )
    flops = 0
    for e in events:
        dims = e.get("args", {}).get("Input Dims")
        if dims and step["ts"] <= e["ts"] < step["ts"] + step["dur"]:
            if e["name"] in {"aten::mm", "aten::addmm", "aten::bmm"}:
                left, right = dims[-2:] if e["name"] != "aten::addmm" else dims[1:3]
                flops += 2 * math.prod(left) * right[-1]
            elif e["name"] == "aten::_scaled_dot_product_flash_attention":
                (*rows, size), (*_, n_keys, _) = dims[0], dims[1]
                causal = e["args"]["Concrete Inputs"][4] == "True"
                flops += 4 * math.prod(rows) * n_keys * size // (2 if causal else 1)

    utilization = flops_of(analyze(path))
    assert utilization.flops == flops
    assert utilization.utilization_share == pytest.approx(
        flops / (utilization.time_ns * 1e-9) / 989.4e12
    )
