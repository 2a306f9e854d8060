"""The end of the window of a muted recording, in the text of each version of torch."""

import json
from pathlib import Path

import pytest

from profkit.capture.recording.recorded_window import end_window_at

NEW = """{"baseTimeNanoseconds": 1000000, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5.5, "dur": 2.0, "args": {"a": 1}},
  {
    "ph": "X",
    "cat": "Trace",
    "name": "PyTorch Profiler (0)",
    "pid": "Spans",
    "ts": 4.000,
    "dur": 1000.000
    ,
    "args": {"Op count": 0}
  },
  {
    "ph": "i",
    "s": "g",
    "name": "Record Window End",
    "ts": 1004.000
  }
]}"""
OLD = """{"baseTimeNanoseconds": 1000000, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5.5, "dur": 2.0, "args": {"a": 1}},
  {
    "ph": "X", "cat": "Trace", "ts": 4.000, "dur": 1000.000,
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {"Op count": 0}
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 1004.000
  }
]}"""


@pytest.mark.parametrize("text", [NEW, OLD], ids=["torch 2.13", "torch 2.9"])
def test_the_window_ends_where_nothing_was_collected_any_more(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    end_window_at(path, 1_000_000 + 104_000)
    operator, span, end = json.loads(path.read_text())["traceEvents"]
    assert (operator["ts"], operator["dur"]) == (5.5, 2.0)
    assert (span["ts"], span["dur"]) == (4.0, 100.0)
    assert end["ts"] == 104.0
