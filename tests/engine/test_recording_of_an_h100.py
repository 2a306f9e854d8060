"""A recording of an H100: its figures against those of its raw events, and what is found in it.

The first recording of a GPU that profkit has made, without a step with stacks:
``profkit run examples/gpu/unfused_optimizer.py`` with torch 2.11, on 2026-11-28.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.model.report import Report

RECORDING = Path(__file__).with_name("h100_unfused_optimizer.pt.trace.json.gz")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    """Return the complete events as torch wrote them."""
    with gzip.open(RECORDING) as text:
        return [event for event in json.load(text)["traceEvents"] if event["ph"] == "X"]


@pytest.fixture(scope="module")
def report() -> Report:
    return profkit.analyze(RECORDING)


def ns(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def steps_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps on the host; the device has a copy of each."""
    return [
        event
        for event in events
        if event["cat"] == "user_annotation" and event["name"].startswith("ProfilerStep")
    ]


def union_ns(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of some spans."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def test_the_device_is_busy_as_long_as_its_raw_events(
    report: Report, events: list[dict[str, Any]]
) -> None:
    (device,) = report.summary.devices
    work = [event for event in events if event["cat"] in DEVICE]
    assert (device.name, device.device) == ("NVIDIA H100 80GB HBM3", "cuda:0")
    assert device.n_kernels == sum(event["cat"] == "kernel" for event in work) == 3 * 762
    assert device.busy_ns == union_ns([ns(event) for event in work])


def test_steps_match_the_recorded_ones(report: Report, events: list[dict[str, Any]]) -> None:
    raw = {event["name"]: ns(event) for event in steps_of(events)}
    steps = report.summary.steps
    assert [step.name for step in steps] == sorted(raw)
    for step in steps:
        begin, end = raw[step.name]
        # profkit's own work at their edges is left out.
        assert 0 <= end - begin - step.dur_ns < 100_000
        assert step.n_kernels == 762


def test_the_optimizer_is_the_cause_and_its_wait_for_the_backward_pass_is_not(
    report: Report,
) -> None:
    assert [finding.rule for finding in report.findings] == ["KER004", "KER001"]
    optimizer, launches = report.findings
    assert "updates one parameter after the other with 528 operators" in optimizer.message
    assert optimizer.cost.ns is not None
    assert launches.cost.ns is not None
    assert optimizer.cost.ns > launches.cost.ns


def test_the_backward_pass_runs_in_a_thread_of_its_own(
    report: Report, events: list[dict[str, Any]]
) -> None:
    # The thread of the steps has no operator while it waits: 10 of 36 ms.
    backward = [event for event in events if event["name"].startswith("autograd::engine")]
    assert {event["tid"] for event in steps_of(events)}.isdisjoint(
        {event["tid"] for event in backward}
    )
    path = report.summary.critical_path
    assert path is not None
    python_ns = sum(part.ns for part in path.parts if part.kind == "python")
    of_backward_ns = sum(part.ns for part in path.parts if part.kind == "operator")
    assert union_ns([ns(event) for event in backward]) < of_backward_ns
    assert python_ns < 0.3 * path.total_ns
