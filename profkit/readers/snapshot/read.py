"""Read a snapshot of the allocator's memory."""

import contextlib
import pickle
import select
import subprocess
from pathlib import Path
from typing import IO, Final

import numpy as np

from profkit.errors import DamagedFileError, LoadError, NotATraceError, RefusedPickleError
from profkit.model.snapshot import MemorySnapshot, SnapshotNotes, State
from profkit.readers.progress import OnProgress
from profkit.readers.snapshot import worker_process
from profkit.readers.snapshot.columns import Columns
from profkit.readers.snapshot.worker_result import WorkerResult
from profkit.readers.stages import Stages
from profkit.readers.stream import Chunks, Place, default_limit_bytes, open_plain

_TOLD_EVERY_S: Final = 0.1
_AGAIN: Final = "Record the snapshot again, or copy the file again."


def read_snapshot(
    place: Place, limit_bytes: int | None = None, on_progress: OnProgress | None = None
) -> MemorySnapshot:
    """Read a snapshot, without running anything that is in it.

    Args:
        place: What ``torch.cuda.memory._dump_snapshot`` wrote, packed or not.
        limit_bytes: How large it may become when it is unpacked; by default 4 GiB, or 200 times
            its size.
        on_progress: Is told how far the file has been read.

    Raises:
        RefusedPickleError: It names code; nothing of it was run.
        LoadError: It cannot be read, or is no snapshot.
    """
    stages = Stages()
    limit = default_limit_bytes(place) if limit_bytes is None else limit_bytes
    early = worker_process.taken(place, limit) if isinstance(place, Path) else None
    if early is not None:
        n_bytes, truncated = early.n_bytes, False
        with contextlib.closing(early), early.process:
            if on_progress is not None:
                _tell(early, on_progress)
            answer = _answer(early.process, stages)
    else:
        with open_plain(place, stages, on_progress) as stream:
            chunks = Chunks(stream, limit, stages)
            answer = _handed_over(chunks, stages)
            n_bytes, truncated = chunks.n_bytes, chunks.truncated
    if answer is None or answer.columns is None:
        raise _fault(answer, str(place), truncated=truncated)
    return _snapshot(str(place), answer.columns, n_bytes, stages)


def _handed_over(chunks: Chunks, stages: Stages) -> WorkerResult | None:
    """What a process of its own makes of a pickle that is read here; None if it died of it."""
    with worker_process.start() as worker:
        if worker.stdin is None:
            return None
        try:
            with stages.stage("hand over"):
                _feed(worker.stdin, chunks)
        except BaseException:
            worker.kill()
            raise
        return _answer(worker, stages)


def _tell(early: worker_process.Early, on_progress: OnProgress) -> None:
    """Tell how far a process has read its file, until it begins to answer."""
    answering = early.process.stdout
    try:
        while answering and not select.select([answering], [], [], _TOLD_EVERY_S)[0]:
            on_progress(early.n_read(), early.n_bytes)
    except (OSError, ValueError):
        return  # some systems cannot wait for a pipe like this: then nobody is told
    except BaseException:
        early.process.kill()
        raise


def _answer(worker: "subprocess.Popen[bytes]", stages: Stages) -> WorkerResult | None:
    """What the process says; None if it died."""
    if worker.stdout is None:
        return None
    try:
        with stages.stage("join"):
            answer = pickle.load(worker.stdout)  # noqa: S301  (of our own process)
    except (EOFError, pickle.UnpicklingError):
        return None
    finally:
        worker.kill()
    return answer if isinstance(answer, WorkerResult) else None


def _feed(stdin: IO[bytes], chunks: Chunks) -> None:
    """Write all chunks, or as many as are wanted: what refuses a pickle does not read on."""
    try:
        for chunk in chunks:
            stdin.write(chunk)
    except BrokenPipeError:
        pass
    finally:
        with contextlib.suppress(BrokenPipeError):
            stdin.close()


def _fault(answer: WorkerResult | None, name: str, *, truncated: bool) -> LoadError:
    if answer is not None and answer.fault == "refused":
        message = f"{name} is a pickle that names {answer.said}; nothing of it was run."
        return RefusedPickleError(
            message, "Memory snapshots hold only plain data: do not trust it."
        )
    if answer is not None and answer.fault == "other":
        message = f"{name} is a pickle, but no memory snapshot: it has no segments."
        return NotATraceError(message, "profkit reads what torch.cuda.memory._dump_snapshot wrote.")
    said = "is cut off" if truncated else "is more than the process that read it could bear"
    if answer is not None and not truncated:
        said = answer.said
    return DamagedFileError(f"{name} {said}.", _AGAIN)


def _snapshot(path: str, columns: Columns, n_bytes: int, stages: Stages) -> MemorySnapshot:
    devices = np.union1d(columns.segments.device, columns.history.device)
    return MemorySnapshot(
        path=path,
        segments=columns.segments,
        blocks=columns.blocks,
        history=columns.history,
        stacks=columns.stacks,
        pools=columns.pools,
        annotations=columns.annotations,
        settings=columns.settings,
        driver=columns.driver,
        devices=tuple(devices.tolist()),
        notes=SnapshotNotes(
            n_odd_segments=_n_odd_segments(columns),
            n_skipped=columns.n_skipped,
            uncompressed_bytes=n_bytes,
            stages_ns={**stages.ns, **columns.stages_ns},
        ),
    )


def _n_odd_segments(columns: Columns) -> int:
    """Segments whose blocks do not add up to them, or to what they say of themselves."""
    blocks, segments = columns.blocks, columns.segments
    allocated = blocks.state == State.ALLOCATED
    active = allocated | (blocks.state == State.PENDING_FREE)
    odd = np.zeros(len(segments), dtype=np.bool_)
    for of_segment, counted in (
        (segments.total_bytes, np.ones(len(blocks), dtype=np.bool_)),
        (segments.allocated_bytes, allocated),
        (segments.active_bytes, active),
    ):
        sums = np.zeros(len(segments), dtype=np.int64)
        np.add.at(sums, blocks.segment[counted], blocks.n_bytes[counted])
        odd |= sums != of_segment
    return int(odd.sum())
