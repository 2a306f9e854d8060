"""XPU syncs are calls of the waiting thread; barriers on the device are not calls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.model.events import Category, EventTable
from tests.traces import load_events


def event(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, **args: object) -> Any:  # noqa: ANN401
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def sync(kind: object, tid: int = 20, name: str = "zeEventHostSynchronize") -> Any:  # noqa: ANN401
    return event("xpu_sync", name, -1, tid, 2.0, 5.0, Type=kind, correlation=9)


OP = event("cpu_op", "aten::item", 10, 20, 0.0, 10.0)


def read(tmp_path: Path, *events: Any) -> EventTable:  # noqa: ANN401
    return load_events(tmp_path, events).events


def thread_of(events: EventTable, row: int) -> tuple[str, str]:
    lane = events.lanes[events.lane[row]]
    return lane.pid, lane.tid


@pytest.mark.parametrize(
    "kind", ["HOST_FENCE", "HOST_EVENT", "HOST_COMMAND_LIST", "HOST_COMMAND_QUEUE"]
)
def test_a_host_sync_is_a_call_on_the_waiting_thread(kind: str, tmp_path: Path) -> None:
    events = read(tmp_path, OP, sync(kind))
    assert events.category.tolist() == [Category.OP, Category.DRIVER]
    assert thread_of(events, 1) == thread_of(events, 0) == ("10", "20")


@pytest.mark.parametrize(
    "kind", ["GPU_BARRIER_EXECUTION", "GPU_BARRIER_MEMORY", "UNKNOWN", "404: ...", None, 7]
)
def test_other_sync_events_are_not_calls_and_stay_on_their_lane(
    kind: object, tmp_path: Path
) -> None:
    events = read(tmp_path, OP, sync(kind, name="zeCommandListAppendBarrier"))
    assert events.category.tolist() == [Category.OP, Category.DEVICE_SYNC]
    assert thread_of(events, 1) == ("-1", "20")


def test_a_sync_is_not_moved_if_two_processes_have_a_thread_of_that_number(tmp_path: Path) -> None:
    other_event = event("cpu_op", "aten::mm", 11, 20, 0.0, 10.0)
    events = read(tmp_path, OP, other_event, sync("HOST_EVENT"))
    assert thread_of(events, 2) == ("-1", "20")


def test_a_sync_of_a_thread_without_other_events_stays_a_call(tmp_path: Path) -> None:
    events = read(tmp_path, OP, sync("HOST_EVENT", tid=99))
    assert events.category[1] == Category.DRIVER
    assert thread_of(events, 1) == ("-1", "99")


def test_profiler_overhead_is_not_moved_to_a_thread(tmp_path: Path) -> None:
    overhead = event("overhead", "Buffer Flush", -1, 20, 1.0, 3.0)
    events = read(tmp_path, OP, overhead, sync("HOST_EVENT"))
    assert [thread_of(events, row) for row in range(3)] == [
        ("10", "20"),
        ("-1", "20"),
        ("10", "20"),
    ]
    assert events.correlation.at(np.array([2]))[0] == 9
