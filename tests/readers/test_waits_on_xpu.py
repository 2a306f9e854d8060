"""Waits on an XPU are calls of the thread that waited; barriers on the device are no calls."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.model.events import Category, EventTable
from profkit.readers.open import load_trace


def event(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, **args: object) -> Any:  # noqa: ANN401
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def wait(kind: object, tid: int = 20, name: str = "zeEventHostSynchronize") -> Any:  # noqa: ANN401
    return event("xpu_sync", name, -1, tid, 2.0, 5.0, Type=kind, correlation=9)


OP = event("cpu_op", "aten::item", 10, 20, 0.0, 10.0)


def read(tmp_path: Path, *events: Any) -> EventTable:  # noqa: ANN401
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load_trace(path).events


def thread_of(events: EventTable, row: int) -> tuple[str, str]:
    lane = events.lanes[events.lane[row]]
    return lane.pid, lane.tid


@pytest.mark.parametrize(
    "kind", ["HOST_FENCE", "HOST_EVENT", "HOST_COMMAND_LIST", "HOST_COMMAND_QUEUE"]
)
def test_a_wait_of_the_host_is_a_call_on_the_thread_that_waited(kind: str, tmp_path: Path) -> None:
    events = read(tmp_path, OP, wait(kind))
    assert events.category.tolist() == [Category.OP, Category.DRIVER]
    assert thread_of(events, 1) == thread_of(events, 0) == ("10", "20")


@pytest.mark.parametrize(
    "kind", ["GPU_BARRIER_EXECUTION", "GPU_BARRIER_MEMORY", "UNKNOWN", "404: ...", None, 7]
)
def test_anything_else_is_no_call_and_stays_where_it_is(kind: object, tmp_path: Path) -> None:
    events = read(tmp_path, OP, wait(kind, name="zeCommandListAppendBarrier"))
    assert events.category.tolist() == [Category.OP, Category.DEVICE_SYNC]
    assert thread_of(events, 1) == ("-1", "20")


def test_a_thread_of_that_number_in_two_processes_claims_no_wait(tmp_path: Path) -> None:
    other = event("cpu_op", "aten::mm", 11, 20, 0.0, 10.0)
    events = read(tmp_path, OP, other, wait("HOST_EVENT"))
    assert thread_of(events, 2) == ("-1", "20")


def test_a_wait_of_a_thread_that_did_nothing_else_stays_a_call(tmp_path: Path) -> None:
    events = read(tmp_path, OP, wait("HOST_EVENT", tid=99))
    assert events.category[1] == Category.DRIVER
    assert thread_of(events, 1) == ("-1", "99")


def test_overhead_of_no_process_is_not_moved_to_a_thread(tmp_path: Path) -> None:
    overhead = event("overhead", "Buffer Flush", -1, 20, 1.0, 3.0)
    events = read(tmp_path, OP, overhead, wait("HOST_EVENT"))
    assert [thread_of(events, row) for row in range(3)] == [
        ("10", "20"), ("-1", "20"), ("10", "20")
    ]  # fmt: skip
    assert events.correlation.at(np.array([2]))[0] == 9
