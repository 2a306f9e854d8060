"""The rows of the recording, and the tables of the report, as Parquet for data frames.

A trace has the tables ``events`` and ``memory``, a CUDA memory snapshot ``blocks`` and ``history``,
a monitored program ``samples``; all of them have the tables of the CSV format as well. Times are
whole nanoseconds from the start of the trace; a field's metadata has its unit; unknown values are
null. Events, blocks and history entries have their source line where it is known.

Needs pyarrow, which the extra ``parquet`` installs.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.errors import OutputError, UsageError
from profkit.index.host.source import NO_FRAME
from profkit.index.host.steps import NO_STEP
from profkit.index.snapshot.stack_lines import NO_LINE, find_stack_lines
from profkit.index.trace_memory.live_bytes import device_label
from profkit.model.events import MISSING, Category, Int32s
from profkit.model.live_memory import MemorySample
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.model.snapshot import NO_STACK, Action, State
from profkit.present.renderer import RecordingOptions, RendererInfo
from profkit.present.tables import TABLES, filled_tables, table
from profkit.present.tables.export import ExportedColumn, ExportedTable
from profkit.readers.kineto.interning import plain_text

INFO = RendererInfo(
    name="parquet",
    suffix=".parquet",
    media_type="application/vnd.apache.parquet",
    shows="recording",
    opened_by="pandas.read_parquet",
)

_BYTES: Final = frozenset({"total_allocated", "total_reserved"})
_SPARSE: Final = (
    "correlation", "external_id", "sequence", "forward_thread", "device", "stream", "n_bytes",
)  # fmt: skip

Columns = Iterator[tuple[str, Any]]
"""Columns of a table: names and pyarrow arrays."""


@dataclass(frozen=True)
class Options(RecordingOptions):
    """Which table to write.

    Attributes:
        table: Its name; empty for the first of :func:`table_names`.
    """

    table: str = ""


def render(report: Report, options: Options) -> bytes:
    """Return a table as Parquet, compressed with Zstandard.

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

    names = table_names(report, options)
    name = options.table or names[0]
    if name not in names and name not in TABLES:
        raise UsageError(f"There is no table {name!r}.", f"The tables are {', '.join(names)}.")

    build_columns = _RECORDING_TABLES.get(name)
    if build_columns is not None and options.recording is not None:
        columns = build_columns(options.recording.context, pa)
    else:
        columns = _convert_table(table(report, name, options.base), pa)

    arrays = dict(columns)
    schema = pa.schema(
        [pa.field(key, array.type, metadata=_metadata(key)) for key, array in arrays.items()],
        metadata={b"profkit": report.profkit.encode(), b"table": name.encode()},
    )
    product = io.BytesIO()
    parquet.write_table(pa.table(list(arrays.values()), schema=schema), product, compression="zstd")
    return product.getvalue()


def table_names(report: Report, options: Options) -> tuple[str, ...]:
    """Return the tables of the recording, then the tables of the report that have rows."""
    ctx = options.recording.context if options.recording is not None else Context()
    recorded = {
        "events": ctx.has_trace,
        "memory": len(ctx.trace.memory) > 0,
        "blocks": ctx.snapshot is not None,
        "history": ctx.snapshot is not None and len(ctx.snapshot.history) > 0,
        "samples": ctx.live is not None,
    }
    of_recording = (name for name, exists in recorded.items() if exists)
    return (*of_recording, *filled_tables(report))


def _metadata(column: str) -> Mapping[bytes, bytes]:
    unit = "bytes" if column in _BYTES else ExportedColumn(column).unit
    return {b"unit": unit.encode()} if unit else {}


