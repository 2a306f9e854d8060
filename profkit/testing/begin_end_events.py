"""Complete events as begins and ends."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from profkit.model.torch_names import MEMORY
from profkit.testing.event_recorder import Event


def as_edges(events: Iterable[Event]) -> list[Event]:
    """Write every event that lasts as a begin (``B``) and an end (``E``).

    The events of a thread come in the order of time, as the format asks for. The begin and the end
    have every other argument each.

    Args:
        events: The events. Moments stay as they are.

    Raises:
        ValueError: Two events of one thread overlap, and neither is within the other.

    Source: Trace Event Format, "Duration Events".
    """
    written: list[Event] = []
    lanes: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        if event.dur_ns is None or event.name == MEMORY:
            written.append(event)
        else:
            lanes.setdefault((event.pid, event.tid), []).append(event)
    for lasting in lanes.values():
        written += _nested(sorted(lasting, key=lambda e: (e.ts_ns, -_end_ns(e))))
    return written


def _nested(events: list[Event]) -> Iterator[Event]:
    """The edges of one thread, whose events come ordered by start, the longer first."""
    begun: list[Event] = []
    for event in events:
        while begun and _end_ns(begun[-1]) <= event.ts_ns:
            yield _edge(begun.pop(), "E")
        if begun and _end_ns(event) > _end_ns(begun[-1]):
            raise ValueError(f"{event.name!r} begins within {begun[-1].name!r} and ends after it.")
        yield _edge(event, "B")
        begun.append(event)
    while begun:
        yield _edge(begun.pop(), "E")


def _end_ns(event: Event) -> int:
    return event.ts_ns + (event.dur_ns or 0)


def _edge(event: Event, ph: str) -> Event:
    """The begin with the first, third and so on of its arguments; the end with the others."""
    mine = list((event.args or {}).items())[0 if ph == "B" else 1 :: 2]
    ts_ns = event.ts_ns if ph == "B" else _end_ns(event)
    return replace(event, ph=ph, ts_ns=ts_ns, dur_ns=None, args=dict(mine))
