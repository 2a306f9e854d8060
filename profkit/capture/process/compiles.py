"""Compilations and graph breaks of ``torch.compile`` in this process, from Dynamo's own records.

Dynamo retains its last 64 compilations, with the guard failure that caused each, and all graph
breaks. They are read only if the program compiles: nothing of Dynamo is imported. Fields that a
version of torch lacks are unknown.

Source: ``torch/_dynamo/utils.py`` (``CompilationMetrics``, ``guard_failures``,
``graph_break_reasons``), ``torch/_dynamo/output_graph.py`` (``GraphCompileReason``).
"""

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.capture.source.user_code import UserCode
from profkit.model.capture_info import CodePlace, Compiled, Compiles, GraphBreak
from profkit.model.torch_names import RESUMED
from profkit.patterns import regex

_UTILS: Final = "torch._dynamo.utils"
_MAX_ENTRIES: Final = 200
"""Of each kind: several hundred would be larger than a small trace."""
_MAX_CHARS: Final = 600
"""Of a text: torch's explanations are long."""
_MAX_DEPTH: Final = 12
_CALL: Final = regex(r"^Line: (\d+), Name: (.*), Filename: (.*)$", re.DOTALL)
_UNKNOWN: Final[CodePlace] = ("", 0, "")

_Entry = TypeVar("_Entry")


def read() -> Compiles | None:
    """The compilations and graph breaks so far; None if there are none."""
    utils = sys.modules.get(_UTILS)
    if utils is None:
        return None
    reader = _Reader(utils)
    compiled = _read_each(reader.compiled, reader.metrics())
    reasons = list(getattr(utils, "graph_break_reasons", ()))
    breaks = _merged(_read_each(reader.graph_break, reasons))
    if not compiled and not breaks:
        return None
    last, first = compiled[-_MAX_ENTRIES:], breaks[:_MAX_ENTRIES]
    n_left_out = len(compiled) + len(breaks) - len(last) - len(first)
    return Compiles(last, first, n_left_out=n_left_out)


def most_recompiled() -> tuple[Compiled, int] | None:
    """The function that was compiled again most often, by its last time, and how often.

    Of the compilations that Dynamo retains; None if none of them is another one of a function.
    """
    compiles = read()
    again = [] if compiles is None else [one for one in compiles.compiled if one.again]
    if not again:
        return None
    (code, n), *_ = Counter(one.code for one in again).most_common(1)
    return next(one for one in reversed(again) if one.code == code), n


def _read_each(read: Callable[[Any], _Entry | None], records: Iterable[Any]) -> list[_Entry]:
    """The entries that could be read; records with another layout are skipped."""
    entries = []
    for record in records:
        with contextlib.suppress(Exception):  # an odd record must not end the user's program
            entry = read(record)
            if entry is not None:
                entries.append(entry)
    return entries


class _Reader:
    """Reads the records of one version of torch.

    Args:
        utils: The module ``torch._dynamo.utils``.
    """

    def __init__(self, utils: Any) -> None:  # noqa: ANN401  (a module)
        self._utils = utils
        self._code = UserCode()

    def metrics(self) -> list[Any]:
        """Dynamo's records, one per compilation."""
        with contextlib.suppress(Exception):  # a private part of torch
            return list(self._utils.get_compilation_metrics())
        return []

    def compiled(self, metric: Any) -> Compiled | None:  # noqa: ANN401
        """One compilation; None for that of a backward pass, which follows its forward pass."""
        if getattr(metric, "is_forward", None) is False or getattr(metric, "is_runtime", False):
            return None
        code = (
            _text(metric.co_filename),
            int(metric.co_firstlineno or 0),
            _text(metric.co_name),
        )
        n_ops = getattr(metric, "graph_op_count", None)
        again, reason = self._recompilation(metric, code)
        return Compiled(
            number=_text(getattr(metric, "compile_id", None)),
            code=code if code[0] else _UNKNOWN,
            is_users=bool(code[0]) and self._code.is_user_file(code[0]),
            caller=self._caller(getattr(metric, "stack_trace", None) or (), code),
            start_ns=_ns(metric, "start_time_us"),
            dur_ns=_ns(metric, "duration_us"),
            n_ops=n_ops if isinstance(n_ops, int) else None,
            again=again,
            reason=reason,
            failure=_text(getattr(metric, "fail_reason", None)),
        )

    def _recompilation(self, metric: Any, code: CodePlace) -> tuple[bool, str]:  # noqa: ANN401
        """Whether it is a recompilation, and the guard failure that caused it.

        Before torch 2.7 the reason is not in the record, but in ``guard_failures``.
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
        """The innermost user line of a stack, except in the compiled function itself.

        torch generates a function that has the remainder of one after a graph break.
        """
        places = [_place(call) for call in calls]
        if places and places[-1] is not None and places[-1][0] == code[0]:
            places.pop()
        written = (one for one in reversed(places) if one and not one[2].startswith(RESUMED))
        return next((one for one in written if self._code.is_user_file(one[0])), None)

    def graph_break(self, reason: Any) -> GraphBreak | None:  # noqa: ANN401
        """One graph break; None for one inside profkit itself."""
        frames = islice(reversed(reason.user_stack), _MAX_DEPTH)
        stack = [(_text(f.filename), int(f.lineno or 0), _text(f.name)) for f in frames]
        if not stack or stack[0][0].startswith(PROFKIT_FOLDER):
            return None
        user = next((i for i, place in enumerate(stack) if self._code.is_user_file(place[0])), -1)
        return GraphBreak(_text(reason.reason), stack, user)


def _place(call: str) -> CodePlace | None:
    """A frame in torch's notation: ``Line: 46, Name: main, Filename: /home/ann/train.py``."""
    match = _CALL.match(call)
    return None if match is None else (match[3], int(match[1]), match[2])


def _merged(breaks: list[GraphBreak]) -> list[GraphBreak]:
    """Each place and reason once, with its count."""
    counts = Counter((one.reason, tuple(one.stack), one.user) for one in breaks)
    return [GraphBreak(reason, list(at), user, n) for (reason, at, user), n in counts.items()]


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_MAX_CHARS]


def _ns(metric: Any, in_us: str) -> int | None:  # noqa: ANN401
    """A time in nanoseconds from one in microseconds."""
    us = getattr(metric, in_us, None)
    return us * 1000 if isinstance(us, int) else None
