"""Traces that tests write and read."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profkit.engine.context import Context
from profkit.model.trace import Trace
from profkit.readers.open import load
from profkit.testing import TraceBuilder


def load_trace(path: str | os.PathLike[str], *, limit_bytes: int | None = None) -> Trace:
    """Load a file that is a trace."""
    loaded = load(path, limit_bytes=limit_bytes)
    assert isinstance(loaded, Trace)
    return loaded


def load_events(folder: Path, events: Sequence[object]) -> Trace:
    """Write events into a trace of a folder, and load it."""
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load_trace(path)


def op_event(ts: object = 1.0, dur: object = 2.0, **more: object) -> dict[str, Any]:
    """Return the event of an operator; by keyword, its other keys."""
    place = {"pid": 1, "tid": 2, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": "cpu_op", "name": "op", **place, **more}


def read_context(builder: TraceBuilder, folder: Path) -> Context:
    """Write a trace into a folder, and return what rules read of it."""
    return Context(load_trace(builder.write(folder / "t.json")))
