"""Reads the key ``profkit`` of a trace, which is input like any other.

Each part is checked once, here: its types, that numbers fit into 64 bits and are plausible, that
indices are within the lists that they refer to. A part that is not valid is dropped, and the others
are used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, fields
from typing import Any, Final, get_type_hints

import msgspec

from profkit.model.capture_info import (
    CaptureCost,
    CaptureInfo,
    CodePlace,
    Compiled,
    Compiles,
    CpuTime,
    DeviceMismatch,
    GraphBreak,
    HostThreads,
    LoaderWorkers,
    OpLines,
    SampledFunction,
    SampledTime,
)
from profkit.readers.kineto.invalid_times import MAX_NS
from profkit.readers.kineto.split import UNREADABLE

_MAX_INT: Final = (1 << 63) - 1
_MAX_LINE: Final = (1 << 31) - 1
_MAX_THREADS: Final = 1 << 20
_MAX_RATIO: Final = 1e6
"""A recording that took a million times as long would not have ended."""
_HINTS: Final = get_type_hints(CaptureInfo)


def read_capture(raw: bytes) -> tuple[CaptureInfo | None, tuple[str, ...]]:
    """Read the value that profkit adds to a trace.

    Args:
        raw: The value of the key ``profkit`` as JSON; ``null`` if there is none.

    Returns:
        The valid parts, and the names of the parts that were dropped. None if these include a part
        without a default, or all.
    """
    try:
        written = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | None)
    except UNREADABLE:
        return None, ("profkit",)
    if written is None:
        return None, ()

    parts: dict[str, Any] = {}
    dropped: list[str] = []
    for field in fields(CaptureInfo):
        if field.name in written:
            try:
                parts[field.name] = _decode_part(field.name, written[field.name])
            except (*UNREADABLE, ValueError):
                dropped.append(field.name)

    if not all(field.name in parts for field in fields(CaptureInfo) if _is_required(field)):
        return None, ("profkit",)
    return CaptureInfo(**parts), tuple(dropped)


def is_valid_capture(capture: CaptureInfo) -> bool:
    """Return whether each part is valid, as when it is read from a trace."""
    return all(_is_valid(getattr(capture, field.name)) for field in fields(CaptureInfo))


def _is_required(field: "Field[Any]") -> bool:
    return field.default is NO_DEFAULT and field.default_factory is NO_DEFAULT


def _decode_part(name: str, raw: msgspec.Raw) -> Any:  # noqa: ANN401  (each part has its own type)
    """Decode a part of the metadata.

    Raises:
        ValueError: It is not valid.
    """
    value = msgspec.json.decode(raw, type=_HINTS[name], strict=False)
    if not _is_valid(value):
        raise ValueError(name)
    return value


def _is_valid(value: object) -> bool:
    """Return whether a part is valid: by the check of its type, or as a number of 64 bits."""
    check = _CHECKS.get(type(value))
    if check is not None:
        return check(value)
    return not isinstance(value, int) or abs(value) <= _MAX_INT


def _is_valid_cost(cost: CaptureCost) -> bool:
    figures = (cost.start_ns, cost.stop_ns, cost.write_ns, cost.n_events)
    ratio = cost.overhead_ratio
    return all(figure is None or 0 <= figure <= MAX_NS for figure in figures) and (
        ratio is None or (math.isfinite(ratio) and abs(ratio) <= _MAX_RATIO)
    )


def _is_valid_cpu(cpu: CpuTime) -> bool:
    times_ns = (cpu.window_ns, cpu.thread_ns, cpu.process_ns, cpu.delayed_ns, cpu.children_ns)
    threads_ns = cpu.other_threads_ns or ()
    return all(ns is None or 0 <= ns <= MAX_NS for ns in (*times_ns, *threads_ns))


def _are_valid_threads(threads: HostThreads) -> bool:
    # A loader may have no workers, but a process has a core, a thread and a rank.
    counts = (threads.n_cores, threads.n_threads, threads.n_ranks, threads.n_workers + 1)
    return all(0 < count <= _MAX_THREADS for count in counts)


def _are_valid_lines(lines: OpLines) -> bool:
    """Return whether the columns are of one length, and all indices within their lists.

    A parent comes before its children, as profkit writes them, so that there are no cycles.
    """
    n_entries, n_frames = len(lines.name), len(lines.frames)
    columns = (lines.parent, lines.thread, lines.external_id, lines.frame, lines.module)

    return (
        all(len(column) == n_entries for column in columns)
        and _are_within(lines.name, 0, len(lines.names))
        and _are_within(lines.frame, -1, n_frames)
        and _are_within(lines.module, -1, len(lines.modules))
        and _are_within(lines.in_library, 0, n_entries)
        and _are_within(lines.thread, -_MAX_INT, _MAX_INT)
        and _are_within(lines.external_id, -1, _MAX_INT)
        and all(-1 <= parent < entry for entry, parent in enumerate(lines.parent))
        and all(0 <= line <= _MAX_LINE for _, line, _, _ in lines.frames)
        and len(lines.first_lines) in {0, n_frames}
        and _are_within(lines.first_lines, 0, _MAX_LINE + 1)
    )


def _are_within(numbers: Sequence[int], first: int, end: int) -> bool:
    """Return whether all numbers are at least ``first`` and less than ``end``."""
    return not numbers or (first <= min(numbers) and max(numbers) < end)


def _are_valid_compiles(compiles: Compiles) -> bool:
    return (
        0 <= compiles.n_left_out <= _MAX_INT
        and all(map(_is_valid_compiled, compiles.compiled))
        and all(map(_is_valid_break, compiles.breaks))
    )


def _is_valid_compiled(graph: Compiled) -> bool:
    return (
        _has_line(graph.code)
        and (graph.caller is None or _has_line(graph.caller))
        and (graph.start_ns is None or 0 <= graph.start_ns <= _MAX_INT)
        and (graph.dur_ns is None or 0 <= graph.dur_ns <= MAX_NS)
        and (graph.n_ops is None or 0 <= graph.n_ops <= _MAX_INT)
    )


def _is_valid_break(graph_break: GraphBreak) -> bool:
    return (
        all(map(_has_line, graph_break.stack))
        and -1 <= graph_break.user < len(graph_break.stack)
        and 0 < graph_break.n <= _MAX_INT
    )


def _is_valid_mismatch(mismatch: DeviceMismatch) -> bool:
    sizes = [size for tensor in mismatch.tensors for size in tensor.shape]
    return _has_line(mismatch.place) and _are_within(sizes, 0, _MAX_INT)


def _is_valid_sampled(sampled: SampledTime) -> bool:
    """Return whether the functions' times are within the total, and their waits within them."""
    functions = sampled.functions
    return (
        0 < sampled.interval_ns <= MAX_NS
        and 0 < sampled.n_samples <= _MAX_INT
        and 0 < sum(function.ns for function in functions) <= sampled.running_ns <= MAX_NS
        and all(map(_is_valid_function, functions))
        and 0 <= sampled.n_steps <= _MAX_INT
        and 0 <= sampled.steps_ns <= MAX_NS
        and (sampled.n_steps > 0) == (sampled.steps_ns > 0)
    )


def _are_valid_workers(workers: LoaderWorkers) -> bool:
    """Return whether the workers' time for batches is within all of it."""
    functions_ns = sum(function.ns for function in workers.functions)
    return (
        0 < workers.n_workers <= _MAX_THREADS
        and 0 < workers.n_samples <= _MAX_INT
        and 0 <= workers.fetching_ns <= workers.sampled_ns <= MAX_NS
        and functions_ns <= MAX_NS
        and all(map(_is_valid_function, workers.functions))
    )


def _is_valid_function(function: SampledFunction) -> bool:
    return (
        _has_line(function.place)
        and 0 < function.n <= _MAX_INT
        and 0 <= function.waiting_ns <= function.ns
    )


def _has_line(place: CodePlace) -> bool:
    return 0 <= place[1] <= _MAX_LINE


_CHECKS: Final[Mapping[type, Callable[[Any], bool]]] = {
    CaptureCost: _is_valid_cost,
    CpuTime: _is_valid_cpu,
    DeviceMismatch: _is_valid_mismatch,
    HostThreads: _are_valid_threads,
    OpLines: _are_valid_lines,
    LoaderWorkers: _are_valid_workers,
    SampledTime: _is_valid_sampled,
    Compiles: _are_valid_compiles,
}
