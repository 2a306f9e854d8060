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
    """Return the compilations and graph breaks so far; None if there are none."""
    utils = sys.modules.get(_UTILS)
    if utils is None:
        return None

    reader = _Reader(utils)
    compiled = _read_records(reader.read_compilation, reader.metrics())
    reasons = list(getattr(utils, "graph_break_reasons", ()))
    breaks = _merge(_read_records(reader.read_graph_break, reasons))
    if not compiled and not breaks:
        return None

    last, first = compiled[-_MAX_ENTRIES:], breaks[:_MAX_ENTRIES]
    n_left_out = len(compiled) + len(breaks) - len(last) - len(first)
    return Compiles(last, first, n_left_out=n_left_out)


def find_most_recompiled() -> tuple[Compiled, int] | None:
    """Return the function that was compiled again most often, by its last time, and how often.

    Of the compilations that Dynamo retains; None if none of them is another one of a function.
    """
    compiles = read()
    again = [] if compiles is None else [entry for entry in compiles.compiled if entry.again]
    if not again:
        return None

    (code, n), *_ = Counter(entry.code for entry in again).most_common(1)
    return next(entry for entry in reversed(again) if entry.code == code), n


def _read_records(read: Callable[[Any], _Entry | None], records: Iterable[Any]) -> list[_Entry]:
    """Return the entries that could be read; records with another layout are skipped."""
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
        """Return Dynamo's records, one per compilation."""
        with contextlib.suppress(Exception):  # a private part of torch
            return list(self._utils.get_compilation_metrics())
        return []

    def read_compilation(self, metric: Any) -> Compiled | None:  # noqa: ANN401
        """Read one compilation; None for a backward pass, which follows its forward pass."""
        if getattr(metric, "is_forward", None) is False or getattr(metric, "is_runtime", False):
            return None

        code = (
            _text(metric.co_filename),
            int(metric.co_firstlineno or 0),
            _text(metric.co_name),
        )
        n_ops = getattr(metric, "graph_op_count", None)
        again, reason = self._find_recompilation(metric, code)

        return Compiled(
            number=_text(getattr(metric, "compile_id", None)),
            code=code if code[0] else _UNKNOWN,
            is_users=bool(code[0]) and self._code.is_user_file(code[0]),
            caller=self._find_caller(getattr(metric, "stack_trace", None) or (), code),
            start_ns=_read_ns(metric, "start_time_us"),
            dur_ns=_read_ns(metric, "duration_us"),
            n_ops=n_ops if isinstance(n_ops, int) else None,
            again=again,
            reason=reason,
            failure=_text(getattr(metric, "fail_reason", None)),
        )

    def _find_recompilation(self, metric: Any, code: CodePlace) -> tuple[bool, str]:  # noqa: ANN401
        """Return whether it is a recompilation, and the guard failure that caused it.

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

    def _find_caller(self, calls: Iterable[str], code: CodePlace) -> CodePlace | None:
        """Return the innermost user line of a stack, except in the compiled function itself.

        torch generates a function that has the remainder of one after a graph break.
        """
        places = [_parse_place(call) for call in calls]
        if places and places[-1] is not None and places[-1][0] == code[0]:
            places.pop()

        written = (
            place for place in reversed(places) if place and not place[2].startswith(RESUMED)
        )
        return next((place for place in written if self._code.is_user_file(place[0])), None)

    def read_graph_break(self, reason: Any) -> GraphBreak | None:  # noqa: ANN401
        """Read one graph break; None for one inside profkit itself."""
        frames = islice(reversed(reason.user_stack), _MAX_DEPTH)
        stack = [(_text(f.filename), int(f.lineno or 0), _text(f.name)) for f in frames]
        if not stack or stack[0][0].startswith(PROFKIT_FOLDER):
            return None

        user = next((i for i, place in enumerate(stack) if self._code.is_user_file(place[0])), -1)
        return GraphBreak(_text(reason.reason), stack, user)


def _parse_place(call: str) -> CodePlace | None:
    """Parse a frame as torch writes it: ``Line: 46, Name: main, Filename: /home/ann/train.py``."""
    match = _CALL.match(call)
    return None if match is None else (match[3], int(match[1]), match[2])


def _merge(breaks: list[GraphBreak]) -> list[GraphBreak]:
    """Return each place and reason once, with its count."""
    counts = Counter((entry.reason, tuple(entry.stack), entry.user) for entry in breaks)
    return [GraphBreak(reason, list(at), user, n) for (reason, at, user), n in counts.items()]


def _text(value: object) -> str:
    return "" if value is None else str(value)[:_MAX_CHARS]


def _read_ns(metric: Any, in_us: str) -> int | None:  # noqa: ANN401
    """Return a time in nanoseconds that a record has in microseconds."""
    us = getattr(metric, in_us, None)
    return us * 1000 if isinstance(us, int) else None
