"""The lines of user code in which sampled stacks were, and what these lines call.

A function in C has no frame: ``gc.collect()`` and ``time.sleep()`` are a place in the bytecode of
the function that calls them. The source is compiled again, which gives the same bytecode, and has
the columns of the call at that place. So nothing of the program is held for it.

Source: ``codeobject.co_positions`` in Python's documentation; two bytes are one instruction.
"""

import ast
import contextlib
import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Final

from profkit.capture.process.stack_sampler import StackSample
from profkit.capture.process.thread_stacks import Calls
from profkit.capture.recording.sampled_functions import find_user_call
from profkit.capture.source.files import PROFKIT_FOLDER, SourceFiles, library_roots, package
from profkit.dataclass import dataclass
from profkit.model.capture_info import CodePlace, SampledFunction, SampledPart

_MAX_LINES: Final = 500
_MIN_IN_CALL: Final = 0.5
"""Share of a line's time that has to be within a call without frame for the call to be named:
Python lets another thread in after each call, however short."""
_MIN_SAMPLES: Final = 3
_LONG_NS: Final = 100_000_000
"""A sample that stands for more was let in late, and not for want of a core."""
_NO_POSITION: Final = (None, None, None, None)
_BYTES_PER_INSTRUCTION: Final = 2
_ENGINE: Final = "torch/autograd/graph.py"
FETCH_FILE: Final = "torch/utils/data/_utils/fetch.py"
"""Makes batches, in workers of a loader too."""
_LOADERS: Final = "torch/utils/data/"
_NEXT_INDEX: Final = "_next_index"
_NEXT: Final = "__next__"
_PROFILER: Final = ("torch/profiler/", "torch/autograd/profiler")
_TORCH: Final = "/torch/"

_Line = tuple[CodePlace, str, SampledPart]
"""A line of user code, what it calls, and the part of the step."""


@dataclass
class StackTime:
    """Samples of one stack.

    Attributes:
        n: Number of samples.
        ns: Time that they stand for.
        waiting_ns: How much of it the thread waited.
        in_call_ns: How much of it the thread was in a call that has no frame.
    """

    n: int = 0
    ns: int = 0
    waiting_ns: int = 0
    in_call_ns: int = 0

    def add(self, more: "StackTime") -> None:
        """Add samples of the same stack."""
        self.n += more.n
        self.ns += more.ns
        self.waiting_ns += more.waiting_ns
        self.in_call_ns += more.in_call_ns


def time_of_sample(sample: StackSample, elapsed_ns: int) -> StackTime:
    """Return what one sample represents: the time since the sample before it."""
    return StackTime(
        n=1,
        ns=elapsed_ns,
        waiting_ns=0 if sample.is_running else elapsed_ns,
        in_call_ns=elapsed_ns if sample.is_in_call else 0,
    )


def add_time(
    stacks: dict[tuple[Calls, int], StackTime],
    key: tuple[Calls, int],
    spent: StackTime,
    max_stacks: int,
) -> None:
    """Add the time of a stack to those of equal ones; new stacks beyond the most are left out."""
    total = stacks.get(key)
    if total is not None:
        total.add(spent)
    elif len(stacks) < max_stacks:
        stacks[key] = spent


def is_own(calls: Calls, files: SourceFiles) -> bool:
    """Return whether profkit itself ran: its functions, or what they called.

    The program runs below profkit's wrappers of torch's functions, and of an iterator.
    """
    # From the innermost call: whatever comes first decides.
    for file, _, _ in reversed(calls):
        path = _posix(file)
        if file.startswith(PROFKIT_FOLDER):
            return True
        is_of_recorder = any(part in path for part in _PROFILER)
        if not is_of_recorder and (_TORCH in path or files.user_file(file)):
            return False
    return not calls


def find_sampled_calls(
    stacks: Mapping[tuple[Calls, int], StackTime], files: SourceFiles, max_waiting_ns: float
) -> list[SampledFunction]:
    """Find the lines of user code in which a thread was, most time first.

    Args:
        stacks: The samples of each stack and instruction of its innermost frame.
        max_waiting_ns: How long the thread waited by the system's accounts. A sample also counts as
            waiting where another process had the core.
    """
    # Samples are scaled to the time that the thread waited by the system's accounts.
    waiting_ns = sum(spent.waiting_ns for spent in stacks.values())
    waited = min(1.0, max_waiting_ns / waiting_ns) if waiting_ns else 0.0

    times: dict[_Line, StackTime] = {}
    libraries: dict[_Line, Counter[str]] = {}
    for (calls, instruction), spent in stacks.items():
        if is_own(calls, files):
            continue

        line, library = _find_line(calls, instruction, spent, files)
        libraries.setdefault(line, Counter())[library] += spent.ns
        times.setdefault(line, StackTime()).add(spent)

    longest = sorted(times.items(), key=lambda item: -item[1].ns)[:_MAX_LINES]
    return [
        SampledFunction(
            place=line[0],
            n=spent.n,
            ns=spent.ns,
            library=libraries[line].most_common(1)[0][0],
            waiting_ns=round(waited * spent.waiting_ns),
            callee=line[1],
            part=line[2],
        )
        for line, spent in longest
    ]


