"""The last steps of a program's processes as a document."""

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
"""A thread whose innermost frame is in one of these files waits for work."""


def build_last_steps_document(last: LastSteps, options: ReadersOptions) -> Document:
    """Build the document of the last steps of a program's processes."""
    processes = last.processes
    versions = dict.fromkeys(f"torch {process.torch}" for process in processes if process.torch)
    hosts = dict.fromkeys(process.host for process in processes)
    command = " ".join(processes[0].argv)
    return Document(
        title="profkit: last steps",
        program=f"profkit {one_line(last.profkit)}",
        paths=tuple(one_line(short_path(process.path, options.base)) for process in processes),
        origin=tuple(map(one_line, [*hosts, *versions, command])),
        headline=one_line(" ".join(_describe_end(last, options.base))),
        sections=(
            *_build_processes(last, options.base),
            *_build_errors(last, options.base),
            *_build_threads(last, options.base),
            *_build_steps(last),
            *_build_memory(last),
            *list_section("Not read", last.unread, is_detail=False),
        ),
    )


def _who(process: ProcessEnd) -> str:
    return f"process {process.pid}" if process.rank is None else f"rank {process.rank}"


def _describe_end(last: LastSteps, base: str) -> Iterator[str]:
    """Say how the first process that did not end normally ended, and after which step."""
    # The process that failed by itself comes first: others wait for it, or are killed.
    order = ("exception", "signal", "killed", "running", "ended")
    first = min(last.processes, key=lambda process: (order.index(process.state), process.last_ns))
    who = _who(first)
    yield f"{who[:1].upper()}{who[1:]} {_end_text(first)}"
    why = "it was killed, crashed, or called `os._exit`" if first.state == "killed" else ""
    yield f"{_after(first)}{': ' if why else ''}{why}."

    main = _main_stack(first)
    if main is not None and first.state != "exception":
        yield f"Its main thread was at {_place(main, base)}, {_lasted((first, main))}."

    n_others = len(last.processes) - 1
    if n_others:
        n_alike = sum(process.state == first.state for process in last.processes) - 1
        total = counted(n_others, "other process", "other processes")
        yield f"{n_alike} of {total} ended alike."


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
    # The last sample can be older than the end of the last step.
    ago_ns = max(0, process.last_ns - process.steps[-1].end_ns)
    ago = format_ns(ago_ns) if ago_ns else "right"
    return f"{ago} after the end of step {format_count(process.n_steps)}"


def _main_stack(process: ProcessEnd) -> ThreadStack | None:
    return next((stack for stack in process.last_stacks if stack.thread == MAIN_THREAD), None)


def _lasted(*stacks: tuple[ProcessEnd, ThreadStack]) -> str:
    """Return ``for 34.2 s``, as far as samples show: a step that ended meanwhile left the place."""
    lasted_ns = min(stack.last_ns - stack.first_ns for _, stack in stacks)
    if not lasted_ns:
        return "in the last sample"
    has_left = any(
        process.steps and process.steps[-1].end_ns > stack.first_ns for process, stack in stacks
    )
    return f"{'in all samples of the last' if has_left else 'for'} {format_ns(lasted_ns)}"


def _place(stack: ThreadStack, base: str) -> str:
    """Return the innermost frame of the program itself, or of any library."""
    # The author of the program can change its lines, but not those of libraries.
    program_calls = [call for call in stack.calls if not _is_library(call.file)]
    frame = (program_calls or [*stack.calls])[-1:]
    return f"{_line(frame[0], base)} ({frame[0].function})" if frame else "a line that is not known"


def _is_library(file: str) -> bool:
    return "site-packages" in file or "/lib/python" in file or file.startswith("<")


def _line(frame: Frame, base: str) -> str:
    path = short_path(frame.file, base)
    return path if frame.line is None else f"{path}:{frame.line}"


