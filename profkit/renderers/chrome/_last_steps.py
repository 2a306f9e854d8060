"""The last steps of a program as a trace: steps, sampled stacks, and memory over time."""

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from profkit.model.last_steps import LastSteps, ProcessEnd, ThreadStack
from profkit.model.location import Frame

_STEPS_TID = 0


def write_last_steps(last: LastSteps) -> Iterator[bytes]:
    """Write the trace as JSON, piece by piece."""
    origin_ns = min((process.began_ns for process in last.processes), default=0)
    events = (
        _make_relative(event, origin_ns)
        for process in last.processes
        for event in _build_events(process)
    )
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    yield b",\n".join(json.dumps(event).encode() for event in events)
    yield b"\n]}\n"


def _build_events(process: ProcessEnd) -> Iterator[dict[str, Any]]:
    pid = process.pid if process.rank is None else process.rank
    name = process.name if process.rank is None else f"rank {process.rank}"
    yield _named("process_name", pid, _STEPS_TID, name)
    yield _named("thread_name", pid, _STEPS_TID, "steps")
    for step in process.steps:
        if step.begin_ns is not None:
            yield _slice(f"step {step.number}", step.begin_ns, step.end_ns, (pid, _STEPS_TID))

    idents = dict.fromkeys(stack.ident for stack in process.stacks)
    for tid, ident in enumerate(idents, start=_STEPS_TID + 1):
        stacks = [stack for stack in process.stacks if stack.ident == ident]
        yield _named("thread_name", pid, tid, stacks[-1].thread)
        for frame, begin_ns, end_ns in _find_calls(stacks):
            name = f"{frame.function} ({frame.file}:{frame.line})"
            yield _slice(name, begin_ns, end_ns, (pid, tid))

    yield from _build_counters(process, pid)


def _find_calls(stacks: Sequence[ThreadStack]) -> Iterator[tuple[Frame, int, int]]:
    """Return frames of a thread with their begin and end: a stack lasts until the next sample."""
    running: list[tuple[Frame, int]] = []
    for stack in stacks:
        # The outer frames that two samples share are the same calls; the inner ones have ended.
        pairs = zip(running, stack.calls, strict=False)
        n_shared = sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs))
        yield from ((*call, stack.first_ns) for call in running[n_shared:])
        running[n_shared:] = [(frame, stack.first_ns) for frame in stack.calls[n_shared:]]

    yield from ((*call, stacks[-1].last_ns) for call in running)


def _build_counters(process: ProcessEnd, pid: int) -> Iterator[dict[str, Any]]:
    for memory in process.memory:
        sizes = {
            "resident memory": memory.host_rss_bytes,
            "allocated on devices": memory.allocated_bytes,
            "reserved on devices": memory.reserved_bytes,
        }
        for kind, size in sizes.items():
            if size is not None:
                counter = {"ph": "C", "name": kind, "pid": pid, "args": {"bytes": size}}
                yield {**counter, "ts": memory.time_ns}


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, begin_ns: int, end_ns: int, row: tuple[int, int]) -> dict[str, Any]:
    pid, tid = row
    return {
        "ph": "X", "cat": "profkit", "name": name, "pid": pid, "tid": tid, "ts": begin_ns,
        "dur": end_ns - begin_ns,
    }  # fmt: skip


def _make_relative(event: dict[str, Any], origin_ns: int) -> dict[str, Any]:
    """Return an event with times in microseconds from the origin."""
    if "ts" in event:
        event["ts"] = (event["ts"] - origin_ns) / 1000
    if "dur" in event:
        event["dur"] /= 1000
    return event
