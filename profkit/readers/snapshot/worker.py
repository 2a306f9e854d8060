"""Unpickles a recording in a process of its own: reads stdin, writes a :class:`WorkerResult`."""

import gc
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any, BinaryIO, Literal

from profkit.dataclass import dataclass
from profkit.model.flight_record import FlightRecord
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.flight_recorder import convert_dump, is_dump, n_rows
from profkit.readers.snapshot.columns import convert_snapshot, is_snapshot
from profkit.readers.snapshot.restricted_unpickler import Broken, ProcessLimits, Refused, load_plain


@dataclass
class WorkerResult:
    """The result of unpickling.

    Attributes:
        recording: A snapshot, or a dump of the FlightRecorder; without its path.
        fault: Why there is no recording: the pickle names code, is broken, or has other data.
        reason: The code that it names, or the way in which it is broken.
        stages_ns: Nanoseconds of each stage.
    """

    recording: MemorySnapshot | FlightRecord | None = None
    fault: Literal["", "refused", "broken", "other"] = ""
    reason: str = ""
    stages_ns: dict[str, int] = field(default_factory=dict)


def unpickle(raw: BinaryIO, allow: Callable[[int], None]) -> WorkerResult:
    """Unpickle a recording; arguments as for ``restricted_unpickler.load_plain``."""
    began = time.perf_counter_ns()
    try:
        data, n_bytes = load_plain(raw, allow)
        decoded = time.perf_counter_ns()
        recording = _convert(data, n_bytes)
        if recording is None:
            return WorkerResult(fault="other")
    except Refused as error:
        return WorkerResult(fault="refused", reason=str(error))
    except Broken as error:
        return WorkerResult(fault="broken", reason=str(error))
    except MemoryError:
        return WorkerResult(fault="broken", reason="needs more memory than its size allows")
    except RecursionError:
        return WorkerResult(fault="broken", reason="is nested too deeply")

    stages_ns = {"unpickle": decoded - began, "columns": time.perf_counter_ns() - decoded}
    return WorkerResult(recording, stages_ns=stages_ns)


def _convert(data: Any, n_bytes: int) -> MemorySnapshot | FlightRecord | None:  # noqa: ANN401
    """Return the recording in plain data; None if it is neither kind.

    Args:
        data: The unpickled data.
        n_bytes: Size of its pickle.
    """
    if is_dump(data):
        if n_rows(data) > n_bytes:
            raise Broken("refers to the same entries repeatedly")
        return convert_dump(data, "")
    return convert_snapshot(data, n_bytes) if is_snapshot(data) else None


def main() -> None:
    """Run the worker process."""
    gc.disable()
    result = unpickle(sys.stdin.buffer, ProcessLimits().allow)
    pickle.dump(result, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # Exit without freeing millions of objects one by one.
    os._exit(0)
