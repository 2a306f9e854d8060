"""Reads pickles: snapshots of the CUDA caching allocator, and dumps of the FlightRecorder."""

import contextlib
import pickle
import select
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from profkit.errors import DamagedFileError, LoadError, NotATraceError, RefusedPickleError
from profkit.model.flight_record import FlightRecord
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.flight_recorder import rank_in
from profkit.readers.progress import OnProgress, Stages
from profkit.readers.snapshot import worker_process
from profkit.readers.snapshot.worker import WorkerResult
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_REPORT_EVERY_S: Final = 0.1


def read_pickle(
    place: Place, limit_bytes: int | None = None, on_progress: OnProgress | None = None
) -> MemorySnapshot | FlightRecord:
    """Read a pickle of ``torch.cuda.memory._dump_snapshot`` or the FlightRecorder.

    No code in it is run.

    Arguments are as for ``readers.open.load``.

    Raises:
        RefusedPickleError: The pickle names code, which was not run.
        LoadError: It cannot be read, or is neither.
    """
    stages = Stages()
    limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes

    # A command starts to unpickle its file before it imports the analysis.
    early = worker_process.take_early(place, limit) if isinstance(place, Path) else None
    if early is not None:
        n_bytes, truncated = early.n_bytes, False
        with contextlib.closing(early), early.process:
            if on_progress is not None:
                _report_progress(early, on_progress)
            result = _receive(early.process, stages)
    else:
        with open_plain(place, stages, on_progress) as stream:
            chunks = Chunks(stream, limit, stages)
            result = _send_to_worker(chunks, stages)
            n_bytes, truncated = chunks.n_bytes, chunks.truncated

    recording = None if result is None else result.recording
    if result is None or recording is None:
        raise _load_error(result, str(place), truncated=truncated)
    if isinstance(recording, FlightRecord):
        return replace(recording, path=str(place), rank=rank_in(str(place)))
    stages_ns = {**stages.ns, **result.stages_ns}
    notes = replace(recording.notes, uncompressed_bytes=n_bytes, stages_ns=stages_ns)
    return replace(recording, path=str(place), notes=notes)


def _send_to_worker(chunks: Chunks, stages: Stages) -> WorkerResult | None:
    """Unpickle bytes that are read here in a worker process; None if the process died."""
    with worker_process.start() as worker:
        if worker.stdin is None:
            return None
        try:
            with stages.stage("send"):
                _send(worker.stdin, chunks)
        except BaseException:
            worker.kill()
            raise
        return _receive(worker, stages)


def _report_progress(early: worker_process.EarlyWorker, on_progress: OnProgress) -> None:
    """Report how much of its file a process has read, until it writes its result."""
    stdout = early.process.stdout
    try:
        while stdout and not select.select([stdout], [], [], _REPORT_EVERY_S)[0]:
            on_progress(early.n_read(), early.n_bytes)
    except (OSError, ValueError):
        return  # systems whose select does not support pipes: no progress
    except BaseException:
        early.process.kill()
        raise


def _receive(worker: "subprocess.Popen[bytes]", stages: Stages) -> WorkerResult | None:
    """Return the process's result; None if it died."""
    if worker.stdout is None:
        return None
    try:
        with stages.stage("join"):
            result = pickle.load(worker.stdout)  # noqa: S301  (from our own process)
    except (EOFError, pickle.UnpicklingError):
        # The system sends this signal at the limit of processor time.
        if worker.wait() == -getattr(signal, "SIGXCPU", 0):
            reason = "needs more processor time than its size allows"
            return WorkerResult(fault="broken", reason=reason)
        return None
    finally:
        worker.kill()
    return result if isinstance(result, WorkerResult) else None


def _send(stdin: IO[bytes], chunks: Chunks) -> None:
    """Write all chunks, unless the process stops reading because it refuses the pickle."""
    try:
        for chunk in chunks:
            stdin.write(chunk)
    except BrokenPipeError:
        pass
    finally:
        with contextlib.suppress(BrokenPipeError):
            stdin.close()


def _load_error(result: WorkerResult | None, name: str, *, truncated: bool) -> LoadError:
    if result is not None and result.fault == "refused":
        return RefusedPickleError(
            f"{name} is a pickle that names {result.reason}; none of its code was run.",
            "Snapshots and FlightRecorder dumps are plain data: do not trust this file.",
        )

    if result is not None and result.fault == "other":
        message = f"{name} is a pickle, but not a memory snapshot or a FlightRecorder dump."
        hint = "profkit reads what torch.cuda.memory._dump_snapshot and the FlightRecorder wrote."
        return NotATraceError(message, hint)

    if truncated:
        reason = "is truncated"
    else:
        reason = "crashed the process that read it" if result is None else result.reason
    hint = "Record the snapshot again, or copy the file again."
    return DamagedFileError(f"{name} {reason}.", hint)
