"""Folded lines and speedscope files: stacks whose weights add up to the recorded total."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.api import AnalysisResult, render, study
from profkit.errors import UsageError
from profkit.present.renderer import remark, renderer
from profkit.testing import SnapshotBuilder, TraceBuilder
from tests.renderers import reports


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    """Two steps with stacks, each of which launches two kernels from two lines."""
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step(), b.frame("/src/train.py", 3, "main"):
            with b.frame("/src/model.py", 8, "forward;x"):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_333)
            b.launch("aten::add", kernel="add", host_ns=7_001, device_ns=1_000)
    return study(b.write(tmp_path_factory.mktemp("traced") / "t.json"))


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    """Two blocks that are live at the peak, of two source lines."""
    b = SnapshotBuilder()
    with b.frame("/src/train.py", 3, "main"):
        kept = b.alloc(4 << 20)
        with b.frame("/src/model.py", 8, "forward"):
            b.alloc(8 << 20)
    b.free(kept)
    return study(b.write(tmp_path_factory.mktemp("snap") / "m.snapshot.pickle"))


def folded(studied: AnalysisResult, weight: str = "", base: str = "") -> dict[str, int]:
    product = render(
        studied.report, "folded", weight=weight, base=base, recording=studied.recording
    )
    weights: dict[str, int] = {}
    for line in product.decode().splitlines():
        stack, _, n = line.rpartition(" ")
        assert stack not in weights
        weights[stack] = int(n)
    return weights


def scopes(studied: AnalysisResult, weight: str = "") -> Any:  # noqa: ANN401  (a JSON tree)
    product = render(studied.report, "speedscope", weight=weight, recording=studied.recording)
    tree = json.loads(product)
    check(tree)
    return tree


def check(tree: Any) -> None:  # noqa: ANN401  (a JSON tree)
    """Check what speedscope's own importer demands of a file."""
    assert tree["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = tree["shared"]["frames"]
    assert all(isinstance(frame["name"], str) and frame["name"] for frame in frames)
    assert all(isinstance(frame.get("line", 1), int) for frame in frames)
    assert len({json.dumps(frame) for frame in frames}) <= len(frames)
    for profile in tree["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"nanoseconds", "bytes"}
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= number < len(frames) for stack in profile["samples"] for number in stack)
        assert all(isinstance(n, int) and n > 0 for n in profile["weights"])
    assert 0 <= tree["activeProfileIndex"] < max(1, len(tree["profiles"]))


def test_host_time_adds_up_to_the_outermost_calls(traced: AnalysisResult) -> None:
    ctx = traced.recording.context
    steps = [r for r in range(len(ctx.events)) if ctx.events.name_of(r).startswith("ProfilerStep")]
    weights = folded(traced, "host")
    assert sum(weights.values()) == sum(int(ctx.events.dur_ns[row]) for row in steps)
    assert folded(traced) == weights


def test_a_stack_goes_from_the_outermost_frame_to_the_innermost(traced: AnalysisResult) -> None:
    (stack,) = [
        stack for stack in folded(traced, "host", base="/src") if stack.endswith("aten::mm")
    ]
    frames = stack.split(";")
    assert frames[-3:] == ["main (train.py:3)", "forward:x (model.py:8)", "aten::mm"]


def test_device_time_adds_up_by_the_stack_of_the_launch(traced: AnalysisResult) -> None:
    weights = folded(traced, "device")
    assert sum(weights.values()) == 2 * (50_333 + 1_000)
    (gemm,) = [stack for stack in weights if stack.endswith(";gemm")]
    assert "forward:x (/src/model.py:8);aten::mm" in gemm
    assert weights[gemm] == 2 * 50_333


def test_bytes_at_the_peak_add_up_to_its_blocks(snapshot: AnalysisResult) -> None:
    weights = folded(snapshot)
    assert sum(weights.values()) == 12 << 20
    assert weights[
        next(stack for stack in weights if stack.endswith("forward (/src/model.py:8)"))
    ] == (8 << 20)
    (profile, *_) = scopes(snapshot, "memory")["profiles"]
    assert profile["unit"] == "bytes"
    assert profile["endValue"] == 12 << 20


def test_speedscope_has_a_profile_for_each_kind_with_the_same_sums(traced: AnalysisResult) -> None:
    tree = scopes(traced)
    sums = {profile["name"].partition(":")[0]: profile["endValue"] for profile in tree["profiles"]}
    assert sums["Host time by stack"] == sum(folded(traced, "host").values())
    assert sums["Device time by stack at the launch"] == sum(folded(traced, "device").values())
    frames = tree["shared"]["frames"]
    assert {"name": "forward;x", "file": "/src/model.py", "line": 8} in frames


def test_one_kind_is_selected_by_name(traced: AnalysisResult) -> None:
    (profile,) = scopes(traced, "device-line")["profiles"]
    assert profile["name"].startswith("Device time by line")


def test_without_stacks_there_are_operators_and_a_remark(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.step():
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    studied = study(b.write(tmp_path / "bare.json"))
    assert any(stack.endswith(";aten::mm") for stack in folded(studied))
    for name in ("folded", "speedscope"):
        said = remark(renderer(name), studied.report, {"recording": studied.recording})
        assert "operators are shown instead" in said


def test_with_stacks_there_is_no_remark(traced: AnalysisResult) -> None:
    assert remark(renderer("folded"), traced.report, {"recording": traced.recording}) == ""


def test_a_report_alone_has_the_stacks_that_it_contains() -> None:
    report = reports.build_gpu_report()
    host = render(report, "folded").decode().splitlines()
    assert "source line not recorded;aten::mm 38000000" in host
    device = render(report, "folded", weight="device-line").decode()
    assert "forward (/home/me/project/lib/model.py:12);aten::mm;volta_sgemm_64x64_nt 2" in device
    memory = json.loads(render(reports.build_snapshot_report(), "speedscope"))
    check(memory)
    assert [profile["unit"] for profile in memory["profiles"]] == ["bytes"]


def test_an_empty_recording_has_an_empty_product() -> None:
    assert render(reports.empty_report(), "folded") == b""
    check(json.loads(render(reports.empty_report(), "speedscope")))


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_stay_in_their_line(text: str) -> None:
    report = reports.build_hostile_report(text)
    for weight in ("host-line", "device-line", "memory-stack"):
        for line in render(report, "folded", weight=weight).decode().splitlines():
            stack, _, n = line.rpartition(" ")
            assert stack
            assert int(n) > 0
    check(json.loads(render(report, "speedscope")))


def test_unknown_weights_are_usage_errors_that_list_the_others(
    traced: AnalysisResult, snapshot: AnalysisResult
) -> None:
    with pytest.raises(UsageError, match="no stacks weighted by 'hosts'"):
        folded(traced, "hosts")
    with pytest.raises(UsageError) as refused:
        folded(snapshot, "device")
    assert "memory-stack" in refused.value.hint
