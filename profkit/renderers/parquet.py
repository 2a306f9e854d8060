"""The recording's own rows as Parquet, for data frames and databases; and the report's tables.

Of a trace there are ``events`` and ``memory``, of an allocator's snapshot ``blocks`` and
``history``, of a watched program ``looks``, and of all of them the tables that the CSV format has.
Times are whole nanoseconds from the trace's start; a column's unit is in its field's metadata. What
is not known is null. Events, blocks and allocations have the user's line beside them where one is
known.

Needs pyarrow, which the extra ``parquet`` brings.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.engine.context import Context
from profkit.errors import OutputError, UsageError
from profkit.index.host.source import NO_FRAME
from profkit.index.host.steps import NO_STEP
from profkit.index.snapshot.stack_lines import NO_LINE, stack_lines
from profkit.index.trace_memory.live_bytes import device_label
from profkit.model.events import MISSING, Category
from profkit.model.live_memory import MemorySample
from profkit.model.report import Report
from profkit.model.snapshot import NO_STACK, Action, State
from profkit.present import tables as of_reports
from profkit.present.renderer import LoadedRecording, RendererInfo

INFO = RendererInfo(
    name="parquet",
    suffix=".parquet",
    media_type="application/vnd.apache.parquet",
    shows="recording",
    opened_by="pandas.read_parquet",
)

_UNITS: Final = {"ns": b"ns", "us": b"us", "bytes": b"bytes", "share": b"share"}
_BYTES: Final = frozenset({"total_allocated", "total_reserved"})
_SPARSE: Final = (
    "correlation", "external_id", "sequence", "forward_thread", "device", "stream", "n_bytes",
)  # fmt: skip

Columns = Iterator[tuple[str, Any]]
"""Columns of a table: a name, and what pyarrow makes an array of."""


@dataclass(frozen=True)
class Options:
    """Which table is written.

    Attributes:
        table: Its name; empty for the first that there is: ``events``, ``blocks``, ``looks``, or
            ``findings`` of a report alone.
        recording: What the report was made from.
        base: An absolute folder; paths in the report's tables are given relative to it.
    """

    table: str = ""
    recording: LoadedRecording | None = None
    base: str = ""


def render(report: Report, options: Options) -> bytes:
    """A table as Parquet, compressed by Zstandard.

    Args:
        options: Which table.

    Raises:
        OutputError: pyarrow is not installed.
        UsageError: There is no such table.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  (an extra, and slow to import)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise OutputError(
            "Parquet needs a package that is not installed: pyarrow.",
            "pip install 'profkit[parquet]'",
        ) from None
    there = table_names(report, options)
    name = options.table or there[0]
    if name not in there and name not in of_reports.TABLES:
        raise UsageError(f"There is no table {name!r}.", f"There are {', '.join(there)}.")
    maker = _OF_RECORDINGS.get(name)
    if maker is not None and options.recording is not None:
        columns = maker(options.recording.context, pa)
    else:
        columns = _of_report(of_reports.table(report, name, options.base), pa)
    arrays = dict(columns)
    schema = pa.schema(
        [pa.field(key, array.type, metadata=_metadata(key)) for key, array in arrays.items()],
        metadata={b"profkit": report.profkit.encode(), b"table": name.encode()},
    )
    product = io.BytesIO()
    parquet.write_table(pa.table(list(arrays.values()), schema=schema), product, compression="zstd")
    return product.getvalue()


def table_names(report: Report, options: Options) -> tuple[str, ...]:
    """The tables that there are, those of the recording first.

    Args:
        options: What it was made from.
    """
    ctx = options.recording.context if options.recording is not None else Context()
    recorded = {
        "events": ctx.has_trace,
        "memory": len(ctx.trace.memory) > 0,
        "blocks": ctx.snapshot is not None,
        "history": ctx.snapshot is not None and len(ctx.snapshot.history) > 0,
        "looks": ctx.live is not None,
    }
    own = (name for name, is_there in recorded.items() if is_there)
    of_report = (
        name
        for name in of_reports.TABLES
        if name == "findings" or of_reports.table(report, name).rows
    )
    return (*own, *of_report)


def _metadata(column: str) -> Mapping[bytes, bytes]:
    unit = b"bytes" if column in _BYTES else _UNITS.get(column.rpartition("_")[2])
    return {} if unit is None else {b"unit": unit}


