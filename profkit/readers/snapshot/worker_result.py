"""What becomes of a pickle in the process that unpickles it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from profkit.readers.snapshot.columns import Columns, columns_of, is_snapshot
from profkit.readers.snapshot.restricted_unpickler import Broken, Refused, plain_data


@dataclass
class WorkerResult:
    """What became of a pickle.

    Attributes:
        columns: What it holds, or None.
        fault: Why there is nothing: it names code, it is broken, or it is no snapshot.
        said: What it names, or what is wrong with it.
    """

    columns: Columns | None = None
    fault: Literal["", "refused", "broken", "other"] = ""
    said: str = ""


def answer(raw: BinaryIO, allow: Callable[[int], None]) -> WorkerResult:
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
        return WorkerResult(fault="refused", said=str(error))
    except Broken as error:
        return WorkerResult(fault="broken", said=str(error))
    except MemoryError:
        return WorkerResult(fault="broken", said="holds more than its size allows")
    except RecursionError:
        return WorkerResult(fault="broken", said="is nested too deeply")
    columns.stages_ns["unpickle"] = decoded - began
    columns.stages_ns["columns"] = time.perf_counter_ns() - decoded
    return WorkerResult(columns)
