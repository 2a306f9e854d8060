"""The roofline: the places of its dots and roofs, read back from the drawing."""

import re
from dataclasses import replace
from html import unescape
from math import log10
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.model.report import Report
from profkit.model.work_summary import PeakFlops
from profkit.testing import TraceBuilder

BF16 = "c10::BFloat16"
SIZE = 1024


def page(report: Report) -> str:
    text = render(report, "html").decode()
    match = re.search(r'<section[^>]*id="roofline".*?</section>', text, re.DOTALL)
    return match.group() if match else ""


def report_of(folder: Path, device: str = "NVIDIA H100 80GB HBM3") -> Report:
    builder = TraceBuilder(device_names=(device,), shapes=True)
    dims = [[SIZE, SIZE], [SIZE, SIZE]]
    builder.launch(
        "aten::mm", kernel="gemm", host_ns=9_000, device_ns=40_000, dims=dims, types=[BF16, BF16]
    )
    builder.launch(
        "aten::add",
        kernel="elementwise_kernel<add>",
        host_ns=9_000,
        device_ns=10_000,
        dims=dims,
        types=["float", "float"],
    )
    builder.launch(
        "aten::copy_",
        kernel="copy_kernel",
        host_ns=9_000,
        device_ns=5_000,
        dims=dims,
        types=["float", "float"],
    )

    return analyze(builder.write(folder / "trace.json"))


def attributes(text: str, pattern: str) -> list[dict[str, str]]:
    return [
        dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        for attributes in re.findall(pattern, text)
    ]


def axes(text: str) -> tuple[dict[float, float], dict[float, float]]:
    """Return the values of two ticks of each axis by their place."""
    ticks = r'<text class="{}" x="([\d.]+)" y="([\d.]+)">([\d.,e-]+)<'
    x = {
        float(at): float(label.replace(",", ""))
        for at, _, label in re.findall(ticks.format("x"), text)
    }
    y = {
        float(at) - 4: float(label.replace(",", "")) * 1e12
        for _, at, label in re.findall(ticks.format("y"), text)
    }
    return x, y


def value(ticks: dict[float, float], at: float) -> float:
    """Return the value at a place, between the first and the last tick."""
    (first, low), *_, (last, high) = sorted(ticks.items())
    share = (at - first) / (last - first)
    return float(10 ** (log10(low) + share * (log10(high) - log10(low))))


def test_dots_are_at_their_intensity_and_flops_per_second(tmp_path: Path) -> None:
    text = page(report_of(tmp_path))
    x, y = axes(text)
    product, add = attributes(text, r"<circle[^>]*>")
    assert value(x, float(product["cx"])) == pytest.approx(2 * SIZE / (3 * 2), rel=0.02)
    assert value(y, float(product["cy"])) == pytest.approx(2 * SIZE**3 / 40e-6, rel=0.02)
    assert value(x, float(add["cx"])) == pytest.approx(1 / 12, rel=0.02)
    assert value(y, float(add["cy"])) == pytest.approx(SIZE**2 / 10e-6, rel=0.02)
    assert float(product["r"]) == pytest.approx(2 * float(add["r"]))  # four times the time
    assert unescape(product["data-tip"]) == (
        "gemm: 53.7 TFLOP/s at 341 FLOPs per byte, 5.4% of its roof; 40.0 µs"
    )
    assert product["aria-label"] == product["data-tip"]
    assert (product["tabindex"], add["tabindex"]) == ("0", "-1")
    assert "copy_kernel" not in text


def test_roofs_are_the_peaks_of_the_device(tmp_path: Path) -> None:
    text = page(report_of(tmp_path))
    x, y = axes(text)
    *roofs, slope = attributes(text, r'<line class="roof"[^>]*>')
    assert [value(y, float(roof["y1"])) for roof in roofs] == pytest.approx(
        [67e12, 494.7e12, 989.4e12, 1978.9e12], rel=0.02
    )
    for line in roofs:
        peak = value(y, float(line["y1"]))
        assert value(x, float(line["x1"])) == pytest.approx(peak / 3350e9, rel=0.03)
    for end in "12":
        place = value(x, float(slope[f"x{end}"])), value(y, float(slope[f"y{end}"]))
        assert place[1] / place[0] == pytest.approx(3350e9, rel=0.03)
    assert "float16 989 TFLOP/s" in text
    assert "3,350 GB/s" in text


def test_an_unknown_device_has_dots_and_says_how_to_state_its_peak(tmp_path: Path) -> None:
    text = page(report_of(tmp_path, "NVIDIA L4"))
    assert len(attributes(text, r"<circle[^>]*>")) == 2
    assert not attributes(text, r'<line class="roof"[^>]*>')
    assert "[tool.profkit.peaks]" in text


def test_without_devices_the_dots_are_operators(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=(), shapes=True)
    with builder.op("aten::mm", self_ns=10_000, dims=[[64, 64], [64, 64]]):
        pass
    report = analyze(builder.write(tmp_path / "t.json"), peaks={"cpu": {"bandwidth_gb_per_s": 50}})
    text = page(report)
    (dot,) = attributes(text, r"<circle[^>]*>")
    assert dot["data-tip"].startswith("aten::mm: 0.05 TFLOP/s at 10.7 FLOPs per byte")
    assert "50.0 GB/s" in text


def test_impossible_figures_of_an_edited_report_are_left_out(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    summary = report.summary
    assert summary.flops is not None
    flops = replace(summary.flops, peaks=(PeakFlops("float16", -1.0),), peak_bytes_per_s=-1.0)
    kernels = tuple(
        replace(kernel, throughput=kernel.throughput and replace(kernel.throughput, flops=-5))
        for kernel in summary.top_kernels
    )
    changed = replace(report, summary=replace(summary, flops=flops))
    assert not attributes(page(changed), r'<line class="roof"[^>]*>')
    changed = replace(report, summary=replace(summary, flops=flops, top_kernels=kernels))
    assert page(changed) == ""


def test_without_shapes_there_is_no_section(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=40_000)
    assert page(analyze(builder.write(tmp_path / "t.json"))) == ""
