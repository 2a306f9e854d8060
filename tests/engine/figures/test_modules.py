"""The tree of modules, against times that a builder wrote and sums over a trace's own JSON."""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from profkit.api import analyze, render
from profkit.engine.figures.modules import MAX_MODULES
from profkit.model.report import Report
from profkit.model.work_summary import ModuleSummary
from profkit.testing import TraceBuilder
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.engine.figures.shown import assert_formats_show


def assert_exact(every: Sequence[ModuleSummary]) -> None:
    """Assert that each module's time is exactly its own and its children's."""
    host, device = Counter[int](), Counter[int]()
    parents: list[int] = []
    for number, module in enumerate(every):
        del parents[module.depth :]
        assert len(parents) == module.depth
        if parents:
            host[parents[-1]] += module.host_ns
            device[parents[-1]] += module.device_ns or 0
        parents.append(number)
    for number, module in enumerate(every):
        assert module.host_ns == module.self_host_ns + host[number]
        assert (module.device_ns or 0) == (module.self_device_ns or 0) + device[number]


def layers(builder: TraceBuilder, n: int) -> None:
    """Add the forward pass of a model with repeated layers, of 10 µs on the host."""
    with builder.module("Net"):
        for number in range(n):
            with builder.module("Block", number):
                for place, device_ns in enumerate((3_000, 5_000)):
                    linear = 2 * number + place
                    with builder.module("Linear", linear), builder.op("aten::mm", sequence=linear):
                        ident = builder.call("LaunchKernel", 10_000)
                        builder.kernel("gemm", device_ns, correlation=ident)
                builder.advance(2_000)


@contextmanager
def backward(builder: TraceBuilder, name: str, number: int, self_ns: int) -> Iterator[None]:
    """Add a node of the backward pass, on another thread."""
    with builder.thread(2), builder.op(name, sequence=number, self_ns=self_ns) as node:
        node.args |= {"Fwd thread id": 1}  # type: ignore[operator]
        yield


def report_of(builder: TraceBuilder, folder: Path) -> Report:
    return analyze(builder.write(folder / "trace.json"))


