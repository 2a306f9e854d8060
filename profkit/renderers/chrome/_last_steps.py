"""The last steps of a program as a trace: steps, sampled stacks, and memory over time."""

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from profkit.model.last_steps import LastSteps, ProcessEnd, ThreadStack
from profkit.model.location import Frame

_STEPS_TID = 0


def last_steps_pieces(last: LastSteps) -> Iterator[bytes]:
    """The trace as JSON, piece by piece."""
    origin_ns = min((each.began_ns for each in last.processes), default=0)
    events = (_relative(event, origin_ns) for each in last.processes for event in _events(each))
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    yield b",\n".join(json.dumps(event).encode() for event in events)
    yield b"\n]}\n"


def _events(process: ProcessEnd) -> Iterator[dict[str, Any]]:
    pid = process.pid if process.rank is None else process.rank
    name = process.name if process.rank is None else f"rank {process.rank}"
    yield _named("process_name", pid, _STEPS_TID, name)
    yield _named("thread_name", pid, _STEPS_TID, "steps")
    for step in process.steps:
        if step.begin_ns is not None:
            yield _slice(f"step {step.number}", step.begin_ns, step.end_ns, (pid, _STEPS_TID))
    idents = dict.fromkeys(each.ident for each in process.stacks)
    for tid, ident in enumerate(idents, start=_STEPS_TID + 1):
        own = [each for each in process.stacks if each.ident == ident]
        yield _named("thread_name", pid, tid, own[-1].thread)
        for frame, begin_ns, end_ns in _calls(own):
            name = f"{frame.function} ({frame.file}:{frame.line})"
            yield _slice(name, begin_ns, end_ns, (pid, tid))
    yield from _counters(process, pid)


def _calls(stacks: Sequence[ThreadStack]) -> Iterator[tuple[Frame, int, int]]:
    """Frames of a thread with their begin and end; a stack lasts until the next one was seen."""
    begun: list[tuple[Frame, int]] = []
    for stack in stacks:
        same = zip(begun, stack.calls, strict=False)
        n_same = sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1], same))
        yield from ((*call, stack.first_ns) for call in begun[n_same:])
        begun[n_same:] = [(frame, stack.first_ns) for frame in stack.calls[n_same:]]
    yield from ((*call, stacks[-1].last_ns) for call in begun)


def _counters(process: ProcessEnd, pid: int) -> Iterator[dict[str, Any]]:
    for memory in process.memory:
        known = {
            "resident memory": memory.host_rss_bytes,
            "allocated on devices": memory.allocated_bytes,
            "reserved on devices": memory.reserved_bytes,
        }
        for kind, size in known.items():
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


def _relative(event: dict[str, Any], origin_ns: int) -> dict[str, Any]:
    """An event with times in microseconds from the begin."""
    if "ts" in event:
        event["ts"] = (event["ts"] - origin_ns) / 1000
    if "dur" in event:
        event["dur"] /= 1000
    return event