def _convert_table(table: ExportedTable, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    for i, column in enumerate(table.columns):
        values = [row[i] for row in table.rows]
        if column.kind == "text":
            values = [plain_text(value) if isinstance(value, str) else None for value in values]
        yield column.name, pa.array(values, kinds[column.kind])


def _build_events(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    events = ctx.events
    rows = np.arange(len(events))
    lanes = events.lanes

    # Names and lanes repeat in millions of rows: a dictionary column has each of them once.
    yield "position", pa.array(events.position)
    yield (
        "category",
        _categorical([category.name.lower() for category in Category], events.category, pa),
    )
    yield "name", _categorical(events.names, events.name, pa)
    for key in ("pid", "tid", "process", "thread"):
        yield key, _categorical([getattr(lane, key) for lane in lanes], events.lane, pa)
    yield "ts_ns", pa.array(events.ts_ns)
    yield "dur_ns", pa.array(events.dur_ns)
    for key in _SPARSE:
        yield key, _nullable(getattr(events, key).at(rows), pa)

    yield "collective", _categorical(events.names, events.collective.at(rows), pa, missing=MISSING)
    step = ctx.step_of(rows)
    yield "step", _categorical(ctx.steps.names, step, pa, missing=NO_STEP)

    source = ctx.source
    yield from _build_places(source.frames, source.frame, NO_FRAME, pa)
    yield "module", _categorical(source.modules, source.module, pa, missing=NO_FRAME)


def _build_memory(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    memory = ctx.trace.memory
    places = np.stack((memory.device_type, memory.device), axis=1)
    kinds, kind = np.unique(places, axis=0, return_inverse=True)
    labels = [device_label(device_type, device) for device_type, device in kinds.tolist()]

    yield "position", pa.array(memory.position)
    yield "ts_ns", pa.array(memory.ts_ns)
    yield "device", _categorical(labels, kind.ravel(), pa)
    for key in ("pid", "tid"):
        yield key, _categorical([getattr(lane, key) for lane in ctx.events.lanes], memory.lane, pa)
    yield "n_bytes", pa.array(memory.n_bytes)
    for key in ("address", "total_allocated", "total_reserved"):
        yield key, _nullable(getattr(memory, key), pa)


def _build_blocks(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    snapshot = ctx.snapshot
    if snapshot is None:
        return

    blocks = snapshot.blocks
    yield "device", pa.array(snapshot.segments.device[blocks.segment])
    yield "segment", pa.array(blocks.segment)
    for key in ("address", "n_bytes", "requested_bytes"):
        yield key, _nullable(getattr(blocks, key), pa)
    yield "state", _categorical([state.name.lower() for state in State], blocks.state, pa)
    yield from _build_lines(ctx, blocks.stack, pa)


def _build_history(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    snapshot = ctx.snapshot
    if snapshot is None:
        return

    history = snapshot.history
    yield "device", pa.array(history.device)
    yield "action", _categorical([action.name.lower() for action in Action], history.action, pa)
    for key in ("address", "n_bytes", "stream", "time_us"):
        yield key, _nullable(getattr(history, key), pa)
    yield "device_free_bytes", _nullable(history.free_bytes.at(np.arange(len(history))), pa)
    yield from _build_lines(ctx, history.stack, pa)


def _build_lines(ctx: Context, stack: npt.NDArray[Any], pa: Any) -> Columns:  # noqa: ANN401
    """Return the index of each stack, and its source line."""
    if ctx.snapshot is None:
        return
    yield "stack", pa.array(stack, mask=stack == NO_STACK)
    frame = find_stack_lines(ctx.snapshot.stacks).of(stack)
    yield from _build_places(ctx.snapshot.stacks.frames, frame, NO_LINE, pa)


def _build_places(frames: Sequence[Frame], index: Int32s, missing: int, pa: Any) -> Columns:  # noqa: ANN401
    """Return file, function and line of each row; the index ``missing`` is -1."""
    for key in ("file", "function"):
        names = [getattr(frame, key) for frame in frames]
        yield key, _categorical(names, index, pa, missing=missing)
    # The index -1 selects the last entry.
    lines = np.array([*(frame.line or MISSING for frame in frames), MISSING], dtype=np.int64)
    yield "line", _nullable(lines[index], pa)


def _build_samples(ctx: Context, pa: Any) -> Columns:  # noqa: ANN401  (the module)
    samples = ctx.live.samples if ctx.live is not None else ()
    for field in fields(MemorySample):
        values = [getattr(sample, field.name) for sample in samples]
        # The bytes by device: a column has their sum.
        if field.name == "tensor_bytes":
            values = [None if value is None else sum(value.values()) for value in values]
        yield field.name, pa.array(values, pa.int64())


def _categorical(
    values: "tuple[str, ...] | list[str]",
    index: npt.NDArray[Any],
    pa: Any,  # noqa: ANN401  (the module)
    *,
    missing: int | None = None,
) -> Any:  # noqa: ANN401  (an array of pyarrow)
    """Return a column of texts by a dictionary; rows without a value have the index ``missing``."""
    # Frames share files. pyarrow writes a dictionary with repetitions as if there were none, and
    # not always with the same bytes. The last number is for rows without a value.
    numbers: dict[str, int] = {}
    distinct = [numbers.setdefault(plain_text(value), len(numbers)) for value in values]
    absent = None if missing is None else index == missing
    row_numbers = np.array([*distinct, 0], dtype=np.int32)[
        index if absent is None else np.where(absent, -1, index)
    ]

    return pa.DictionaryArray.from_arrays(
        pa.array(row_numbers, mask=absent), pa.array(list(numbers), pa.string())
    )


def _nullable(values: npt.NDArray[Any], pa: Any) -> Any:  # noqa: ANN401  (an array of pyarrow)
    return pa.array(values, mask=values == MISSING)


_RECORDING_TABLES: Final[dict[str, Callable[[Context, Any], Columns]]] = {
    "events": _build_events,
    "memory": _build_memory,
    "blocks": _build_blocks,
    "history": _build_history,
    "samples": _build_samples,
}
