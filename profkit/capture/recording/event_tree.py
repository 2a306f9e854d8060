"""Searches torch's event tree of a stopped recording."""

from collections.abc import Container, Iterator
from typing import Any


def find_left_open(roots: list[Any], stopped_at_ns: int, closed: Container[str]) -> Iterator[str]:
    """Find the operators and regions of the program that were open when its recording stopped.

    torch gives them the end of what they are in: a Python call that may have returned, such as
    ``__enter__``, or a region that is closed although what began in it is not; otherwise the time
    of the stop. That is the system's time. All others are converted from the processor's counter,
    and may be off by a millisecond. What is within an operator of the program is closed if that is.
    torch 2.11 instead gives those without an end in a Python call the lowest integer.

    Args:
        roots: The event tree.
        stopped_at_ns: The system's time before the stop.
        closed: Names of regions that are closed, whatever is still open in them.

    Yields:
        Their names.
    """
    from torch._C._profiler import _EventType

    calls = (_EventType.PyCall, _EventType.PyCCall)
    pending = [(event, stopped_at_ns, False) for event in roots]
    while pending:
        event, outer_end_ns, is_within = pending.pop()
        is_op, end_ns = event.tag == _EventType.TorchOp, event.end_time_ns

        has_end_of_outer = end_ns == outer_end_ns if is_within else end_ns >= stopped_at_ns
        is_open = is_op and (has_end_of_outer or end_ns < 0)
        if is_open and (is_within or event.name not in closed):
            yield event.name

        # What is within a closed operator of the program is closed too, and is not searched.
        if is_open or event.tag in calls or (is_op and event.name in closed):
            pending += [(child, end_ns, True) for child in event.children]


def sum_operators_ns(roots: list[Any], closed: Container[str]) -> int:
    """Return the time that the thread of some regions has spent in operators.

    Regions have no time of their own: what is in them counts.

    Args:
        roots: The event tree.
        closed: Names of regions, of which the first one in the tree tells the thread.
    """
    from torch._C._profiler import RecordScope

    thread = next((event.start_tid for event in roots if event.name in closed), None)
    total_ns, pending = 0, list(roots)
    while pending:
        event = pending.pop()
        if event.start_tid != thread:
            continue

        # Events that are no operators, such as allocations, have no scope.
        scope = getattr(event.typed[1], "scope", None)
        if scope == RecordScope.USER_SCOPE:
            pending += event.children
        elif scope is not None:
            total_ns += event.duration_time_ns
    return total_ns


def count(roots: list[Any]) -> int:
    """Return the number of events.

    Args:
        roots: The event tree.
    """
    n_events, pending = 0, list(roots)
    while pending:
        n_events += len(pending)
        pending = [child for event in pending for child in event.children]
    return n_events
