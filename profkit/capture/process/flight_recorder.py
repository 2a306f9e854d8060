"""Writes what torch's FlightRecorder kept of this rank's collectives.

torch keeps the last 2,000 calls of collectives of each process, unless ``TORCH_FR_BUFFER_SIZE`` is
0. They tell which process group, which number in it, and which sizes each call had, which traces of
gloo do not, and what a rank waits for that hangs.

Measured with torch 2.13 on 2,000 calls: 30 ms of processor time without Python stacks; with stacks,
which need torch's symbolizer, 1.2 s once. Stacks are therefore written only when a program ends by
an error or a signal.

Source: ``torch/csrc/distributed/c10d/init.cpp`` for the functions; those with ``nccl`` exist only
in builds with NCCL, whose recorder is another one than that of gloo.
"""

import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from isal import igzip

from profkit.capture.process import console, environment, files
from profkit.model.flight_record import RankFailure
from profkit.readers.flight_recorder import ABOUT, DUMPS, SUFFIX, About

_PLAIN: Final = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_WITH_STACKS: Final = ("_dump_nccl_trace", "_dump_fr_trace")


def write(
    trace: str | Path,
    *,
    is_end: bool = False,
    stopped_by: str = "",
    steps: dict[str, list[int]] | None = None,
    failure: RankFailure | None = None,
) -> str | None:
    """Write this rank's dump beside a trace, if the program has called collectives or has steps.

    Sends and receives of gloo are in no dump: of a pipeline it has the times of the steps alone.

    Never raises: an error becomes one warning.

    Args:
        trace: The trace file, which need not exist.
        is_end: Whether the program has ended, so that this rank calls no more.
        stopped_by: The exception or signal that ended it, or empty.
        steps: The times of its steps, as :class:`.step_times.StepLog` lists them, or None.
        failure: Why the program has ended early, or None.

    Returns:
        The file, or None.
    """
    try:
        rank, world_size = environment.ranks()
        if rank is None or world_size is None or world_size < 2:  # noqa: PLR2004  (alone)
            return None
        dumps = list(_read_dumps(with_stacks=is_end and bool(stopped_by)))
        has_steps = bool(steps and steps["ends_ns"])
        if not dumps and failure is None and not has_steps:
            return None

        target = files.beside(trace, SUFFIX)
        about = msgspec.json.encode(
            About(
                rank=rank,
                world_size=world_size,
                host=socket.gethostname(),
                pid=os.getpid(),
                written_ns=time.time_ns(),
                is_end=is_end,
                stopped_by=stopped_by if is_end else "",
                groups=_read_groups(),
                steps=steps or {},
                failure=failure,
            )
        )
        _write_text(target, about, dumps)
    except Exception as error:  # noqa: BLE001  (no error of ours may end the user's program)
        console.warn("the FlightRecorder's dump could not be written.", error)
        return None
    return str(target)


def write_death(folder: Path, rank: int, world_size: int, host: str, pid: int) -> str | None:
    """Write that a rank is gone and has not said why, for the report on its job.

    Returns:
        The file, or None if it cannot be written.
    """
    now_ns = time.time_ns()
    what = "ended without a Python exception: killed, crashed in native code, or os._exit"
    failure = RankFailure(now_ns, what, has_died=True)
    about = About(rank, world_size, host, pid, now_ns, is_end=True, failure=failure)

    target = folder / f"{files.safe_name(host)}_{pid}_rank{rank}.{now_ns}{SUFFIX}"
    with contextlib.suppress(OSError):
        _write_text(target, msgspec.json.encode(about), [])
        return str(target)
    return None


def _write_text(target: Path, about: bytes, dumps: list[bytes]) -> None:
    # The dumps are JSON already, and large: they are not parsed again.
    text = b'{"%s":%s,"%s":[%s]}' % (ABOUT.encode(), about, DUMPS.encode(), b",".join(dumps))
    with files.atomic_path(target) as partial:
        partial.write_bytes(igzip.compress(text))


def _read_dumps(*, with_stacks: bool) -> Iterator[bytes]:
    """Yield the dump of each recorder that has calls, as JSON."""
    functions = _find_functions()
    for name in _WITH_STACKS if with_stacks else _PLAIN:
        dump = getattr(functions, name, None)
        if dump is None:
            continue

        text: Any = dump()
        if with_stacks:
            # What torch itself has just pickled: numbers, text, lists and dictionaries.
            text = msgspec.json.encode(pickle.loads(text))  # noqa: S301
        plain: bytes = text if isinstance(text, bytes) else str(text).encode()
        if b'"entries":[{' in plain:
            yield plain


def _find_functions() -> object:
    """Return torch's module of the recorders' functions; None without process groups."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return sys.modules.get("torch._C._distributed_c10d")


def _read_groups() -> dict[str, list[int]]:
    """Return the ranks of each process group by name.

    Source: ``torch/distributed/distributed_c10d.py`` (``_World.pg_names``, ``pg_group_ranks``).
    """
    ranks_of_group: dict[str, list[int]] = {}
    # Programs without torch.distributed may be ranks of a job, too.
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        world = sys.modules["torch.distributed"].distributed_c10d._world  # noqa: SLF001
        for group, ranks in dict(world.pg_group_ranks).items():
            # A group that this rank is no member of has a placeholder, without a name.
            name = world.pg_names.get(group)
            if name is not None:
                ranks_of_group[str(name)] = sorted(int(rank) for rank in ranks)
    return ranks_of_group
