"""Reads dumps of torch's FlightRecorder, each of one rank, as JSON or from unpickled data.

Versions 1.0 to 2.10 of the format are known: numbers were called ``seq_id`` and times had
microseconds before torch 2.4, groups had no names before 2.3. The file is input like any other:
entries that are not as torch writes them are left out.

Source: ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` (version 2.10, keys) and
``FlightRecorderDetail.hpp`` (``dump``, ``dump_json``), in earlier versions ``TraceUtils.h``;
``torch/distributed/flight_recorder/components/loader.py`` for the rank in the file's name.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from profkit.errors import DamagedFileError
from profkit.model.flight_record import (
    CallProgress,
    FlightRecord,
    RankFailure,
    RankSteps,
    RecordedCall,
    Sizes,
)
from profkit.model.location import Frame
from profkit.model.process_group import ProcessGroup, ranks_of
from profkit.patterns import regex
from profkit.readers.plain_json import UNREADABLE, decode_plain
from profkit.readers.stream import Place, read_whole

SUFFIX: Final = ".flight.json.gz"
"""Ending of the files that profkit writes."""
ABOUT: Final = "flight_recorder_of"
"""The first key of profkit's files, with the fields of :class:`About`."""
DUMPS: Final = "dumps"
"""The other key of profkit's files: the dumps of torch's recorders, one for each kind of device."""
MAX_BYTES: Final = 128 << 20
"""A hundred times the size of 2,000 calls, which torch writes by default."""

