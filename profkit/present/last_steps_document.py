"""What the processes of a program did until its end, as a document."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from profkit.engine.wording import counted, the_ranks
from profkit.model.last_steps import MAIN_THREAD, LastSteps, ProcessEnd, ThreadStack
from profkit.model.location import Frame
from profkit.names import short_path
from profkit.present.document import (
    Cell,
    CodeBlock,
    Document,
    DocumentSection,
    Paragraph,
    columns_of,
    list_section,
    name_of,
    one_line,
    table_section,
)
from profkit.present.renderer import ReadersOptions
from profkit.units import format_bytes, format_count, format_ns, format_share

_MAX_STEPS: Final = 10
_MAX_MEMORY: Final = 8
_MAX_FRAMES: Final = 12
_ENDS: Final = {"running": "is running", "ended": "ended", "killed": "ended abruptly"}
_WAITS: Final = ("/threading.py", "/selectors.py", "/concurrent/futures/thread.py", "/queue.py")
"""A thread whose innermost frame is in one of these waits for work."""


def last_steps_document(last: LastSteps, options: ReadersOptions) -> Document:
    """What the processes of a program did until its end, as a document."""
    first = last.processes[0]
    versions = dict.fromkeys(f"torch {each.torch}" for each in last.processes if each.torch)
    hosts = dict.fromkeys(each.host for each in last.processes)
    return Document(
        title="profkit: last steps",
        program=f"profkit {one_line(last.profkit)}",
        paths=tuple(one_line(short_path(each.path, options.base)) for each in last.processes),
        origin=tuple(map(one_line, [*hosts, *versions, " ".join(first.argv)])),
        headline=one_line(" ".join(_headline(last, options.base))),
        sections=(
            *_processes(last, options.base),
            *_errors(last, options.base),
            *_threads(last, options.base),
            *_steps(last),
            *_memory(last),
            *list_section("Not read", last.unread, is_detail=False),
        ),
    )


def _who(process: ProcessEnd) -> str:
    return f"process {process.pid}" if process.rank is None else f"rank {process.rank}"


def _headline(last: LastSteps, base: str) -> Iterator[str]:
    """How the first process that did not end normally ended, and after which step."""
    order = ("exception", "signal", "killed", "running", "ended")
    one = min(last.processes, key=lambda each: (order.index(each.state), each.last_ns))
    who = _who(one)
    yield f"{who[:1].upper()}{who[1:]} {_end_text(one)}"
    why = "it was killed, crashed, or called `os._exit`" if one.state == "killed" else ""
    yield f"{_after(one)}{': ' if why else ''}{why}."
    main = _main_stack(one)
    if main is not None and one.state != "exception":
        yield f"Its main thread was at {_place(main, base)}, {_lasted((one, main))}."
    others = len(last.processes) - 1
    if others:
        alike = sum(each.state == one.state for each in last.processes) - 1
        yield f"{alike} of {counted(others, 'other process', 'other processes')} ended alike."


def _end_text(process: ProcessEnd) -> str:
    if process.error is None:
        return _ENDS.get(process.state, "ended")
    if process.state == "signal":
        return f"was ended by {process.error.type}"
    where = "" if process.error.thread == MAIN_THREAD else f" in {process.error.thread}"
    return f"raised {process.error.type}{where}"


def _after(process: ProcessEnd) -> str:
    """``34.2 s after the end of step 128``."""
    if not process.steps:
        return f"{format_ns(process.last_ns - process.began_ns)} after its begin, in no step"
    ago_ns = max(0, process.last_ns - process.steps[-1].end_ns)
    ago = format_ns(ago_ns) if ago_ns else "right"
    return f"{ago} after the end of step {format_count(process.n_steps)}"


def _main_stack(process: ProcessEnd) -> ThreadStack | None:
    return next((each for each in process.last_stacks if each.thread == MAIN_THREAD), None)


def _lasted(*found: tuple[ProcessEnd, ThreadStack]) -> str:
    """``for 34.2 s``, as far as samples tell: a step that has ended meanwhile left the place."""
    lasted_ns = min(stack.last_ns - stack.first_ns for _, stack in found)
    if not lasted_ns:
        return "in the last sample"
    has_left = any(
        process.steps and process.steps[-1].end_ns > stack.first_ns for process, stack in found
    )
    return f"{'in all samples of the last' if has_left else 'for'} {format_ns(lasted_ns)}"


def _place(stack: ThreadStack, base: str) -> str:
    """The innermost frame of the program itself, or of any."""
    own = [each for each in stack.calls if not _is_library(each.file)]
    frame = (own or [*stack.calls])[-1:]
    return f"{_line(frame[0], base)} ({frame[0].function})" if frame else "a line that is not known"


def _is_library(file: str) -> bool:
    return "site-packages" in file or "/lib/python" in file or file.startswith("<")


def _line(frame: Frame, base: str) -> str:
    path = short_path(frame.file, base)
    return path if frame.line is None else f"{path}:{frame.line}"


def _processes(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    figures = ("steps", "step time", "since the last", "waiting for data")
    columns = columns_of("process", figures, ["end", "main thread"], "text")
    rows: list[tuple[Cell, ...]] = []
    for each in last.processes:
        main = _main_stack(each)
        times = [step.dur_ns for step in each.steps if step.dur_ns is not None]
        waits = sum(step.data_wait_ns or 0 for step in each.steps)
        since_ns = each.last_ns - each.steps[-1].end_ns if each.steps else None
        rows.append((
            name_of(_who(each)),
            format_count(each.n_steps),
            format_ns(statistics.median(times)) if times else "-",
            "-" if since_ns is None else format_ns(max(0, since_ns)),
            format_share(waits / sum(times)) if sum(times) else "-",
            one_line(_end_text(each)),
            "-" if main is None else one_line(f"{_place(main, base)}, {_lasted((each, main))}"),
        ))  # fmt: skip
    yield from table_section(("Processes", ""), columns, rows)


def _errors(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    """Each error once, with the ranks that raised it."""
    found: dict[tuple[object, ...], list[ProcessEnd]] = {}
    for each in last.processes:
        if each.error is not None and each.state == "exception":
            key = each.error.type, each.error.message, each.error.calls
            found.setdefault(key, []).append(each)
    for processes in found.values():
        error = processes[0].error
        if error is not None:
            text = f"{error.type}: {error.message}" if error.message else error.type
            blocks = (Paragraph(one_line(text)), _frames(error.calls, base))
            yield DocumentSection(f"Exception of {_all(processes)}", blocks)


def _all(processes: Sequence[ProcessEnd]) -> str:
    ranks = sorted(each.rank for each in processes if each.rank is not None)
    return the_ranks(ranks) if len(ranks) == len(processes) else ", ".join(map(_who, processes))


def _frames(calls: Sequence[Frame], base: str) -> CodeBlock:
    """The innermost frames, the innermost last, as Python prints them."""
    shown = calls[-_MAX_FRAMES:]
    hidden = [f"… {counted(len(calls) - len(shown), 'outer frame')}"] if shown != calls else []
    lines = (one_line(f"{_line(each, base)}  {each.function}") for each in shown)
    return CodeBlock((*hidden, *lines))


def _threads(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    """Where the threads were at the last sample; those at the same place once."""
    at: dict[tuple[Frame, ...], list[tuple[ProcessEnd, ThreadStack]]] = {}
    for each in last.processes:
        for stack in each.last_stacks:
            at.setdefault(stack.calls, []).append((each, stack))

    def order(calls: tuple[Frame, ...]) -> tuple[bool, bool, int]:
        is_main = any(stack.thread == MAIN_THREAD for _, stack in at[calls])
        return not is_main, not calls or calls[-1].file.endswith(_WAITS), -len(at[calls])

    for calls in sorted(at, key=order):
        found = at[calls]
        names = ", ".join(dict.fromkeys(stack.thread for _, stack in found))
        processes = list({id(each): each for each, _ in found}.values())
        who = f"{_all(processes)}: " if len(last.processes) > 1 else ""
        lasted = _lasted(*found)
        is_idle = not calls or calls[-1].file.endswith(_WAITS)
        yield DocumentSection(one_line(f"{who}{names}"), (_frames(calls, base),), lasted, is_idle)


def _steps(last: LastSteps) -> Iterator[DocumentSection]:
    """The last steps of each process."""
    columns = columns_of("step", ("time", "waiting for data"))
    for each in last.processes:
        rows: list[tuple[Cell, ...]] = [
            (
                name_of(format_count(step.number)),
                "-" if step.dur_ns is None else format_ns(step.dur_ns),
                "-" if step.data_wait_ns is None else format_ns(step.data_wait_ns),
            )
            for step in each.steps[-_MAX_STEPS:]
        ]
        title = f"Last steps of {_who(each)}"
        yield from table_section((title, ""), columns, rows, is_detail=len(last.processes) > 1)


def _memory(last: LastSteps) -> Iterator[DocumentSection]:
    """Memory over the recorded time of each process, to its end."""
    columns = columns_of("before the end", ("host", "allocated on devices", "reserved"))
    for each in last.processes:
        n = len(each.memory)
        chosen = sorted({round(i * (n - 1) / (_MAX_MEMORY - 1)) for i in range(_MAX_MEMORY)})
        rows: list[tuple[Cell, ...]] = [
            (
                name_of(format_ns(each.last_ns - one.time_ns)),
                *(
                    "-" if size is None else format_bytes(size)
                    for size in (one.host_rss_bytes, one.allocated_bytes, one.reserved_bytes)
                ),
            )
            for one in (each.memory[place] for place in chosen if 0 <= place < n)
        ]
        title = f"Memory of {_who(each)}"
        yield from table_section((title, ""), columns, rows, is_detail=len(last.processes) > 1)
