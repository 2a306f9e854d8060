"""Unpickles a snapshot in a process of its own: reads stdin, writes a :class:`WorkerResult`."""

import gc
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from profkit.readers.snapshot.columns import Columns, columns_of, is_snapshot
from profkit.readers.snapshot.restricted_unpickler import Broken, MemoryLimit, Refused, plain_data


@dataclass
class WorkerResult:
    """The result of unpickling.

    Attributes:
        columns: The snapshot, or None.
        fault: Why there is none: the pickle names code, is broken, or is not a snapshot.
        reason: What it names, or what is wrong with it.
    """

    columns: Columns | None = None
    fault: Literal["", "refused", "broken", "other"] = ""
    reason: str = ""


def unpickled(raw: BinaryIO, allow: Callable[[int], None]) -> WorkerResult:
    """Unpickle a snapshot.

    Args:
        raw: The pickle's bytes.
        allow: As for :func:`~profkit.readers.snapshot.restricted_unpickler.plain_data`.
    """
    began = time.perf_counter_ns()
    try:
        data, n_bytes = plain_data(raw, allow)
        decoded = time.perf_counter_ns()
        if not is_snapshot(data):
            return WorkerResult(fault="other")
        columns = columns_of(data, n_bytes)
    except Refused as error:
        return WorkerResult(fault="refused", reason=str(error))
    except Broken as error:
        return WorkerResult(fault="broken", reason=str(error))
    except MemoryError:
        return WorkerResult(fault="broken", reason="needs more memory than its size allows")
    except RecursionError:
        return WorkerResult(fault="broken", reason="is nested too deeply")
    columns.stages_ns["unpickle"] = decoded - began
    columns.stages_ns["columns"] = time.perf_counter_ns() - decoded
    return WorkerResult(columns)


def main() -> None:
    """Run the worker process."""
    gc.disable()
    result = unpickled(sys.stdin.buffer, MemoryLimit().allow)
    pickle.dump(result, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()
    # Exit without freeing millions of objects one by one.
    os._exit(0)