_START: Final = regex(
    rb'\s*\{\s*"(flight_recorder_of|comm_lib_version|entries|nccl_comm_state|nccl_version'
    rb'|pg_config|pg_status|version)"\s*:'
)
_RANK: Final = regex(r"rank[_-]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER: Final = regex(r"(?<!\d)(?P<rank>\d{1,7})$")
_ENDINGS: Final = regex(r"\.(gz|zst|json|pickle|pkl|bin|txt|dump)$", re.IGNORECASE)
_MAX: Final = (1 << 62) - 1
_MAX_RANKS: Final = 1 << 20
_MAX_TEXT: Final = 10_000
_MAX_TENSORS: Final = 100_000
_MAX_DIMENSIONS: Final = 64
T = TypeVar("T")
_PROGRESS: Final[tuple[CallProgress, ...]] = ("scheduled", "started", "completed")


class About(msgspec.Struct):
    """The facts that profkit adds to a dump.

    Attributes:
        rank: The rank that wrote the dump.
        world_size: Number of ranks.
        host: The machine's name.
        pid: The process.
        written_ns: Nanoseconds since 1970 when the dump was written.
        is_end: Whether the program had ended.
        stopped_by: The exception or signal that ended it, or empty.
        groups: The ranks of each process group by name.
        steps: The columns of :class:`~profkit.model.flight_record.RankSteps`, or empty.
        failure: Why the program ended early, or None.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    written_ns: int
    is_end: bool = False
    stopped_by: str = ""
    groups: dict[str, list[int]] = {}
    steps: dict[str, list[int]] = {}
    failure: RankFailure | None = None


def may_be_dump(start: bytes) -> bool:
    """Return whether decompressed bytes may be the start of a dump as JSON."""
    return _START.match(start) is not None


def is_dump(data: object) -> bool:
    """Return whether plain data has the shape of a dump."""
    if type(data) is list:  # torch 2.1 and 2.2
        return any(map(_is_entry, data[:10]))
    if type(data) is not dict or "segments" in data:
        return False
    if type(data.get(ABOUT)) is dict:
        return type(data.get(DUMPS)) is list

    # A dump without calls is recognized by its other keys.
    entries = data.get("entries")
    if type(entries) is list and entries:
        return any(map(_is_entry, entries[:10]))
    return type(data.get("pg_config")) is dict and "version" in data


def n_rows(data: Any) -> int:  # noqa: ANN401  (plain data)
    """Count the calls, frames and tensors in data for which :func:`is_dump` is true."""
    keys = ("frames", "input_sizes", "output_sizes")
    entries = [entry for entry in _list_entries(data) if type(entry) is dict]
    parts = (entry.get(key) for entry in entries for key in keys)
    return len(entries) + sum(len(part) for part in parts if type(part) is list)


def _list_entries(dump: Any) -> list[Any]:  # noqa: ANN401  (plain data)
    entries = dump if type(dump) is list else dump.get("entries")
    return entries if type(entries) is list else []


def read_dump(place: Place, limit_bytes: int | None = None) -> FlightRecord | None:
    """Read a dump as JSON; None if the file has other JSON.

    Raises:
        DamagedFileError: It is incomplete.
        LoadError: It cannot be read, or is larger than ``limit_bytes``, by default
            :data:`MAX_BYTES`.
    """
    text = read_whole(place, MAX_BYTES if limit_bytes is None else limit_bytes)
    try:
        data = decode_plain(text)
    except UNREADABLE as error:
        if b'"profiling_name"' not in text[:4096] and ABOUT.encode() not in text[:64]:
            return None
        message = f"{place} is an incomplete FlightRecorder dump: {error}."
        raise DamagedFileError(message, "Copy it again, or dump it again.") from error
    return convert_dump(data, str(place)) if is_dump(data) else None


def convert_dump(data: Any, path: str) -> FlightRecord:  # noqa: ANN401  (plain data)
    """Convert plain data for which :func:`is_dump` is true to a record.

    Args:
        data: The data.
        path: The file, whose name gives the rank if the data does not.
    """
    about, dumps = None, [data]
    if type(data) is dict and ABOUT in data:
        about, dumps = _about(data[ABOUT]), [dump for dump in data[DUMPS] if is_dump(dump)]

    entries: list[object] = []
    groups: dict[str, ProcessGroup] = {}
    version = ""
    for dump in dumps:
        entries += _list_entries(dump)
        if type(dump) is dict:
            groups |= _configured_groups(dump.get("pg_config"))
            version = _text(dump.get("version")) or version
    groups |= {} if about is None else _added_groups(about)

    # The recorder keeps the latest calls: all are there only if the first has the number 0.
    first_ids = [entry.get("record_id") for entry in entries[:1] if type(entry) is dict]
    shared: dict[Any, Any] = {}
    calls = tuple(call for entry in entries if (call := _convert_call(entry, shared)) is not None)
    return FlightRecord(
        path=path,
        rank=rank_in(path) if about is None else about.rank,
        world_size=_world_size(groups, calls) if about is None else about.world_size,
        host=None if about is None else about.host,
        pid=None if about is None else about.pid,
        written_ns=None if about is None else about.written_ns,
        stopped_by="" if about is None else about.stopped_by,
        is_end=about is not None and about.is_end,
        is_of_window=about is not None and not about.is_end,
        version=version,
        groups=groups,
        calls=tuple(sorted(calls, key=lambda call: call.created_ns or 0)) if about else calls,
        has_all=len(dumps) == 1 and first_ids == [0],
        n_skipped=len(entries) - len(calls),
        steps=None if about is None else _read_steps(about.steps),
        failure=None if about is None else about.failure,
    )


def rank_in(path: str) -> int | None:
    """Return the rank in a file's name: ``nccl_trace_rank_3``, ``fr_rank3.json``; or None."""
    name = re.split(r"[/\\!]", path)[-1]
    while _ENDINGS.search(name):
        name = name.rpartition(".")[0]
    # A number after "rank" is preferred to another number at the end of the name.
    matches = [*_LAST_NUMBER.finditer(name), *_RANK.finditer(name)]
    return int(matches[-1]["rank"]) if matches else None


def _is_entry(entry: object) -> bool:
    return type(entry) is dict and "profiling_name" in entry and "state" in entry


def _about(data: object) -> About | None:
    try:
        about = msgspec.convert(data, About)
    except (msgspec.ValidationError, RecursionError):
        return None
    is_valid = 0 <= about.rank < about.world_size <= _MAX_RANKS and 0 <= about.written_ns <= _MAX
    return about if is_valid else None


def _read_steps(columns: Mapping[str, list[int]]) -> RankSteps | None:
    """Read the times of steps; None without any, or if they are not as profkit writes them."""
    names = ("ends_ns", "own_ns", "delayed_ns", "cpu_ns")
    times = [tuple(columns.get(name, ())) for name in names]
    first = columns.get("first", [])
    is_valid = all(0 <= value <= _MAX for column in (*times, first) for value in column)
    if not is_valid or len(first) != 1 or not times[0] or len({*map(len, times)}) != 1:
        return None
    return RankSteps(first[0], *times)


def _added_groups(about: About) -> dict[str, ProcessGroup]:
    ranks_by_name = {name: ranks_of(ranks) for name, ranks in about.groups.items()}
    return {n: ProcessGroup(n, ranks, len(ranks)) for n, ranks in ranks_by_name.items() if ranks}


def _configured_groups(config: object) -> dict[str, ProcessGroup]:
    """Return the process groups by name. Gloo's entry for all groups has an empty name."""
    groups = {}
    for key, group in config.items() if type(config) is dict else ():
        name = _text(key)
        ranks = ranks_of(group.get("ranks")) if type(group) is dict else None
        if name and ranks:
            groups[name] = ProcessGroup(name, ranks, len(ranks), _text(group.get("desc")))
    return groups


def _world_size(groups: Mapping[str, ProcessGroup], calls: Iterable[RecordedCall]) -> int | None:
    """Return the number of ranks of the default group, if it is known."""
    default = {call.group for call in calls if call.description == "default_pg"}
    default |= {name for name, group in groups.items() if group.description == "default_pg"}
    return max((group.size or 0 for name, group in groups.items() if name in default), default=None)


def _convert_call(data: object, shared: dict[Any, Any]) -> RecordedCall | None:
    """Convert an entry to a call; None if it is not an entry.

    Args:
        data: An entry.
        shared: Texts, shapes and stacks, so that equal ones of a thousand calls are one object.
    """
    if not _is_entry(data):
        return None
    entry: dict[str, Any] = data  # type: ignore[assignment]

    # A group is its name and its description; before torch 2.3 it has only an id.
    group = entry.get("process_group", entry.get("pg_id", ""))
    names = [*group] if type(group) in (list, tuple) else [group]
    is_p2p = entry.get("is_p2p") is True
    seq = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))

    def share(value: T) -> T:
        return shared.setdefault(value, value)  # type: ignore[no-any-return]

    name = share(_text(entry["profiling_name"]))
    is_retired = entry.get("retired") is True
    return RecordedCall(
        name=name,
        group=share(_text(names[0]) if names else ""),
        description=share("" if len(names) < 2 or names[1] == "undefined" else _text(names[1])),  # noqa: PLR2004
        seq=_whole(seq),
        is_p2p=is_p2p,
        created_ns=_time_ns(entry, "time_created"),
        progress=_progress(entry, name, is_retired=is_retired),
        is_retired=is_retired,
        inputs=share(_sizes(entry.get("input_sizes"))),
        outputs=share(_sizes(entry.get("output_sizes"))),
        input_types=share(_texts(entry.get("input_dtypes"))),
        output_types=share(_texts(entry.get("output_dtypes"))),
        frames=share(_frames(entry.get("frames"))),
    )


