"""Calls of Python functions that the steps wait for."""

import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.needs import Need
from profkit.engine.savings import measure_savings
from profkit.engine.windows import in_windows, time_with_share
from profkit.engine.wording import at, known_locations, times_per_step
from profkit.index.distinct import distinct, marked
from profkit.index.host.frames import is_library_function, parse_frame
from profkit.index.intervals import Intervals, covered_by, covered_within
from profkit.index.runtime_calls import rows_named
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.torch_names import BUILTIN_PREFIX
from profkit.patterns import regex

PYTHON_CALLS: Final = Need(
    name="Python calls",
    reason="No calls of Python functions were recorded.",
    remedy="Record with `torch.profiler.profile(with_stack=True)`.",
    is_met=lambda ctx: ctx.events.has_python_calls,
    requires=(needs.TRACE,),
)

_FOLDER: Final = r"(^|(site|dist)-packages[/\\]|[/\\](lib|Lib)[/\\](python3(\.\d+)?[/\\])?)"
"""Before the name of a library: torch writes paths without the folders on ``sys.path``."""
CHECKPOINT: Final = regex(
    rf"{_FOLDER}(torch[/\\](serialization|jit[/\\]_serialization)\.py\(\d+\): (save|load)"
    r"|torch[/\\]distributed[/\\]checkpoint[/\\].*: (save|load)(_state_dict)?"
    r"|safetensors[/\\]torch\.py\(\d+\): (save|load)(_file|_model)?)$"
)
"""Functions that write a state to a file, or read one."""
OUTPUT: Final = regex(
    rf"^{BUILTIN_PREFIX}(function (print|imwrite)\b"
    r"|method (write|writelines) of _io\.TextIOWrapper)"
    rf"|{_FOLDER}((matplotlib|seaborn|plotly|tensorboardX?|wandb|mlflow|neptune|comet_ml|clearml"
    r"|rich|loguru)[/\\].*(?<!<module>)$|torch[/\\]utils[/\\]tensorboard[/\\].*(?<!<module>)$"
    r"|logging[/\\]__init__\.py\(\d+\): (debug|info|warning|error|exception|critical|log)$"
    r"|torchvision[/\\]utils\.py\(\d+\): (save_image|make_grid)$|PIL[/\\]Image\.py\(\d+\): save$"
    r"|tqdm[/\\].*: (refresh|display|write|set_postfix|set_postfix_str|set_description)$)"
)
"""Functions that print, plot or log."""
TRANSFORMERS_PIPELINE: Final = regex(r"(^|[/\\])transformers[/\\]pipelines[/\\]")
"""Functions of the pipelines of Transformers, which make their own loader."""
TRANSFORMERS_TRAINER: Final = regex(r"(^|[/\\])transformers[/\\]trainer\.py\(\d+\): ")
"""Functions of the ``Trainer`` of Transformers."""
A_LIBRARY: Final = "a library"
"""A library's function of which the recording does not say which one it is."""
_BUILTIN: Final = regex(rf"^{BUILTIN_PREFIX}(?:function|method) (?P<name>\w+)")
_LIBRARY: Final = regex(rf"{_FOLDER}(?P<name>\w+)[/\\]")
MAIN_CALLEE_SHARE: Final = 0.8
"""A callee with this share of a function's time is where the time is spent."""


@dataclass(frozen=True)
class CallThresholds:
    """When calls are a finding.

    Attributes:
        min_saved_share: Minimum share of the steps that the calls at one place take, by replay.
            Recording makes Python functions up to twice as slow: of the rest, too little would be
            left to change.
    """

    min_saved_share: float = 0.05


def python_calls(ctx: Context, pattern: re.Pattern[str]) -> Rows:
    """Find the outermost matching Python calls of the program in the windows, by start.

    Calls on other threads are not included, such as of a logger that writes what it gets, nor calls
    of a loader's data set, whose time is a wait for data.
    """
    is_match = rows_named(ctx.events, pattern, Category.PYTHON)
    if not is_match.any():
        return np.flatnonzero(is_match)

    is_outermost = is_match & (ctx.tree.enclosing(is_match) == NO_ROW)
    rows = np.flatnonzero(is_outermost & of_program(ctx))
    rows = rows[in_windows(ctx, rows)]
    return rows[np.argsort(ctx.events.ts_ns[rows], kind="stable")]


def of_program(ctx: Context) -> Mask:
    """Return which rows are on threads that run operators below Python, outside a loader.

    Shape ``(n,)``.
    """
    events, tree = ctx.events, ctx.tree
    is_python = events.category == Category.PYTHON
    ops = events.rows_of(Category.OP)
    lanes = distinct(events.lane[ops[tree.nearest(is_python)[ops] != NO_ROW]])

    return np.asarray(np.isin(events.lane, lanes) & (ctx.nearest(ctx.data_waits) == NO_ROW))


