"""Whatever the format, the same program gives the same figures."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.errors import LoadError
from profkit.load.open import load
from profkit.model.report import Report
from profkit.testing import Format, TraceBuilder


def program(b: TraceBuilder, n_steps: int = 3) -> TraceBuilder:
    """Whole microseconds throughout, so that every format can hold it exactly."""
    for _ in range(n_steps):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
            b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000, stream=13)
            b.to_device(4_096, 3_000)
            b.fill(4_096, 2_000)
            b.synchronize()
    return b


def figures(report: Report) -> dict[str, Any]:
    summary = report.summary
    return {
        "devices": [
            (d.device.partition(":")[2], d.n_kernels, d.n_memcpy, d.n_memset, d.span_ns, d.busy_ns,
             d.idle_ns, d.compute_ns, d.memcpy_ns)
            for d in summary.devices
        ],
        "steps": [(step.name, step.dur_ns) for step in summary.steps],
        "kernels": [(k.name, k.n_calls, k.total_ns) for k in summary.top_kernels],
        "syncs": sorted((s.call.removeprefix("cuda").removeprefix("hip"), s.n_calls, s.total_ns)
                        for s in summary.syncs),
        "ops": [(op.name, op.n_calls, op.total_ns) for op in summary.top_ops],
        "without launch": summary.n_gpu_events_without_launch,
    }  # fmt: skip


FORMATS = {
    "kineto's lines": Format(layout="kineto"),
    "one event a line": Format(layout="lines"),
    "keys after the events": Format(events_first=True),
    "a bare array": Format(array=True),
    "begins and ends": Format(edges=True),
    "flows, spans, counters, names and marks": Format(extras=True),
    "times as strings": Format(times="string"),
    "times as integers": Format(times="integer"),
    "absolute times": Format(absolute=True),
    "absolute integers": Format(absolute=True, times="integer"),
    "absolute strings": Format(absolute=True, times="string"),
    "torch before 1.11": Format(old=True, absolute=True, times="integer", extras=True),
    "ROCm": Format(vendor="rocm"),
    "ROCm 7.1": Format(vendor="rocm-7.1"),
    "XPU": Format(vendor="xpu"),
    "another vendor's device": Format(vendor="privateuse1"),
}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_program_has_the_same_figures_in_every_format(form: Format, tmp_path: Path) -> None:
    b = program(TraceBuilder())
    today = figures(analyze(b.write(tmp_path / "today.json"), strict=True))
    found = figures(analyze(b.write(tmp_path / "other.json", form), strict=True))
    assert today["devices"][0][1:4] == (6, 3, 3)
    if form.vendor in ("xpu", "privateuse1"):
        # Which of their calls wait is not known by name.
        today.pop("syncs")
        found.pop("syncs")
    assert found == today


def test_the_queues_of_an_xpu_are_its_streams(tmp_path: Path) -> None:
    path = program(TraceBuilder()).write(tmp_path / "t.json", Format(vendor="xpu"))
    events = load(path).events
    assert set(events.stream.values.tolist()) == {7, 13}


def test_times_that_are_no_whole_microseconds_are_not_written_as_such() -> None:
    b = TraceBuilder()
    b.compute("aten::zeros", 1_500)
    with pytest.raises(ValueError, match="1500 ns"):
        b.to_bytes(Format(times="integer"))


ACTIONS: tuple[Callable[[TraceBuilder], object], ...] = (
    lambda b: b.launch("aten::add", kernel="add", host_ns=9_000, device_ns=3_000),
    lambda b: b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=700_000, stream=13),
    lambda b: b.to_device(1 << 12, 9_000),
    lambda b: b.fill(64, 1_000),
    lambda b: b.item(),
    lambda b: b.synchronize(),
    lambda b: b.advance(250_000),
)
bodies = st.lists(st.integers(0, len(ACTIONS) - 1), min_size=1, max_size=12)
formats = st.builds(
    Format,
    vendor=st.sampled_from(["cuda", "rocm", "rocm-7.1"]),
    old=st.booleans(),
    layout=st.sampled_from(["kineto", "compact", "lines"]),
    array=st.booleans(),
    events_first=st.booleans(),
    extras=st.booleans(),
    times=st.sampled_from(["decimal", "string", "integer"]),
    absolute=st.booleans(),
)
quick = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def built(body: list[int]) -> TraceBuilder:
    b = TraceBuilder()
    with b.step():
        for number in body:
            ACTIONS[number](b)
    return b


@quick
@given(body=bodies, form=formats, seed=st.integers(0, 1000), packed=st.booleans())
def test_any_program_has_the_same_figures_in_any_format_and_packing(
    body: list[int],
    form: Format,
    seed: int,
    packed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    b = built(body)
    today = figures(analyze(b.write(tmp_path / "today.json"), strict=True))
    text = b.to_bytes(form)
    (tmp_path / "other.json").write_bytes(gzip.compress(text) if packed else text)
    assert figures(analyze(tmp_path / "other.json", strict=True)) == today
    random.Random(seed).shuffle(b.events)  # noqa: S311  (no secret)
    shuffled = figures(analyze(b.write(tmp_path / "shuffled.json", form), strict=True))
    assert {k: sorted(v) if isinstance(v, list) else v for k, v in shuffled.items()} == {
        k: sorted(v) if isinstance(v, list) else v for k, v in today.items()
    }


@quick
@given(form=formats, cuts=st.lists(st.tuples(st.integers(0, 9000), st.binary(max_size=4))))
def test_any_damage_in_any_format_ends_in_a_report_or_an_error_of_ours(
    form: Format, cuts: list[tuple[int, bytes]], tmp_path: Path
) -> None:
    data = bytearray(program(TraceBuilder(), n_steps=1).to_bytes(form))
    for at, put in cuts:
        data[at % len(data) : at % len(data) + len(put)] = put
    (tmp_path / "t.json").write_bytes(data)
    try:
        report = analyze(tmp_path / "t.json", strict=True)
    except LoadError:
        return
    assert report.summary.window_ns >= 0
