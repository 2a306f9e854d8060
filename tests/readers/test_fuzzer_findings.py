"""Inputs on which the fuzzer found a bug, one test per bug."""

import json
from decimal import Decimal
from pathlib import Path

from profkit.api import analyze
from profkit.index.host.nesting import call_tree
from profkit.readers.kineto.batch import to_ns
from tests.traces import load_trace as load


def event(ts: float, dur: float = 2.0, **more: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 2, "ts": ts, "dur": dur,
            **more}  # fmt: skip


def test_an_unpaired_surrogate_in_a_key_drops_only_that_key(tmp_path: Path) -> None:
    invalid = event(5.0, args={"\ud800": 1, "External id": 7})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event(1.0), invalid, event(9.0)]}))
    events = load(path).events
    assert len(events) == 3
    assert events.external_id.values.tolist() == [7]
    assert analyze(path, strict=True).source.n_events == 3


def test_events_that_are_centuries_apart_on_many_threads_are_nested_correctly(
    tmp_path: Path,
) -> None:
    far = [event(1e14 * n, 50.0, tid=t) for n in range(20) for t in range(60)]
    inner = [event(1e14 * n + 10.0, 5.0, tid=t) for n in range(20) for t in range(60)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": far + inner}))
    events = load(path).events
    tree = call_tree(events)
    short = events.dur_ns == 5_000
    assert len(events) == 2400
    assert set(tree.depth[short].tolist()) == {1}
    assert set(tree.depth[~short].tolist()) == {0}
    assert analyze(path, strict=True).source.n_events == 2400


def test_floats_among_decimals_are_converted() -> None:
    assert to_ns([Decimal("1.5"), 2.5, 3]).tolist() == [1_500, 2_500, 3_000]
