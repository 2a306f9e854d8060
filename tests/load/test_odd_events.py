"""Events that are written as two, and events whose times make no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.load.open import load
from profkit.model.trace import Trace

HOUR_US = 3.6e9


def event(ts: object, dur: object = 2.0, **more: object) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 2, "ts": ts, "dur": dur,
            **more}  # fmt: skip


def edge(ph: str, ts: float, **more: object) -> dict[str, Any]:
    return {"ph": ph, "cat": "cpu_op", "name": "edge", "pid": 1, "tid": 2, "ts": ts, **more}


def read(tmp_path: Path, events: list[Any]) -> Trace:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load(path)


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    events = trace.events
    return sorted(
        (events.name_of(i), int(events.ts_ns[i]), int(events.dur_ns[i])) for i in range(len(events))
    )


def test_begins_and_ends_pair_by_nesting_on_their_thread(tmp_path: Path) -> None:
    events = [
        edge("B", 0, name="outer"), edge("B", 1, name="inner"), edge("B", 2, name="other", tid=3),
        {"ph": "E", "pid": 1, "tid": 2, "ts": 4}, {"ph": "E", "pid": 1, "tid": 3, "ts": 5},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 9},
    ]  # fmt: skip
    trace = read(tmp_path, events)
    assert spans(trace) == [("inner", 1_000, 3_000), ("other", 2_000, 3_000), ("outer", 0, 9_000)]
    assert trace.notes.n_unpaired == 0


def test_edges_without_a_partner_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, [edge("E", 1), edge("B", 2), edge("E", 3), edge("B", 4)])
    assert spans(trace) == [("edge", 0, 1_000)]
    assert trace.notes.n_unpaired == 2


def test_edges_stand_beside_complete_events(tmp_path: Path) -> None:
    trace = read(tmp_path, [event(0.0, args={"External id": 7}), edge("B", 5), edge("E", 6)])
    assert spans(trace) == [("edge", 5_000, 1_000), ("op", 0, 2_000)]
    assert trace.events.external_id.values.tolist() == [7]


@pytest.mark.parametrize(
    ("ts", "dur", "said"),
    [
        (5.0, -3.0, "negative"),
        (5.0, 1e17, "no time"),
        (5.0, 1.8e19, "no time"),
        (5.0, 4e13, "longer than a year"),
        (5.0, 3 * HOUR_US, "many times as long"),
        (-3 * HOUR_US, 1.0, "many times as long"),
    ],
)
def test_an_event_whose_times_make_no_sense_is_set_aside_and_named(
    ts: float, dur: float, said: str, tmp_path: Path
) -> None:
    sane = [event(float(i), args={"External id": i}) for i in range(30)]
    odd = event(ts, dur, name="odd", args={"External id": 99})
    trace = read(tmp_path, [*sane[:10], odd, *sane[10:]])
    assert trace.notes.n_odd == 1
    (named,) = trace.notes.odd
    assert (named.name, named.position) == ("odd", 10)
    assert said in named.reason
    assert len(trace.events) == 30
    assert int(trace.events.end_ns.max()) == 31_000
    assert trace.events.external_id.values.tolist() == list(range(30))


def test_a_long_kernel_and_the_callers_of_everything_are_not_odd(tmp_path: Path) -> None:
    short = [event(float(i)) for i in range(40)]
    minutes = 9 * 60 * 1e6
    assert read(tmp_path, [*short, event(3.0, minutes)]).notes.n_odd == 0
    callers = [event(0.0, 2 * HOUR_US), event(0.5, 2 * HOUR_US - 1)]
    assert read(tmp_path, [*short, *callers]).notes.n_odd == 0


def test_a_few_events_far_apart_are_all_kept(tmp_path: Path) -> None:
    assert len(read(tmp_path, [event(0.0), event(5 * HOUR_US)]).events) == 2