def test_layers_of_one_structure_are_one_row(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    layers(builder, 3)

    every = report_of(builder, tmp_path).summary.modules
    assert [
        (module.name, module.n_modules, module.depth, module.n_calls, module.device_ns)
        for module in every
    ] == [
        ("Net_0", 1, 0, 1, 24_000),
        ("Block_0…2", 3, 1, 3, 24_000),
        ("Linear_1…5", 3, 2, 3, 15_000),
        ("Linear_0…4", 3, 2, 3, 9_000),
    ]
    assert [module.host_ns for module in every] == [66_000, 66_000, 30_000, 30_000]
    assert [module.self_host_ns for module in every] == [0, 6_000, 30_000, 30_000]
    assert [module.share for module in every] == [1, 1, 15 / 24, 9 / 24]
    assert_exact(every)


def test_backward_work_belongs_to_the_module_that_ran_forward(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    layers(builder, 2)
    for number in (3, 1):
        name = "autograd::engine::evaluate_function: MmBackward0"
        with backward(builder, name, number, 1_000):
            builder.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=7_000)
    every = report_of(builder, tmp_path).summary.modules
    (linear,) = (module for module in every if module.name == "Linear_1…3")
    assert (linear.n_calls, linear.device_ns, linear.host_ns) == (2, 10_000 + 14_000, 62_000)
    assert every[0].device_ns == 16_000 + 14_000
    assert_exact(every)


def test_modules_recomputed_in_the_backward_pass_are_below_their_module(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with (
        builder.module("Net"),
        builder.module("Block"),
        builder.op("CheckpointFunction", sequence=4, self_ns=1_000),
    ):
        pass
    with backward(builder, "CheckpointFunctionBackward", 4, 500), builder.module("Linear"):
        builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=7_000)

    every = report_of(builder, tmp_path).summary.modules
    assert [(module.name, module.depth, module.self_host_ns) for module in every] == [
        ("Net_0", 0, 0),
        ("Block_0", 1, 1_500),
        ("Linear_0", 2, 9_000),
    ]
    assert every[0].device_ns == 7_000
    assert_exact(every)


def test_a_module_that_two_others_call_is_below_both(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True, device_names=())
    for name in ("Encoder", "Decoder"):
        with builder.module(name), builder.module("Embedding"):
            builder.compute("aten::embedding", 3_000)
    modules = report_of(builder, tmp_path).summary.modules
    assert [
        (module.name, module.depth, module.host_ns, module.device_ns) for module in modules
    ] == [
        ("Encoder_0", 0, 3_000, None),
        ("Embedding_0", 1, 3_000, None),
        ("Decoder_0", 0, 3_000, None),
        ("Embedding_0", 1, 3_000, None),
    ]


def test_many_different_modules_are_bounded_and_still_add_up(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True, device_names=())
    with builder.module("Net"):
        for number in range(MAX_MODULES + 50):
            with builder.module("Outer", number):
                for depth in range(number % 3):
                    with builder.module(f"Kind{number}_{depth}"):
                        builder.compute("aten::add", 1_000 + number)
                builder.advance(10)
    report = report_of(builder, tmp_path)

    every = report.summary.modules
    assert len(every) <= 2 * MAX_MODULES
    assert_exact(every)
    assert sum(module.n_modules for module in every if module.depth == 1) == MAX_MODULES + 50
    page = render(report, "html").decode()
    packed = re.findall(r'{"gzip": ?"([^"]+)"', page)
    assert any(b"others" in gzip.decompress(base64.b64decode(data)) for data in packed)

    _, _, shown = render(report, "text").decode().partition("\nModules")
    assert len(shown.partition("\nOperators")[0].splitlines()) <= 2


def test_every_format_shows_the_tree(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.step():
        layers(builder, 3)
    report = report_of(builder, tmp_path)
    assert "Modules: Linear_1…5 62%, Linear_0…4 38%" in render(report, "text").decode()

    assert_formats_show(report, ("Modules", "· · Linear_1…5", "15.0 µs", "62%"))
    rows = render(report, "csv", table="modules").decode().splitlines()
    assert rows[1].startswith("Net_0,1,0,1,66000,0,24000,0,66000,0,24000,0,1")
    assert json.loads(render(report, "json"))["summary"]["modules"][1]["name"] == "Block_0…2"


def test_without_modules_there_is_no_section(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=7_000)
    report = report_of(builder, tmp_path)
    assert report.summary.modules == ()
    for verbose in (False, True):
        assert "Modules" not in render(report, "text", verbose=verbose).decode()


class Layer(nn.Module):
    """A layer of a recorded model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows).relu()


def raw_events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    document_events = json.loads(text)["traceEvents"]
    assert isinstance(document_events, list)
    return document_events


def is_within(event: dict[str, Any], calls: list[dict[str, Any]]) -> bool:
    thread_calls = [call for call in calls if call["tid"] == event["tid"]]
    return any(call["ts"] <= event["ts"] < call["ts"] + call["dur"] for call in thread_calls)


def test_a_recorded_model_has_the_times_of_its_own_trace(tmp_path: Path) -> None:
    model, rows = nn.Sequential(Layer(), Layer()), torch.randn(4, 8)
    config = torch._C._profiler._ExperimentalConfig(verbose=True)
    with torch.profiler.profile(with_stack=True, experimental_config=config) as profiler:
        for _ in range(2):
            model(rows).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))

    every = analyze(path).summary.modules
    assert [(module.name, module.depth, module.n_calls) for module in every] == [
        ("Sequential_0", 0, 2),
        ("Layer_0…1", 1, 4),
        ("Linear_0…1", 2, 4),
    ]
    assert_exact(every)

    events = raw_events(path)
    # The backward pass belongs to the module too: nodes by the sequence number of the forward pass.
    for summary, pattern in zip(every, ("Sequential", "Layer", "Linear"), strict=True):
        calls = [e for e in events if e["name"].startswith(f"nn.Module: {pattern}_")]
        within = {
            e["args"]["Sequence number"]
            for e in events
            if e.get("cat") == "cpu_op" and "Sequence number" in e["args"]
            if "Backward" not in e["name"] and is_within(e, calls)
        }
        nodes = [
            e
            for e in events
            if e["name"].startswith("autograd::engine::evaluate_function")
            and e["args"].get("Sequence number") in within
        ]
        assert nodes
        expected_us = sum(e["dur"] for e in (*calls, *nodes))
        assert summary.host_ns == pytest.approx(expected_us * 1e3, rel=1e-6)


@needs_corpus
def test_the_modules_of_a_real_trace_have_the_kernels_that_were_launched_in_them() -> None:
    path = CORPUS / "traces" / "h100-qwen-inference.json.gz"
    every = analyze(path).summary.modules
    assert_exact(every)

    events = [e for e in raw_events(path) if "dur" in e]
    launched: Counter[int] = Counter()
    for e in events:
        if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
            launched[e["args"]["correlation"]] += round(e["dur"] * 1000)
    calls = [e for e in events if e.get("cat") in {"cuda_runtime", "cuda_driver"}]
    for name in ("Qwen2Model", "Qwen2Attention", "Qwen2MLP"):
        modules = [e for e in events if e["name"].startswith(f"nn.Module: {name}_")]
        within = [call for call in calls if is_within(call, modules)]
        expected_ns = sum(launched[call["args"]["correlation"]] for call in within)
        (summary,) = (module for module in every if module.name.startswith(f"{name}_"))
        assert summary.n_calls == len(modules)
        assert summary.device_ns == expected_ns
        assert summary.host_ns == pytest.approx(sum(m["dur"] for m in modules) * 1e3, rel=1e-6)
    layers = [e for e in events if e["name"].startswith("nn.Module: Linear_")]
    flops = 0
    for e in events:
        if e["name"] in {"aten::mm", "aten::addmm"} and is_within(e, layers):
            rows, columns = (
                e["args"]["Input Dims"][-2:]
                if e["name"] == "aten::mm"
                else (e["args"]["Input Dims"][1:3])
            )
            flops += 2 * rows[0] * rows[1] * columns[1]
    achieved = [module.throughput for module in every if module.name.startswith("Linear_")]
    assert sum(throughput.flops for throughput in achieved if throughput is not None) == flops

    time_ns = sum(throughput.time_ns for throughput in achieved if throughput is not None)
    device_ns = sum(module.device_ns or 0 for module in every if module.name.startswith("Linear_"))
    assert 0.98 * device_ns <= time_ns <= device_ns  # some copy their input first
