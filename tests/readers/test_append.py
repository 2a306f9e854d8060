"""Events are added to a trace's text: recorded ones stay as written, broken JSON is repaired."""

import json
from pathlib import Path

import pytest

from profkit.errors import NotATraceError
from profkit.readers.kineto.append import with_events
from tests.renderers.trace_viewer import events_of
from tests.traces import load_trace

ONE = b'{"ph":"X","ts":1,"dur":1,"name":"a","pid":1,"tid":1}'
BROKEN = {
    "empty": (b'{"traceEvents":[', 0),
    "array": (b"[" + ONE + b",", 1),
    "windows": (
        b'{"dir":"C:\\Users\\x","traceEvents":[' + ONE.replace(b"a", b"C:\\U", 1)
        + b'],"more":"C:\\T"}', 1,
    ),
    "bytes": (b'\xef\xbb\xbf{"traceEvents":[' + ONE + b"," + ONE[:-1] + b',"args":{"x":NaN}}]}', 2),
    "utf8": (b'{"traceEvents":[' + ONE.replace(b'"a"', b'"\xff"') + b"]}", 1),
    "no events": (b'{"traceEvents":[7,null,' + ONE + b"]}", 3),
    "surrogate": (b"[" + ONE.replace(b'"a"', b'"\\ud800"') + b"]", 1),
    "ours": (b"[" + ONE[:-1] + b',"cat":"profkit"}, ' + ONE + b"]", 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "n_recorded"), BROKEN.values(), ids=BROKEN)
def test_broken_text_becomes_valid_json(text: bytes, n_recorded: int, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    added = b'{"ph":"C","cat":"profkit","name":"x","pid":1,"ts":1,"args":{"n":1}}'
    product = b"".join(with_events(path, lambda _: [added]))
    events = events_of(product)
    assert len(events) == n_recorded + 1
    assert events[-1] == json.loads(added)
    assert [e["ph"] for e in events[:-1]].count("X") == text.count(b'"X"') - text.count(b"profkit")


def test_added_events_are_not_read_as_recorded_ones(tmp_path: Path) -> None:
    path, more = tmp_path / "trace.json", tmp_path / "more.json"
    path.write_bytes(b'{"schemaVersion":1,"traceEvents":[' + ONE + b"," + ONE + b"]}")
    added = [ONE[:-1] + b',"cat":"profkit"}', b'{"ph":"M","cat":"profkit","name":"x","pid":9}']
    more.write_bytes(b"".join(with_events(path, lambda _: added)))
    before, after = load_trace(path), load_trace(more)
    assert after.notes.n_events == before.notes.n_events == 2
    assert after.notes.categories == before.notes.categories
    assert after.events.position.tolist() == [0, 1]
    again = b"".join(with_events(more, lambda _: added))
    assert json.loads(again) == json.loads(more.read_bytes())


def test_the_base_time_of_the_file_is_passed_to_the_callback(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + ONE + b'],"baseTimeNanoseconds":1700000000000000123}')
    bases: list[int] = []

    def added(base_ns: int) -> list[bytes]:
        bases.append(base_ns)
        return []

    assert b"".join(with_events(path, added)) == path.read_bytes()
    assert bases == [1_700_000_000_000_000_123]


def test_other_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"nodes": []}')
    with pytest.raises(NotATraceError):
        b"".join(with_events(path, lambda _: []))