def _of_report(table: of_reports.Table, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    for i, column in enumerate(table.columns):
        values = [row[i] for row in table.rows]
        if column.kind == "text":
            values = [_whole(value) if isinstance(value, str) else None for value in values]
        yield column.name, pa.array(values, kinds[column.kind])


def _events(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    events = ctx.events
    rows = np.arange(len(events))
    lanes = events.lanes
    yield "position", pa.array(events.position)
    yield "category", _words([each.name.lower() for each in Category], events.category, pa)
    yield "name", _words(events.names, events.name, pa)
    for key in ("pid", "tid", "process", "thread"):
        yield key, _words([getattr(lane, key) for lane in lanes], events.lane, pa)
    yield "ts_ns", pa.array(events.ts_ns)
    yield "dur_ns", pa.array(events.dur_ns)
    for key in _SPARSE:
        yield key, _known(getattr(events, key).at(rows), pa)
    yield "collective", _words(events.names, events.collective.at(rows), pa, missing=MISSING)
    step = ctx.step_of(rows)
    yield "step", _words(ctx.steps.names, step, pa, missing=NO_STEP)
    source = ctx.source
    for key in ("file", "function"):
        words = [getattr(frame, key) for frame in source.frames]
        yield key, _words(words, source.frame, pa, missing=NO_FRAME)
    lines = np.array([*(frame.line for frame in source.frames), MISSING], dtype=np.int64)
    yield "line", _known(lines[source.frame], pa)
    yield "module", _words(source.modules, source.module, pa, missing=NO_FRAME)


def _memory(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    memory = ctx.trace.memory
    places = np.stack((memory.device_type, memory.device), axis=1)
    kinds, kind = np.unique(places, axis=0, return_inverse=True)
    labels = [device_label(device_type, device) for device_type, device in kinds.tolist()]
    yield "position", pa.array(memory.position)
    yield "ts_ns", pa.array(memory.ts_ns)
    yield "device", _words(labels, kind.ravel(), pa)
    for key in ("pid", "tid"):
        yield key, _words([getattr(lane, key) for lane in ctx.events.lanes], memory.lane, pa)
    yield "n_bytes", pa.array(memory.n_bytes)
    for key in ("address", "total_allocated", "total_reserved"):
        yield key, _known(getattr(memory, key), pa)


def _blocks(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    snapshot = ctx.snapshot
    if snapshot is None:
        return
    blocks = snapshot.blocks
    yield "device", pa.array(snapshot.segments.device[blocks.segment])
    yield "segment", pa.array(blocks.segment)
    for key in ("address", "n_bytes", "requested_bytes"):
        yield key, _known(getattr(blocks, key), pa)
    yield "state", _words([each.name.lower() for each in State], blocks.state, pa)
    yield from _lines(ctx, blocks.stack, pa)


def _history(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    snapshot = ctx.snapshot
    if snapshot is None:
        return
    history = snapshot.history
    yield "device", pa.array(history.device)
    yield "action", _words([each.name.lower() for each in Action], history.action, pa)
    for key in ("address", "n_bytes", "stream", "time_us"):
        yield key, _known(getattr(history, key), pa)
    yield "device_free_bytes", _known(history.free_bytes.at(np.arange(len(history))), pa)
    yield from _lines(ctx, history.stack, pa)


def _lines(ctx: Context, stack: npt.NDArray[Any], pa: Any) -> Columns:  # noqa: ANN401
    """The number of each stack, and the line of it that its reader can change."""
    if ctx.snapshot is None:
        return
    yield "stack", pa.array(stack, mask=stack == NO_STACK)
    frame, frames = stack_lines(ctx.snapshot.stacks).of(stack), ctx.snapshot.stacks.frames
    for key in ("file", "function"):
        yield key, _words([getattr(each, key) for each in frames], frame, pa, missing=NO_LINE)
    lines = np.array([*(each.line for each in frames), MISSING], dtype=np.int64)
    yield "line", _known(lines[frame], pa)


def _looks(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    looks = ctx.live.samples if ctx.live is not None else ()
    for each in fields(MemorySample):
        values = [getattr(look, each.name) for look in looks]
        if each.name == "tensor_bytes":
            values = [None if value is None else sum(value.values()) for value in values]
        yield each.name, pa.array(values, pa.int64())


def _words(
    words: "tuple[str, ...] | list[str]",
    number: npt.NDArray[Any],
    pa: Any,  # noqa: ANN401  (the module)
    *,
    missing: int | None = None,
) -> Any:  # noqa: ANN401  (an array of pyarrow)
    """A column of words, each stored once.

    Args:
        number: The number of each row's.
        pa: pyarrow.
        missing: The number that stands for none.
    """
    absent = None if missing is None else number == missing
    indices = np.where(absent, 0, number) if absent is not None else number
    return pa.DictionaryArray.from_arrays(
        pa.array(indices.astype(np.int32), mask=absent),
        pa.array([_whole(word) for word in words], pa.string()),
    )


def _known(values: npt.NDArray[Any], pa: Any) -> Any:  # noqa: ANN401  (an array of pyarrow)
    return pa.array(values, mask=values == MISSING)


def _whole(text: str) -> str:
    """A text that is valid Unicode: paths may hold bytes that are not."""
    return text.encode("utf-8", "backslashreplace").decode()


_OF_RECORDINGS: Final[dict[str, Callable[[Context, Any], Columns]]] = {
    "events": _events,
    "memory": _memory,
    "blocks": _blocks,
    "history": _history,
    "looks": _looks,
}