def function_name(name: str) -> str:
    """Return ```savefig()` of matplotlib`` for the name of a Python call."""
    builtin = _BUILTIN.match(name)
    if builtin is not None:
        return f"`{builtin['name']}()`"

    frame = parse_frame(name)
    if frame is None:
        return f"`{name}`"
    library = _LIBRARY.search(frame.file)
    of = f" of {library['name']}" if library else ""
    return f"`{frame.function}()`{of}"


def are_within(ctx: Context, rows: Rows | Int32s, pattern: re.Pattern[str]) -> bool:
    """Return whether all of some rows run in Python functions with a matching name."""
    calls = rows_named(ctx.events, pattern, Category.PYTHON)
    return bool((ctx.tree.nearest(calls)[rows] != NO_ROW).all())


def find_library_function(ctx: Context, rows: Rows | Int32s) -> str:
    """Find the function of a library in which some rows run, as :func:`function_name`.

    :data:`A_LIBRARY` if no Python calls were recorded that say which one. Empty if the program
    itself calls them, if only through a library's wrapper of ``synchronize()``.
    """
    if not ctx.source.in_library[rows].all():
        return ""
    if not ctx.events.has_python_calls:
        return A_LIBRARY

    row = int(rows[0])
    while row != NO_ROW and ctx.source.in_library[row]:
        name = ctx.events.name_of(row)
        frame = parse_frame(name)
        if (
            frame is not None
            and frame.function != "synchronize"
            and is_library_function(frame.file, frame.function)
        ):
            return function_name(name)
        row = int(ctx.tree.parent[row])

    return ""


def may_be_torchs(caller: str) -> bool:
    """Return whether a library's function is, or may be, one of torch, such as ``Module.to()``."""
    return caller == A_LIBRARY or caller.endswith(" of torch")


def place_of_call(caller: str, location: Location) -> str:
    """Return where a function is called: `` in `zoom()` of scipy, called at train.py:3,``.

    Args:
        caller: The function of a library that calls it, or empty if the program does.
    """
    return f" in {caller}, called{at(location)}," if caller else at(location)


def find_innermost_callee(
    ctx: Context, callers: Rows, among: Rows, within: Intervals, total_ns: int
) -> str:
    """Name the innermost function in which some calls spend most of their time.

    Args:
        callers: The calls.
        among: Python calls that may be it.
        within: The time that counts.
        total_ns: How much of it is in the calls.

    Returns:
        Empty if they spend it in themselves, or in several functions.
    """
    events = ctx.events
    is_caller = events.category == Category.PYTHON
    is_caller[callers] = True

    caller, name = ctx.tree.enclosing(is_caller)[among], ""
    while True:
        # Follow the main callee down until a function spends its time itself or in several others.
        callees = among[marked(callers, len(events))[caller]]
        spent_ns = covered_within(within, events.ts_ns[callees], events.end_ns[callees])
        function = _functions(ctx, callees)
        spent = np.bincount(function, spent_ns)

        if not len(spent) or spent.max() < MAIN_CALLEE_SHARE * total_ns:
            return name

        callers = callees[function == np.argmax(spent)]
        name = events.name_of(int(callers[0]))


def _functions(ctx: Context, rows: Rows) -> Int64s:
    """Return a number for the function that each row calls. Shape of ``rows``.

    Each resumption of a generator is a call, with the line of its ``yield``.
    """
    names, place = np.unique(ctx.events.name[rows], return_inverse=True)
    numbers: dict[object, int] = {}
    function_of_name = []
    for number in names.tolist():
        name = ctx.events.names[number]
        frame = parse_frame(name)
        key = name if frame is None else (frame.file, frame.function)
        function_of_name.append(numbers.setdefault(key, len(numbers)))

    return np.array(function_of_name, dtype=np.int64)[place]


def call_findings(
    ctx: Context,
    info: RuleInfo,
    thresholds: CallThresholds,
    pattern: re.Pattern[str],
    fix: Callable[[str], str],
) -> Iterator[Finding]:
    """Yield a finding for each place that calls some functions for too long.

    Waits of the calls for a device stay in the cost's replay: another call would wait for it.

    Args:
        pattern: The functions, as in :func:`python_calls`.
        fix: The fix, by the name of the function with the most time.
    """
    events = ctx.events
    places = list(ctx.by_line(python_calls(ctx, pattern)))
    changes = [ProgramChange(scaled=((rows, 0.0),)) for _, rows in places]

    for (location, rows), saving in zip(places, measure_savings(ctx, changes), strict=True):
        if not saving.reaches(thresholds.min_saved_share):
            continue

        spent = covered_by(events, rows)
        name = events.name_of(int(rows[np.argmax(events.dur_ns[rows])]))
        yield saving.finding(
            info,
            confidence="high" if ctx.source.origin == "window" else "medium",
            message=(
                f"{function_name(name)}{at(location)} runs {times_per_step(ctx, len(rows))}: "
                f"{time_with_share(ctx, spent.total_ns)}."
            ),
            fix=fix(name),
            locations=known_locations(location),
            rows=rows,
            evidence={"calls_ns": spent.total_ns},
            spans=spent.pairs(),
        )
