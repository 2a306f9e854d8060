"""The traces of several ranks as one."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from profkit.errors import NotATraceError
from profkit.model.rank_lanes import RankClock
from profkit.readers.kineto.merge import RankFile, merge_traces
from profkit.readers.stream import place_of

BASE_NS = 1_790_000_000_000_000_000


def trace(path: Path, events: list[dict[str, Any]], *, base_below: bool = False) -> Path:
    base = f'"baseTimeNanoseconds": {BASE_NS}'
    listed = f'"traceEvents": {json.dumps(events)}'
    path.write_text(f"{{{listed}, {base}}}" if base_below else f"{{{base}, {listed}}}")
    return path


def joined(*files: RankFile, start_ns: int = BASE_NS) -> list[dict[str, Any]]:
    text = b"".join(merge_traces(files, start_ns))
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return events


def rank_file(path: Path, number: int = 0, clock: RankClock | None = None) -> RankFile:
    return RankFile(place_of(str(path)), f"rank {number}", (clock or RankClock()).corrected)


def kernel(at_us: float, dur_us: float, **given: object) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": at_us,
        "dur": dur_us,
        **given,
    }


@pytest.mark.parametrize("base_below", [False, True])
def test_times_are_exact_on_the_common_clock(tmp_path: Path, base_below: bool) -> None:  # noqa: FBT001
    events = [kernel(1234.567, 10.001), kernel(98765432109.876, 2)]
    path = trace(tmp_path / "a.json", events, base_below=base_below)
    clock = RankClock(offset_ns=4_567)
    first, second, *_ = joined(rank_file(path, 0, clock), start_ns=BASE_NS - 1_000_000)
    assert (first["ts"], first["dur"]) == (Decimal("2230.000"), Decimal("10.001"))
    assert second["ts"] == Decimal("98765433105.309")


def test_each_rank_has_processes_and_arrows_of_its_own(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "GPU 1"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
        kernel(1, 2),
        kernel(1, 2, pid=4711, name="aten::mm"),
        {"ph": "s", "name": "ac2g", "pid": 4711, "tid": 7, "ts": 1, "id": 12},
        {"ph": "f", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1, "id": 12, "bp": "e"},
        kernel(3, 1, cat="profkit", name="an earlier export"),
    ]
    path = trace(tmp_path / "a.json", events)
    merged_events = joined(rank_file(path, 0), rank_file(path, 1))

    names = {
        event["pid"]: event["args"]["name"]
        for event in merged_events
        if event["name"] == "process_name"
    }
    assert sorted(names.values()) == ["rank 0", "rank 0 · GPU 0", "rank 1", "rank 1 · GPU 0"]
    assert {event["pid"] for event in merged_events} == names.keys(), "GPU 1 has no events"
    assert "an earlier export" not in {event["name"] for event in merged_events}

    threads = [event for event in merged_events if event["name"] == "thread_name"]
    assert [names[thread["pid"]] for thread in threads] == ["rank 0 · GPU 0", "rank 1 · GPU 0"]
    arrows: dict[int, list[str]] = {}
    for merged_event in merged_events:
        if merged_event["ph"] in "sf":
            arrows.setdefault(merged_event["id"], []).append(names[merged_event["pid"]])
    assert sorted(arrows.values()) == [["rank 0", "rank 0 · GPU 0"], ["rank 1", "rank 1 · GPU 0"]]


def test_slices_still_nest_on_a_clock_that_drifts(tmp_path: Path) -> None:
    outer, inner = kernel(0, 2_000_000), kernel(500_000, 1_500_000)
    path = trace(tmp_path / "a.json", [outer, inner, kernel(2_000_000, 5)])
    clock = RankClock(drift=1e-4, origin_ns=BASE_NS)
    first, second, third, *_ = joined(rank_file(path, 0, clock))
    assert first["ts"] + first["dur"] == second["ts"] + second["dur"] == third["ts"]
    assert abs(first["dur"] - Decimal(2_000_000) / Decimal("1.0001")) < Decimal("0.002")


def test_what_is_not_an_event_is_left_out(tmp_path: Path) -> None:
    odd: list[Any] = [3, None, kernel(1, 2), {"ph": "X", "name": "no times", "pid": 1}]
    odd.append(kernel("12", 3))  # type: ignore[arg-type]  # as some profilers write it
    path = trace(tmp_path / "a.json", odd)
    slices = [event for event in joined(rank_file(path)) if event["ph"] == "X"]
    assert [event.get("ts") for event in slices] == [Decimal(1), None, Decimal(12)]


def test_a_file_without_events_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"size": 3}')
    with pytest.raises(NotATraceError, match="no traceEvents"):
        joined(rank_file(path))
