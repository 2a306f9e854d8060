"""Reads the key ``profkit`` of a trace, which is input like any other.

Each part is checked once, here: its types, that numbers fit into 64 bits and are plausible, that
indices are within what they refer to. A part that does not hold is dropped, and the rest is used.
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
    OpLines,
    SampledTime,
)
from profkit.readers.kineto.invalid_times import MAX_NS
from profkit.readers.kineto.split import UNREADABLE
from profkit.readers.older_layouts import upgrade_capture

_MAX_INT: Final = (1 << 63) - 1
_MAX_LINE: Final = (1 << 31) - 1
_MAX_THREADS: Final = 1 << 20
_MAX_RATIO: Final = 1e6
"""A recording that took a million times as long would not have ended."""
_HINTS: Final = get_type_hints(CaptureInfo)
_COST: Final = "cost"


def read_capture(raw: bytes) -> tuple[CaptureInfo | None, tuple[str, ...]]:
    """Read what profkit recorded beside the events.

    Args:
        raw: The value of the key ``profkit`` as JSON; ``null`` if there is none.

    Returns:
        What holds of it, and the names of the parts that were dropped. None if that includes a part
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
    for each in fields(CaptureInfo):
        if each.name in written:
            try:
                parts[each.name] = _part(each.name, written[each.name])
            except (*UNREADABLE, ValueError):
                dropped.append(each.name)
    if not all(each.name in parts for each in fields(CaptureInfo) if _is_required(each)):
        return None, ("profkit",)
    return CaptureInfo(**parts), tuple(dropped)


def capture_holds(capture: CaptureInfo) -> bool:
    """Whether each part of what was recorded holds, as when it is read from a trace."""
    values = (getattr(capture, each.name) for each in fields(CaptureInfo))
    return all(_CHECKS.get(type(value), _is_int_in_range)(value) for value in values)


def _is_required(field: "Field[Any]") -> bool:
    return field.default is NO_DEFAULT and field.default_factory is NO_DEFAULT


def _part(name: str, raw: msgspec.Raw) -> Any:  # noqa: ANN401  (each part has its own type)
    """One part of the metadata.

    Raises:
        ValueError: It does not hold.
    """
    if name == _COST:
        older = upgrade_capture({name: msgspec.json.decode(raw, type=dict[str, Any])})
        value = msgspec.convert(older[name], _HINTS[name], strict=False)
    else:
        value = msgspec.json.decode(raw, type=_HINTS[name], strict=False)
    holds = _CHECKS.get(type(value), _is_int_in_range)
    if not holds(value):
        raise ValueError(name)
    return value


def _is_int_in_range(value: object) -> bool:
    """Whether a value is no integer beyond 64 bits."""
    return not isinstance(value, int) or abs(value) <= _MAX_INT


def _cost_holds(cost: CaptureCost) -> bool:
    figures = (cost.start_ns, cost.stop_ns, cost.write_ns, cost.n_events)
    ratio = cost.overhead_ratio
    return all(each is None or 0 <= each <= MAX_NS for each in figures) and (
        ratio is None or (math.isfinite(ratio) and abs(ratio) <= _MAX_RATIO)
    )


def _cpu_holds(cpu: CpuTime) -> bool:
    figures = (cpu.window_ns, cpu.thread_ns, cpu.process_ns, cpu.delayed_ns, cpu.children_ns)
    return all(each is None or 0 <= each <= MAX_NS for each in figures)


def _threads_hold(threads: HostThreads) -> bool:
    figures = (threads.n_cores, threads.n_threads, threads.n_ranks)
    return all(0 < each <= _MAX_THREADS for each in (*figures, threads.n_workers + 1))


def _lines_hold(lines: OpLines) -> bool:
    """Whether the columns are of one length, and their indices within what they refer to.

    A parent comes before its children, as profkit writes them, so that there are no cycles.
    """
    n = len(lines.name)
    columns = (lines.parent, lines.thread, lines.external_id, lines.frame, lines.module)
    return (
        all(len(column) == n for column in columns)
        and _are_within(lines.name, 0, len(lines.names))
        and _are_within(lines.frame, -1, len(lines.frames))
        and _are_within(lines.module, -1, len(lines.modules))
        and _are_within(lines.in_library, 0, n)
        and _are_within(lines.thread, -_MAX_INT, _MAX_INT)
        and _are_within(lines.external_id, -1, _MAX_INT)
        and all(-1 <= parent < entry for entry, parent in enumerate(lines.parent))
        and all(0 <= line <= _MAX_LINE for _, line, _, _ in lines.frames)
    )


def _are_within(numbers: Sequence[int], first: int, end: int) -> bool:
    """Whether all numbers are at least ``first`` and less than ``end``."""
    return not numbers or (first <= min(numbers) and max(numbers) < end)


def _compiles_hold(compiles: Compiles) -> bool:
    return (
        0 <= compiles.n_left_out <= _MAX_INT
        and all(map(_compiled_holds, compiles.compiled))
        and all(map(_break_holds, compiles.breaks))
    )


def _compiled_holds(one: Compiled) -> bool:
    return (
        _has_line(one.code)
        and (one.caller is None or _has_line(one.caller))
        and (one.start_ns is None or 0 <= one.start_ns <= _MAX_INT)
        and (one.dur_ns is None or 0 <= one.dur_ns <= MAX_NS)
        and (one.n_ops is None or 0 <= one.n_ops <= _MAX_INT)
    )


def _break_holds(one: GraphBreak) -> bool:
    return (
        all(map(_has_line, one.stack)) and -1 <= one.user < len(one.stack) and 0 < one.n <= _MAX_INT
    )


def _mismatch_holds(mismatch: DeviceMismatch) -> bool:
    sizes = [size for tensor in mismatch.tensors for size in tensor.shape]
    return _has_line(mismatch.place) and _are_within(sizes, 0, _MAX_INT)


def _sampled_holds(sampled: SampledTime) -> bool:
    """Whether the functions' times and samples are within those of the whole."""
    functions = sampled.functions
    return (
        0 < sampled.interval_ns <= MAX_NS
        and 0 < sampled.n_samples <= _MAX_INT
        and 0 < sum(each.ns for each in functions) <= sampled.running_ns <= MAX_NS
        and all(_has_line(each.place) and each.ns >= 0 for each in functions)
        and all(0 < each.n <= _MAX_INT for each in functions)
        and all(0 <= each.waiting_ns <= each.ns for each in functions)
        and 0 <= sampled.n_steps <= _MAX_INT
        and 0 <= sampled.steps_ns <= MAX_NS
        and (sampled.n_steps > 0) == (sampled.steps_ns > 0)
    )


def _has_line(place: CodePlace) -> bool:
    return 0 <= place[1] <= _MAX_LINE


_CHECKS: Final[Mapping[type, Callable[[Any], bool]]] = {
    CaptureCost: _cost_holds,
    CpuTime: _cpu_holds,
    DeviceMismatch: _mismatch_holds,
    HostThreads: _threads_hold,
    OpLines: _lines_hold,
    SampledTime: _sampled_holds,
    Compiles: _compiles_hold,
}