def _progress(entry: Mapping[str, Any], name: str, *, is_retired: bool) -> CallProgress:
    """Return how far a call is. Gloo only marks calls as retired, failed ones too."""
    if is_retired and name.startswith("gloo:"):
        return "completed"
    state = entry["state"]
    return state if state in _PROGRESS else "scheduled"


def _time_ns(entry: Mapping[str, Any], name: str) -> int | None:
    # Before torch 2.4 times had microseconds.
    ns = _whole(entry.get(f"{name}_ns"))
    us = _whole(entry.get(f"{name}_us"))
    return ns if ns is not None else (us * 1000 if us is not None and us < _MAX // 1000 else None)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX else None


def _text(value: object) -> str:
    return str(value)[:_MAX_TEXT] if type(value) in (str, int) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, value[:_MAX_TENSORS] if type(value) is list else ()))


def _sizes(value: object) -> Sizes:
    shapes = value[:_MAX_TENSORS] if type(value) is list else ()
    return tuple(
        tuple(size for size in shape[:_MAX_DIMENSIONS] if type(size) is int and 0 <= size < 1 << 40)
        for shape in shapes
        if type(shape) is list
    )


def _frames(value: object) -> tuple[Frame, ...]:
    frames = []
    for frame in value[:1000] if type(value) is list else ():
        if type(frame) is dict and type(frame.get("filename")) is str:
            line = _whole(frame.get("line"))
            file, function = _text(frame["filename"]), _text(frame.get("name"))
            frames.append(Frame(file, line if line and line < 1 << 31 else None, function))
    return tuple(frames)
