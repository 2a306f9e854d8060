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
from profkit.readers.flight_recorder import flight_record, is_dump, n_rows
from profkit.readers.snapshot.columns import is_snapshot, snapshot_of
from profkit.readers.snapshot.restricted_unpickler import Broken, ProcessLimits, Refused, plain_data


@dataclass
class WorkerResult:
    """The result of unpickling.

    Attributes:
        recording: A snapshot, or a dump of the FlightRecorder; without its path.
        fault: Why there is none: the pickle names code, is broken, or is neither.
        reason: What it names, or what is wrong with it.
    """

    recording: MemorySnapshot | FlightRecord | None = None
    fault: Literal["", "refused", "broken", "other"] = ""
    reason: str = ""
    stages_ns: dict[str, int] = field(default_factory=dict)


def unpickled(raw: BinaryIO, allow: Callable[[int], None]) -> WorkerResult:
    """Unpickle a recording; arguments as for ``restricted_unpickler.plain_data``."""
    began = time.perf_counter_ns()
    try:
        data, n_bytes = plain_data(raw, allow)
        decoded = time.perf_counter_ns()
        recording = _recording(data, n_bytes)
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


def _recording(data: Any, n_bytes: int) -> MemorySnapshot | FlightRecord | None:  # noqa: ANN401
    """The recording in plain data.

    Args:
        n_bytes: Size of its pickle.
    """
    if is_dump(data):
        if n_rows(data) > n_bytes:
            raise Broken("refers to the same entries repeatedly")
        return flight_record(data, "")
    return snapshot_of(data, n_bytes) if is_snapshot(data) else None


def main() -> None:
    """Run the worker process."""
    gc.disable()
    result = unpickled(sys.stdin.buffer, ProcessLimits().allow)
    pickle.dump(result, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # Exit without freeing millions of objects one by one.
    os._exit(0)
