"""A trace's text with more events: its own as they are written, what is broken repaired."""

import json
from pathlib import Path

import pytest

from profkit.errors import NotATraceError
from profkit.readers.kineto.append import with_events
from profkit.readers.open import load_trace
from tests.renderers.trace_viewer import events_of

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


@pytest.mark.parametrize(("text", "kept"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_becomes_whole_json(text: bytes, kept: int, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    added = b'{"ph":"C","cat":"profkit","name":"x","pid":1,"ts":1,"args":{"n":1}}'
    product = b"".join(with_events(path, lambda _: [added]))
    events = events_of(product)
    assert len(events) == kept + 1
    assert events[-1] == json.loads(added)
    assert [e["ph"] for e in events[:-1]].count("X") == text.count(b'"X"') - text.count(b"profkit")


def test_what_was_added_is_no_part_of_the_recording(tmp_path: Path) -> None:
    path, more = tmp_path / "trace.json", tmp_path / "more.json"
    path.write_bytes(b'{"traceEvents":[' + ONE + b"," + ONE + b"]}")
    added = [ONE[:-1] + b',"cat":"profkit"}', b'{"ph":"M","cat":"profkit","name":"x","pid":9}']
    more.write_bytes(b"".join(with_events(path, lambda _: added)))
    before, after = load_trace(path), load_trace(more)
    assert after.notes.n_events == before.notes.n_events == 2
    assert after.notes.categories == before.notes.categories
    assert after.events.position.tolist() == [0, 1]
    again = b"".join(with_events(more, lambda _: added))
    assert json.loads(again) == json.loads(more.read_bytes())


def test_whoever_adds_is_told_the_clock_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[' + ONE + b'],"baseTimeNanoseconds":1700000000000000123}')
    told: list[int] = []

    def added(base_ns: int) -> list[bytes]:
        told.append(base_ns)
        return []

    assert b"".join(with_events(path, added)) == path.read_bytes()
    assert told == [1_700_000_000_000_000_123]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"nodes": []}')
    with pytest.raises(NotATraceError):
        b"".join(with_events(path, lambda _: []))