def _build_processes(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    figures = ("steps", "step time", "since the last", "waiting for data")
    columns = columns_of("process", figures, ["end", "main thread"], "text")
    rows: list[tuple[Cell, ...]] = []
    for process in last.processes:
        main = _main_stack(process)
        times = [step.dur_ns for step in process.steps if step.dur_ns is not None]
        waits = sum(step.data_wait_ns or 0 for step in process.steps)
        since_ns = process.last_ns - process.steps[-1].end_ns if process.steps else None
        rows.append((
            name_of(_who(process)),
            format_count(process.n_steps),
            format_ns(statistics.median(times)) if times else "-",
            "-" if since_ns is None else format_ns(max(0, since_ns)),
            format_share(waits / sum(times)) if sum(times) else "-",
            one_line(_end_text(process)),
            "-" if main is None else one_line(f"{_place(main, base)}, {_lasted((process, main))}"),
        ))  # fmt: skip

    yield from table_section(("Processes", ""), columns, rows)


def _build_errors(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    """Yield each error once, with the ranks that raised it."""
    raised: dict[tuple[str, str, tuple[Frame, ...]], list[ProcessEnd]] = {}
    for process in last.processes:
        error = process.error
        if error is not None and process.state == "exception":
            raised.setdefault((error.type, error.message, error.calls), []).append(process)

    for (type_, message, calls), processes in raised.items():
        blocks = (
            Paragraph(one_line(f"{type_}: {message}" if message else type_)),
            _frames(calls, base),
        )
        yield DocumentSection(f"Exception of {_join_names(processes)}", blocks)


def _join_names(processes: Sequence[ProcessEnd]) -> str:
    ranks = sorted(process.rank for process in processes if process.rank is not None)
    return the_ranks(ranks) if len(ranks) == len(processes) else ", ".join(map(_who, processes))


def _frames(calls: Sequence[Frame], base: str) -> CodeBlock:
    """Return the innermost frames, the innermost last, as Python prints them."""
    shown = calls[-_MAX_FRAMES:]
    hidden = [f"… {counted(len(calls) - len(shown), 'outer frame')}"] if shown != calls else []
    lines = (one_line(f"{_line(frame, base)}  {frame.function}") for frame in shown)
    return CodeBlock((*hidden, *lines))


def _build_threads(last: LastSteps, base: str) -> Iterator[DocumentSection]:
    """Yield the stacks at the last sample; threads at the same place share a section."""
    by_calls: dict[tuple[Frame, ...], list[tuple[ProcessEnd, ThreadStack]]] = {}
    for process in last.processes:
        for stack in process.last_stacks:
            by_calls.setdefault(stack.calls, []).append((process, stack))

    def is_idle(calls: tuple[Frame, ...]) -> bool:
        return not calls or calls[-1].file.endswith(_WAITS)

    # Main threads come first, and threads that wait for work last.
    def order(calls: tuple[Frame, ...]) -> tuple[bool, bool, int]:
        is_main = any(stack.thread == MAIN_THREAD for _, stack in by_calls[calls])
        return not is_main, is_idle(calls), -len(by_calls[calls])

    for calls in sorted(by_calls, key=order):
        stacks = by_calls[calls]
        names = ", ".join(dict.fromkeys(stack.thread for _, stack in stacks))
        processes = list({id(process): process for process, _ in stacks}.values())
        who = f"{_join_names(processes)}: " if len(last.processes) > 1 else ""
        title, blocks = one_line(f"{who}{names}"), (_frames(calls, base),)
        yield DocumentSection(title, blocks, _lasted(*stacks), is_idle(calls))


def _build_steps(last: LastSteps) -> Iterator[DocumentSection]:
    """Yield the last steps of process process."""
    columns = columns_of("step", ("time", "waiting for data"))
    for process in last.processes:
        rows: list[tuple[Cell, ...]] = [
            (
                name_of(format_count(step.number)),
                "-" if step.dur_ns is None else format_ns(step.dur_ns),
                "-" if step.data_wait_ns is None else format_ns(step.data_wait_ns),
            )
            for step in process.steps[-_MAX_STEPS:]
        ]
        title = f"Last steps of {_who(process)}"
        yield from table_section((title, ""), columns, rows, is_detail=len(last.processes) > 1)


def _build_memory(last: LastSteps) -> Iterator[DocumentSection]:
    """Yield the memory over the recorded time of each process, to its end."""
    columns = columns_of("before the end", ("host", "allocated on devices", "reserved"))
    for process in last.processes:
        n = len(process.memory)
        # Few samples are shown, spread evenly over the recorded time.
        places = sorted({round(i * (n - 1) / (_MAX_MEMORY - 1)) for i in range(_MAX_MEMORY)})
        samples = (process.memory[place] for place in places if 0 <= place < n)
        rows: list[tuple[Cell, ...]] = [
            (
                name_of(format_ns(process.last_ns - sample.time_ns)),
                *(
                    "-" if size is None else format_bytes(size)
                    for size in (
                        sample.host_rss_bytes,
                        sample.allocated_bytes,
                        sample.reserved_bytes,
                    )
                ),
            )
            for sample in samples
        ]

        title = f"Memory of {_who(process)}"
        yield from table_section((title, ""), columns, rows, is_detail=len(last.processes) > 1)
