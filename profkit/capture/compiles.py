"""What ``torch.compile`` did in this process, as torch itself remembers it.

torch keeps the last 64 times that it compiled, with the guard that did not hold, and every place
where it had to end a graph. That is only read, and only where the program compiles: nothing of
Dynamo is imported for it. Versions differ in what they keep; what one lacks is not known.

Source: ``torch/_dynamo/utils.py`` (``CompilationMetrics``, ``guard_failures``,
``graph_break_reasons``), ``torch/_dynamo/output_graph.py`` (``GraphCompileReason``).
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.capture.source.user_code import UserCode
from profkit.model.capture_info import CodePlace, Compiled, Compiles, GraphBreak
from profkit.model.torch_names import RESUMED

_UTILS: Final = "torch._dynamo.utils"
_MOST: Final = 200
"""Entries of each kind that are kept: several hundred would be longer than a small trace."""
_LONGEST: Final = 600
"""Characters of a text that are kept: torch explains itself at length."""
_DEEPEST: Final = 12
_CALL: Final = re.compile(r"^Line: (\d+), Name: (.*), Filename: (.*)$", re.DOTALL)
_NOT_KNOWN: Final[CodePlace] = ("", 0, "")

_Entry = TypeVar("_Entry")


def has_compiled() -> bool:
    """Whether ``torch.compile`` has compiled anything in this process so far."""
    utils = sys.modules.get(_UTILS)
    with contextlib.suppress(Exception):  # whatever this version of torch has there
        return bool(utils is not None and utils.counters.get("frames", {}).get("total", 0))
    return False


def read() -> Compiles | None:
    """What was compiled so far, and where graphs ended; None where nothing was."""
    utils = sys.modules.get(_UTILS)
    if utils is None:
        return None
    reader = _Reader(utils)
    compiled = _each(reader.compiled, reader.metrics())
    breaks = _together(_each(reader.graph_break, list(getattr(utils, "graph_break_reasons", ()))))
    if not compiled and not breaks:
        return None
    kept = compiled[-_MOST:], breaks[:_MOST]
    n_left_out = len(compiled) + len(breaks) - len(kept[0]) - len(kept[1])
    return Compiles(*kept, n_left_out=n_left_out)


def _each(read_one: Callable[[Any], _Entry | None], things: Iterable[Any]) -> list[_Entry]:
    """What could be read; what a version of torch has otherwise is passed over."""
    found = []
    for thing in things:
        with contextlib.suppress(Exception):  # nothing of torch's may end the user's program
            one = read_one(thing)
            if one is not None:
                found.append(one)
    return found


class _Reader:
    """Reads what one version of torch keeps.

    Args:
        utils: The module ``torch._dynamo.utils``.
    """

    def __init__(self, utils: Any) -> None:  # noqa: ANN401  (a module)
        self._utils = utils
        self._code = UserCode()

    def metrics(self) -> list[Any]:
        """The records of torch itself, one each time that it compiled."""
        with contextlib.suppress(Exception):  # not there before torch 2.2
            return list(self._utils.get_compilation_metrics())
        return []

    def compiled(self, metric: Any) -> Compiled | None:  # noqa: ANN401
        """One of them; None for those of a backward pass, which follows its forward."""
        if getattr(metric, "is_forward", None) is False or getattr(metric, "is_runtime", False):
            return None
        code = (
            _text(metric.co_filename),
            int(metric.co_firstlineno or 0),
            _text(metric.co_name),
        )
        again, reason = self._why(metric, code)
        return Compiled(
            number=_text(getattr(metric, "compile_id", None)),
            code=code if code[0] else _NOT_KNOWN,
            is_users=bool(code[0]) and self._code.is_user_file(code[0]),
            caller=self._caller(getattr(metric, "stack_trace", None) or (), code),
            start_ns=_ns(metric, "start_time_us", "start_time"),
            dur_ns=_ns(metric, "duration_us", "entire_frame_compile_time_s"),
            n_ops=_count(getattr(metric, "graph_op_count", None)),
            again=again,
            reason=reason,
            failure=_text(getattr(metric, "fail_reason", None)),
        )

    def _why(self, metric: Any, code: CodePlace) -> tuple[bool, str]:  # noqa: ANN401
        """Whether it was compiled before, and why that did not fit.

        Before torch 2.7 the reason is not in the record, but among the guards that failed.
        """
        if hasattr(metric, "recompile_reason"):
            return metric.recompile_reason is not None, _text(metric.recompile_reason)
        if not getattr(metric, "cache_size", 0):
            return False, ""
        failures: Any = getattr(self._utils, "guard_failures", {})
        for guarded, reasons in list(failures.items()):
            if (guarded.co_filename, guarded.co_firstlineno) == code[:2] and reasons:
                return True, _text(reasons[-1])
        return True, ""

    def _caller(self, calls: Iterable[str], code: CodePlace) -> CodePlace | None:
        """The user's innermost line around a call, without what is compiled there itself."""
        places = [_place(call) for call in calls]
        if places and places[-1] is not None and places[-1][0] == code[0]:
            places.pop()
        for place in reversed(places):
            if place is not None and not _is_resumed(place) and self._code.is_user_file(place[0]):
                return place
        return None

    def graph_break(self, reason: Any) -> GraphBreak | None:  # noqa: ANN401
        """One end of a graph; None for one within profkit itself."""
        frames = reversed(reason.user_stack)
        stack = [(_text(f.filename), int(f.lineno or 0), _text(f.name)) for f in frames][:_DEEPEST]
        if not stack or stack[0][0].startswith(PROFKIT_FOLDER):
            return None
        user = next((i for i, place in enumerate(stack) if self._code.is_user_file(place[0])), -1)
        return GraphBreak(_text(reason.reason), stack, user)


def _place(call: str) -> CodePlace | None:
    """A call as torch writes it, ``Line: 46, Name: main, Filename: /home/ann/train.py``."""
    match = _CALL.match(call)
    return None if match is None else (match[3], int(match[1]), match[2])


def _is_resumed(place: CodePlace) -> bool:
    """Whether torch made a function: what is left of one behind the end of a graph."""
    return place[2].startswith(RESUMED)


def _together(breaks: list[GraphBreak]) -> list[GraphBreak]:
    """Each place and reason once, with how often it was met."""
    counts: dict[tuple[str, tuple[CodePlace, ...]], tuple[GraphBreak, int]] = {}
    for one in breaks:
        key = one.reason, tuple(one.stack)
        counts[key] = one, counts.get(key, (one, 0))[1] + 1
    return [GraphBreak(one.reason, one.stack, one.user, n) for one, n in counts.values()]


def _text(value: object) -> str:
    """A text of bounded length; empty for None."""
    return "" if value is None else str(value)[:_LONGEST]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ns(metric: Any, in_us: str, in_s: str) -> int | None:  # noqa: ANN401
    """A time in nanoseconds from microseconds, else from seconds, which older versions have."""
    us = getattr(metric, in_us, None)
    if isinstance(us, int):
        return us * 1000
    seconds = getattr(metric, in_s, None)
    return round(seconds * 1e9) if isinstance(seconds, float) else None
