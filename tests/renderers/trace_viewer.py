"""The rules of trace viewers: an event that breaks one is dropped or drawn wrongly.

After "Trace Event Format", and what the importers of Chrome (catapult's ``trace_event_importer``)
and Perfetto (``json_trace_parser``) require: events are ordered by time, the slices of a thread
must nest, begins and ends must balance, an arrow's ends must lie in slices, counters are numbers.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

Event = dict[str, Any]
Slice = tuple[Decimal, Decimal]
PHASES = set("XBEiICMstfbenPNODSTpFvRca()g")


def events_of(text: bytes) -> list[Event]:
    """Return the events of a trace, times as exact decimals."""
    tree = json.loads(text, parse_float=Decimal, parse_constant=_refused)
    events = tree if isinstance(tree, list) else tree["traceEvents"]
    assert all(isinstance(event, dict) for event in events)
    return list(events)


def _refused(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def ours(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.get("cat") == "profkit"]


def slices_by_thread(events: Iterable[Event]) -> dict[tuple[str, str], list[Slice]]:
    slices: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    begun: dict[tuple[str, str], list[Decimal]] = defaultdict(list)
    # Only complete events are checked: the recording itself may be damaged.
    timed = [event for event in events if {"ph", "ts", "pid", "tid"} <= event.keys()]
    for event in sorted(timed, key=lambda event: Decimal(event["ts"])):
        at, place = Decimal(event["ts"]), (str(event["pid"]), str(event["tid"]))
        if event["ph"] == "X":
            slices[place].append((at, at + Decimal(event.get("dur", 0))))
        elif event["ph"] == "B":
            begun[place].append(at)
        elif event["ph"] == "E" and begun[place]:
            slices[place].append((begun[place].pop(), at))
    return slices


def check(events: list[Event]) -> None:
    """All that a viewer expects of the events that profkit added."""
    added = ours(events)
    for event in added:
        assert event["ph"] in PHASES
        assert event["name"]
        assert isinstance(event["pid"], int | str)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int | Decimal)
        if event["ph"] == "C":
            assert all(isinstance(argument, int | Decimal) for argument in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0
    _slices_nest(added)
    _arrows_are_bound(events, added)
    _rows_are_named_once(added)


def _slices_nest(added: list[Event]) -> None:
    for slices in slices_by_thread(added).values():
        # Outer slices come first in the file, and the order of equal starts is the file's.
        around: list[Decimal] = []
        for start, end in sorted(slices, key=lambda span: span[0]):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def _arrows_are_bound(events: list[Event], added: list[Event]) -> None:
    every = slices_by_thread(events)
    begins = {event["id"]: event for event in added if event["ph"] == "s"}
    ends = [event for event in added if event["ph"] == "f"]
    other_flows = {e.get("id") for e in events if e.get("ph") in {"s", "t", "f"} and e not in added}
    assert sorted(begins) == sorted(event["id"] for event in ends)
    assert not other_flows & begins.keys()
    for end in ends:
        assert end["bp"] == "e"
        for edge in (begins[end["id"]], end):
            thread = every[str(edge["pid"]), str(edge["tid"])]
            at = Decimal(edge["ts"])
            assert any(start <= at < stop or start == at for start, stop in thread)


def _rows_are_named_once(added: list[Event]) -> None:
    named = [
        (event["name"], event["pid"], event.get("tid")) for event in added if event["ph"] == "M"
    ]
    assert len(named) == len(set(named))
    (process,) = {event["pid"] for event in added if event["ph"] == "M"}
    threads = {tid for name, _, tid in named if name == "thread_name"}
    drawn = {e["tid"] for e in added if e["ph"] == "X"}
    assert all(event["pid"] == process for event in added if event["ph"] in "XC")
    assert drawn <= threads
