"""Sentences on a collective that ranks are blocked in."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from profkit.engine.wording import the_group, the_ranks
from profkit.index.ranks.blocked import BlockedCollective, user_frame
from profkit.index.ranks.collectives import collective_kind
from profkit.index.ranks.flight import peers_of
from profkit.model.finding import EvidenceValue
from profkit.model.flight_record import FlightRecord, RecordedCall
from profkit.model.location import Location
from profkit.names import visible
from profkit.units import format_count, format_ns

FIXES: Final = {
    "absent": "Let all ranks of the group reach the collective: no branch, exception or number of "
    "batches may depend on the rank.",
    "different": "All ranks of a group must call the same collectives, with the same sizes. Remove "
    "the branch that depends on the rank or its data.",
    "stuck": "The ranks agree, so look at the network, the GPUs and the logs of NCCL "
    "(`NCCL_DEBUG=INFO`), first of the ranks on which it has not started.",
    "waiting": "Analyze the dumps of all ranks together: those that did not call it are named.",
}


def describe(blocked: BlockedCollective, records: Mapping[int, FlightRecord]) -> str:
    """Return two sentences: which ranks wait in which collective, and what the others have done.

    Args:
        records: The last dump of each rank.
    """
    group = the_group(blocked.group, sorted({*blocked.called, *blocked.absent}))
    if blocked.reason == "different":
        told = [f"{the_ranks(ranks)}: {what}" for what, ranks in _by_call(blocked.called)]
        number = blocked.first_call.seq
        return f"Ranks of {group} disagree on collective {number}: {'; '.join(told)}."

    waiting = the_ranks(sorted(blocked.called))
    verb = "waits" if len(blocked.called) == 1 else "wait"
    since = "" if not blocked.waited_ns else f" for {format_ns(blocked.waited_ns)}"
    what = f"{_call(blocked.first_call, blocked)} of {group}"
    text = f"{waiting[0].upper()}{waiting[1:]} {verb}{since} in {what}"

    if blocked.reason == "absent":
        have = "has" if len(blocked.absent) == 1 else "have"
        text += f", which {the_ranks(blocked.absent)} {have} not called"
        return f"{text}. {' '.join(_absent(blocked, records))}"
    if blocked.reason == "waiting":
        return f"{text}. The other ranks of the group have no dump."

    told = [
        f"{progress} on {the_ranks(ranks)}"
        for progress in ("completed", "started", "scheduled")
        if (ranks := [r for r, call in sorted(blocked.called.items()) if call.progress == progress])
    ]
    return f"{text} until it timed out, although all have called it alike: {', '.join(told)}."


def find_locations(blocked: BlockedCollective) -> tuple[Location, ...]:
    """Return where ranks call it, and where ranks that do not have called the one before."""
    places: dict[Location, None] = {}
    for calls in (blocked.called, blocked.last):
        for call in calls.values():
            frame = user_frame(call)
            if frame is not None:
                places.setdefault(frame.location)
    return tuple(places) or (Location(op=blocked.first_call.name),)


def collect_evidence(
    blocked: BlockedCollective, others: Sequence[BlockedCollective]
) -> dict[str, EvidenceValue]:
    """Return the facts that the finding is based on.

    Args:
        others: Collectives of other groups that ranks are blocked in.
    """
    call = blocked.first_call
    facts: dict[str, EvidenceValue] = {
        "group": blocked.group.name,
        "number": call.seq,
        "waited_ns": blocked.waited_ns,
        "absent": list(blocked.absent),
        "other_groups": [waiting.group.name for waiting in others],
    }

    for progress in ("scheduled", "started", "completed"):
        facts[progress] = [r for r, call in blocked.called.items() if call.progress == progress]
    return facts


def _absent(blocked: BlockedCollective, records: Mapping[int, FlightRecord]) -> Iterator[str]:
    """Describe the last call of each absent rank."""
    told: dict[str, list[int]] = defaultdict(list)
    for rank in blocked.absent:
        last, record = blocked.last.get(rank), records.get(rank)
        before = "none of the group" if last is None else f"{_call(last, blocked)} last"
        text = f"called {before}"
        if record is not None and record.is_end:
            stopped = visible(record.stopped_by)
            text += f", and ended with {stopped}" if stopped else ", and ended"
        told[text].append(rank)

    for text, ranks in told.items():
        named = the_ranks(ranks)
        yield f"{named[0].upper()}{named[1:]} {text}."


def _by_call(called: Mapping[int, RecordedCall]) -> list[tuple[str, list[int]]]:
    """Group ranks by their call, the call of most ranks first."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(called.items()):
        ranks[f"{_what(call)}{_at(call)}"].append(rank)
    return sorted(ranks.items(), key=lambda pair: (-len(pair[1]), pair[1]))


def _call(call: RecordedCall, blocked: BlockedCollective) -> str:
    """``all-reduce 17 (1,000 Float) at train.py:41``."""
    kind = collective_kind(call.name)
    if call.is_p2p:
        peers = peers_of(call, blocked.group)
        between = f" from rank {peers[0]} to rank {peers[1]}" if peers else ""
        return f"a {kind}{between}{_at(call)}"
    number = "" if call.seq is None else f" {call.seq}"
    return f"{kind}{number}{_at(call)}"


def _what(call: RecordedCall) -> str:
    """``all-reduce of 1,000 Float``."""
    kind = collective_kind(call.name)
    n = call.n_out if kind == "all-gather" else call.n_in
    return f"{kind} of {format_count(n)} {visible(call.element_type)}" if n else kind


def _at(call: RecordedCall) -> str:
    frame = user_frame(call)
    return "" if frame is None else f" at {visible(frame.location.place)}"
