"""Begin and end events are paired; events with invalid times are excluded."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.model.events import MISSING, Category
from profkit.model.trace import LOST_TIME, Trace
from profkit.readers.kineto.split import TraceText, split_batches
from tests.traces import load_events, op_event
from tests.traces import load_trace as load

HOUR_US = 3.6e9


def begin_end(ph: str, ts: float, **more: object) -> dict[str, Any]:
    return {"ph": ph, "cat": "cpu_op", "name": "pair", "pid": 1, "tid": 2, "ts": ts, **more}


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    events = trace.events
    return sorted(
        (events.name_of(i), int(events.ts_ns[i]), int(events.dur_ns[i])) for i in range(len(events))
    )


def test_begin_and_end_events_pair_by_nesting_on_their_thread(tmp_path: Path) -> None:
    events = [
        begin_end("B", 0, name="outer"),
        begin_end("B", 1, name="inner"),
        begin_end("B", 2, name="other", tid=3),
        {"ph": "E", "pid": 1, "tid": 2, "ts": 4},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 5},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 9},
    ]
    trace = load_events(tmp_path, events)
    assert spans(trace) == [("inner", 1_000, 3_000), ("other", 2_000, 3_000), ("outer", 0, 9_000)]
    assert trace.notes.n_unpaired == 0


def test_unpaired_begin_and_end_events_are_counted_and_excluded(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path, [begin_end("E", 1), begin_end("B", 2), begin_end("E", 3), begin_end("B", 4)]
    )
    assert spans(trace) == [("pair", 0, 1_000)]
    assert trace.notes.n_unpaired == 2


def test_paired_events_are_added_to_complete_events(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path, [op_event(0.0, args={"External id": 7}), begin_end("B", 5), begin_end("E", 6)]
    )
    assert spans(trace) == [("op", 0, 2_000), ("pair", 5_000, 1_000)]
    assert trace.events.external_id.values.tolist() == [7]


@pytest.mark.parametrize(
    ("ts", "dur", "reason"),
    [
        (5.0, -3.0, "negative"),
        (5.0, 1e17, "not a valid number"),
        (5.0, 1.8e19, "not a valid number"),
        (5.0, 4e13, "more than a year"),
        (5.0, 3 * HOUR_US, "ten times as long"),
        (-3 * HOUR_US, 1.0, "ten times as long"),
    ],
)
def test_an_event_with_invalid_times_is_excluded_and_listed(
    ts: float, dur: float, reason: str, tmp_path: Path
) -> None:
    valid = [op_event(float(i), args={"External id": i}) for i in range(30)]
    invalid = op_event(ts, dur, name="invalid", args={"External id": 99})
    trace = load_events(tmp_path, [*valid[:10], invalid, *valid[10:]])
    assert trace.notes.n_invalid == 1
    (listed,) = trace.notes.invalid
    assert (listed.name, listed.position) == ("invalid", 10)
    assert reason in listed.reason
    assert len(trace.events) == 30
    assert int(trace.events.end_ns.max()) == 31_000
    assert trace.events.external_id.values.tolist() == list(range(30))


def test_a_long_kernel_and_several_outermost_calls_are_valid(tmp_path: Path) -> None:
    short = [op_event(float(i)) for i in range(40)]
    minutes = 9 * 60 * 1e6
    assert load_events(tmp_path, [*short, op_event(3.0, minutes)]).notes.n_invalid == 0
    callers = [op_event(0.0, 2 * HOUR_US), op_event(0.5, 2 * HOUR_US - 1)]
    assert load_events(tmp_path, [*short, *callers]).notes.n_invalid == 0


def test_a_few_events_far_apart_are_all_valid(tmp_path: Path) -> None:
    assert len(load_events(tmp_path, [op_event(0.0), op_event(5 * HOUR_US)]).events) == 2


# ------------------------------------------------------------------- arguments of begins and ends


def test_arguments_of_begin_and_end_are_merged_and_the_end_wins(tmp_path: Path) -> None:
    begin = begin_end("B", 5, args={"External id": 7, "Sequence number": 3})
    end = begin_end("E", 6, args={"Sequence number": 4, "Fwd thread id": 2})
    trace = load_events(
        tmp_path, [op_event(0.0, args={"External id": 1}), begin, end, op_event(9.0)]
    )
    rows = np.arange(3)
    assert [trace.events.name_of(row) for row in range(3)] == ["op", "op", "pair"]
    assert trace.events.external_id.at(rows).tolist() == [1, MISSING, 7]
    assert trace.events.sequence.at(rows).tolist() == [MISSING, MISSING, 4]
    assert trace.events.forward_thread.at(rows).tolist() == [MISSING, MISSING, 2]


def test_a_kernel_written_as_begin_and_end_has_its_device_and_joins_its_launch(
    tmp_path: Path,
) -> None:
    kernel = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    call = op_event(0.0, cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 5})
    args = {"device": 1, "stream": 7, "correlation": 5, "Collective name": "allreduce"}
    trace = load_events(
        tmp_path,
        [call, {"ph": "B", "ts": 4, "args": args, **kernel}, {"ph": "E", "ts": 9, **kernel}],
    )
    row = np.array([1])
    events = trace.events
    assert (events.device.at(row)[0], events.stream.at(row)[0]) == (1, 7)
    assert events.names[events.collective.at(row)[0]] == "allreduce"
    assert events.correlation.at(np.arange(2)).tolist() == [5, 5]


def test_a_paired_event_has_only_the_columns_of_its_category(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path, [begin_end("B", 0, args={"stream": 7, "External id": 2}), begin_end("E", 1)]
    )
    assert trace.events.stream.rows.tolist() == []
    assert trace.events.external_id.values.tolist() == [2]


def test_rocm_copy_kernels_written_as_begin_and_end_are_copies(tmp_path: Path) -> None:
    copy = {"cat": "kernel", "name": "__amd_rocclr_copyBuffer", "pid": 0, "tid": 1}
    trace = load_events(tmp_path, [{"ph": "B", "ts": 0, **copy}, {"ph": "E", "ts": 3, **copy}])
    assert trace.events.category.tolist() == [Category.MEMCPY]


@pytest.mark.parametrize("kind", ["B", "X", "i"])
@pytest.mark.parametrize("mark", ["", '"'], ids=["numbers", "strings"])
def test_times_since_1970_are_exact_for_every_phase_and_type(
    kind: str, mark: str, tmp_path: Path
) -> None:
    first, last = (f"{mark}1682725898236567.{part}{mark}" for part in ("101", "999"))
    more = {"name": "[memory]", "args": {"Bytes": 1}} if kind == "i" else {"dur": 0.5}
    texts = [
        json.dumps(begin_end(ph, 0.5, **more)).replace('"ts": 0.5', f'"ts": {ts}')
        for ph, ts in ((kind, first), ("E" if kind == "B" else kind, last))
    ]
    (tmp_path / "t.json").write_text("[" + ", ".join(texts) + "]")
    trace = load(tmp_path / "t.json")
    assert trace.base_ns == 1682725898236567101
    assert {
        "B": trace.events.dur_ns.tolist() == [898],
        "X": trace.events.ts_ns.tolist() == [0, 898],
        "i": trace.memory.ts_ns.tolist() == [0, 898],
    }[kind]


@pytest.mark.parametrize("broken", ["", '{"ph": "X", "name": "C:\\q", "ts": 1, "dur": 1},'])
def test_times_since_1970_are_exact_in_a_salvaged_batch_and_with_keys_after_the_events(
    broken: str, tmp_path: Path
) -> None:
    listed = json.dumps(op_event(0.5, 1.5)).replace('"ts": 0.5', '"ts": 1682725898236567.101')
    after = {
        "deviceProperties": [{"id": 0, "name": "H200"}],
        "distributedInfo": {"rank": 3, "pg_config": [{"pg_name": "0"}]},
        "traceName": "x",
    }
    text = f'{{"traceEvents": [{listed}, {broken} {listed}], {json.dumps(after)[1:]}'
    (tmp_path / "t.json").write_text(text)
    trace = load(tmp_path / "t.json")
    valid = trace.events.ts_ns[trace.events.dur_ns == 1_500]
    assert set((valid + trace.base_ns).tolist()) == {1682725898236567101}
    assert (trace.devices[0].name, trace.rank) == ("H200", 3)
    assert not trace.notes.truncated


def test_a_list_after_the_events_is_not_mistaken_for_their_end() -> None:
    events = [op_event(float(i), args={"list": [{"a": 1}], "b": 2}) for i in range(40)]
    after = {"pg_config": [{"pg_name": "0"}], "z": {"y": [{"x": [{}]}]}, "w": 1}
    data = json.dumps({"traceEvents": events, **after}).encode()
    text = TraceText()
    (batch,) = split_batches([data], text)
    assert json.loads(batch) == events
    assert json.loads(text.head + b"]" + text.tail) == {"traceEvents": [], **after}


def test_excluding_an_event_keeps_the_values_of_paired_events(tmp_path: Path) -> None:
    valid = [op_event(float(i), args={"External id": i}) for i in range(30)]
    invalid = op_event(5.0, -3.0, name="invalid", args={"External id": 99})
    pair = [begin_end("B", 40, args={"External id": 77}), begin_end("E", 41)]
    trace = load_events(tmp_path, [invalid, *valid, *pair])
    assert trace.notes.n_invalid == 1
    assert trace.events.external_id.values.tolist() == [*range(30), 77]
    assert trace.events.name_of(int(trace.events.external_id.rows[-1])) == "pair"


# ------------------------------------------------------------------------------------ allocations


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("ways", [("i",), ("I",), ("X",), ("i", "I", "X")], ids="".join)
def test_an_allocation_is_an_instant_in_every_phase(
    ways: tuple[str, ...],
    absolute: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    base = 1_700_000_000_000_000 if absolute else 0
    marks = [
        {
            "ph": ways[i % len(ways)],
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 2,
            "ts": base + i + 0.5,
            "dur": 1e9 - i,
            "s": "t",
            "args": {
                "Bytes": (1, -1)[i % 2] * 64,
                "Addr": 16,
                "Device Type": 1,
                "Device Id": 0,
                "Total Allocated": 64,
            },
        }
        for i in range(6)
    ]
    calls = [op_event(base + 0.0, 3.0), op_event(base + 3.0, 4.0)]

    trace = load_events(tmp_path, [calls[0], *marks, calls[1]])
    assert trace.memory.ts_ns.tolist() == [500 + 1000 * i for i in range(6)]
    assert trace.memory.n_bytes.tolist() == [64, -64] * 3
    assert trace.memory.position.tolist() == [1, 2, 3, 4, 5, 6]
    assert spans(trace) == [("op", 0, 3_000), ("op", 3_000, 4_000)]
    assert trace.events.position.tolist() == [0, 7]
    assert trace.notes.categories == {"cpu_op": 2}
    assert trace.recorded_with.memory is True


def test_a_memory_event_without_bytes_is_not_an_allocation(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path, [op_event(0.0, name="[memory]"), {"ph": "I", "name": "[memory]", "ts": 1}]
    )
    assert spans(trace) == [("[memory]", 0, 2_000)]
    assert len(trace.memory) == 0


def kernels_of_a_stream(n: int, *, overlap_us: float = 0.0) -> list[dict[str, Any]]:
    """Kernels of 80 µs, 20 µs apart unless they overlap."""
    apart_us = 100.0 if not overlap_us else 80.0 - overlap_us
    return [
        op_event(number * apart_us, 80.0, cat="kernel", name="gemm", pid=0, tid=7)
        for number in range(n)
    ]


def test_a_kernel_that_lasts_over_many_later_ones_of_its_stream_is_excluded(tmp_path: Path) -> None:
    events = kernels_of_a_stream(300)
    for number in (100, 170):
        events[number]["dur"] = 1_600_000.0
    notes = load_events(tmp_path, events).notes
    assert [event.position for event in notes.invalid] == [100, 170]
    assert {event.reason for event in notes.invalid} == {
        "it contains many later kernels of its stream"
    }


def test_work_of_a_device_whose_times_are_all_0_is_excluded(tmp_path: Path) -> None:
    lost = [op_event(0.0, 0.0, cat="kernel", name="gemm", pid=0, tid=7) for _ in range(3)]
    calls = [op_event(0.0, 0.0, cat="cuda_runtime", name="cudaLaunchKernel") for _ in range(3)]
    operators = [op_event(1e9 + number, 1.0, name="aten::mm") for number in range(30)]
    trace = load_events(tmp_path, [*lost, *calls, *operators])
    assert trace.notes.n_invalid == 6
    assert {event.reason for event in trace.notes.invalid} == {LOST_TIME}
    assert {name for name, _, _ in spans(trace)} == {"aten::mm"}


def test_a_single_event_at_0_is_valid(tmp_path: Path) -> None:
    first = op_event(0.0, 0.0, cat="cuda_runtime", name="cudaGetDevice")
    assert not load_events(tmp_path, [first, *kernels_of_a_stream(30)]).notes.invalid


def test_a_long_kernel_of_another_stream_is_valid(tmp_path: Path) -> None:
    long_one = op_event(1_000, 20_000.0, cat="kernel", name="all_reduce", pid=0, tid=13)
    assert not load_events(tmp_path, [*kernels_of_a_stream(300), long_one]).notes.invalid


def test_a_kernel_that_overlaps_a_few_later_ones_is_valid(tmp_path: Path) -> None:
    events = kernels_of_a_stream(300)
    events[100]["dur"] = 4_000.0
    assert not load_events(tmp_path, events).notes.invalid


def test_long_kernels_of_a_stream_whose_kernels_overlap_are_valid(tmp_path: Path) -> None:
    events = kernels_of_a_stream(300, overlap_us=10.0)
    events[100]["dur"] = 8_000.0
    assert not load_events(tmp_path, events).notes.invalid