def _find_line(
    calls: Calls, instruction: int, spent: StackTime, files: SourceFiles
) -> tuple[_Line, str]:
    """Find the line of user code in which a stack is, and the library that it calls, or empty."""
    user, _, place = find_user_call(calls, files)
    called = [
        call
        for call in calls[place + 1 :]
        if not (call[0].startswith(PROFKIT_FOLDER) or call[0].endswith(FETCH_FILE))
    ]

    callee = ""
    if user is not None and called:
        callee = find_callee_of_frames(user[0], user[1], [call[2] for call in called])
    elif user is not None and _is_in_call(spent):
        callee = find_callee(user[0], user[1], calls[place][2], instruction)

    library = package(called[0][0], library_roots()) if called else ""
    return (user or ("", 0, ""), callee, _part(calls)), library


def find_callee(path: str, line: int, function: str, instruction: int) -> str:
    """Return what a function calls at a place in its bytecode, as its source writes it.

    Args:
        instruction: As ``frame.f_lasti``.

    Returns:
        Such as ``gc.collect``; empty where there is no call, or no source.
    """
    number = max(0, instruction) // _BYTES_PER_INSTRUCTION
    for code in _compile_functions(path):
        if code.co_name != function:
            continue
        positions = islice(code.co_positions(), number, None)
        first, last, begin, end = next(positions, _NO_POSITION)
        if first != line or last is None or begin is None or end is None:
            continue

        # The name of the function in the bytecode would be without its owner, such as `gc`.
        with contextlib.suppress(SyntaxError, ValueError):
            tree = ast.parse(_read_segment(path, first, last, begin, end), mode="eval")
            if isinstance(tree.body, ast.Call):
                return _dotted(tree.body.func)
    return ""


def find_callee_of_frames(path: str, line: int, functions: Iterable[str]) -> str:
    """Return what a line of user code calls, of which the functions below it are known.

    Args:
        functions: The names of the functions below it, the outermost first.

    Returns:
        Such as ``torch.save``; empty where the line has several calls with other names, or no
        source.
    """
    names = [_dotted(call.func) for call in _find_calls(path, line)]
    for function in functions:
        named = [name for name in names if name.rpartition(".")[2] == function]
        if named:
            return named[0]
    return names[0] if len(names) == 1 else ""


def _is_in_call(spent: StackTime) -> bool:
    """Return whether the samples of a line are known to be within the call that it makes."""
    is_certain = spent.n >= _MIN_SAMPLES or spent.ns >= spent.n * _LONG_NS
    return is_certain and spent.in_call_ns >= _MIN_IN_CALL * spent.ns


def _part(calls: Calls) -> SampledPart:
    """Return which part of a step a stack is in, of those that torch records as a whole."""
    part: SampledPart = ""
    for file, line, name in calls:
        path = _posix(file)
        if path.endswith(_ENGINE):
            return part or "backward"
        if _LOADERS not in path:
            continue

        # Whatever calls the loader, the innermost of its parts has the time.
        if name == _NEXT_INDEX:
            return "sampler"
        if path.endswith(FETCH_FILE) and line in _find_stream_lines():
            return "stream"
        if name == _NEXT:
            part = "data"
    return part


@lru_cache(maxsize=1)
def _find_stream_lines() -> range:
    """Find the lines of torch's function that takes samples from an ``IterableDataset``."""
    fetch = sys.modules.get("torch.utils.data._utils.fetch")
    function = getattr(getattr(fetch, "_IterableDatasetFetcher", None), "fetch", None)
    code = getattr(function, "__code__", None)
    lines = [] if code is None else [line for _, _, line in code.co_lines() if line is not None]
    return range(min(lines), max(lines) + 1) if lines else range(0)


def _posix(file: str) -> str:
    return file.replace("\\", "/")


@lru_cache(maxsize=64)
def _compile_functions(path: str) -> tuple[CodeType, ...]:
    """Return all functions of a file, compiled from its source."""
    codes: list[CodeType] = []
    with _silenced():
        codes.append(compile(_read_source(path), path, "exec", dont_inherit=True))
    for code in codes:  # which grows meanwhile
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return tuple(codes)


@lru_cache(maxsize=64)
def _find_calls_by_line(path: str) -> Mapping[int, list[ast.Call]]:
    """Return the calls that begin on each line of a file, the outermost first."""
    by_line: dict[int, list[ast.Call]] = {}
    with _silenced():
        for node in ast.walk(ast.parse(_read_source(path))):
            if isinstance(node, ast.Call):
                by_line.setdefault(node.lineno, []).append(node)
    return by_line


def _find_calls(path: str, line: int) -> list[ast.Call]:
    return _find_calls_by_line(path).get(line, [])


def _read_source(path: str) -> str:
    return "".join(linecache.getlines(path))


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Compile without the warnings that the program has shown already, and without errors."""
    with (
        warnings.catch_warnings(),
        contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError),
    ):
        warnings.simplefilter("ignore")
        yield


def _read_segment(path: str, first: int, last: int, begin: int, end: int) -> str:
    """Return a part of a file; columns are in bytes of UTF-8."""
    lines = [line.encode() for line in linecache.getlines(path)[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")


def _dotted(function: ast.expr) -> str:
    """Return ``gc.collect`` for such an expression, ``to`` for ``f(x).to``."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        owner = _dotted(function.value)
        return f"{owner}.{function.attr}" if owner else function.attr
    return ""
