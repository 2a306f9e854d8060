"""A second model of a recording: threads and streams simulated event by event, from raw JSON.

It is slow, plain Python, and shares no code with the package. Its definitions:

- A thread does what it did in the recording, one thing after another, and spends the same time in
  between. Threads begin when they began.
- A stream runs its work in order. Work begins when it was submitted, the work before it has ended,
  and the work on another stream that it waits for has ended: after the latest of these, each with
  its usual latency, plus what it took longer (or less) in the recording.
- A blocking call returns when the work that it waits for has ended, plus its recorded latency, but
  not before it had the time of a call that need not wait.
- The main thread waits for another one (the backward pass) that is active for most of a pause, and
  for threads that are active only in its pauses (replicas) if they are for most of one. Of these, a
  thread that begins after others have ended waits for them.
- If the program waited for two batches of worker processes in a row, the second arrives as long
  after the first as recorded.
- Within a blocking call, and between the kernels of one graph, a device that seems idle works on
  something that was not recorded.
"""

import gzip
import heapq
import json
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

Key = tuple[str, int]
"""Name and start of an event, in nanoseconds."""
Thread = tuple[str, str]
Stream = tuple[str, str]

CLOCK_ERROR = 5_000
SHORT = 20_000
RETURN_LIMIT = 200_000
SUBMIT = 5_000
BATCH_READY = 1_000_000
READY_SHARE = 0.1
"""A batch that the program waited for less of its pace is not late."""
CALLS = {"cuda_runtime", "runtime", "cuda_driver", "mtia_runtime"}
HOST = {"cpu_op", "operator", "user_annotation", "python_function", *CALLS}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
WORKERS = "enumerate(DataLoader)#_MultiProcessing"
MARKS = ("ProfilerStep", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)")


@dataclass(eq=False)
class Span:
    """An event with a duration."""

    cat: str
    name: str
    begin: int
    end: int
    where: tuple[str, str]
    args: dict[str, Any]

    @property
    def key(self) -> Key:
        return self.name, self.begin

    @property
    def dur(self) -> int:
        return self.end - self.begin


@dataclass(eq=False)
class Work:
    """Device work, and what it waits for."""

    span: Span
    submitted: int | None = None
    call: Span | None = None
    before: "Work | None" = None
    waited_for: "Work | None" = None
    extra: int = 0
    missing: int = 0
    followers: list["Work"] = field(default_factory=list)


@dataclass(eq=False)
class Wait:
    """A blocking call, and what it waits for."""

    span: Span
    works: list[Work]
    extra: int = 0
    waited: bool = False


@dataclass(eq=False)
class Action:
    """What a thread does at a moment; actions at one moment follow ``order``."""

    at: int
    order: int
    do: str
    thing: Any = None


class Simulation:
    """A recording that can be run again with changes.

    Args:
        source: A file, or the text of a trace.
        ignored: Blocking calls of the profiler, which may take long without device work.
    """

    def __init__(self, source: Path | bytes, ignored: Collection[Key] = ()) -> None:
        spans = list(_read_spans(source))
        self.host = sorted(
            (span for span in spans if span.cat in HOST), key=lambda s: (s.begin, -s.end)
        )
        self.calls = [span for span in self.host if span.cat in CALLS]
        self.works = self._build_works([span for span in spans if span.cat in DEVICE])
        self.overhead = [span for span in spans if span.cat == "overhead"]
        self.waits = self._find_waits()
        self._measure_latencies()
        hidden = self._find_unrecorded(ignored)

        if hidden:
            self.works += hidden
            self.waits = self._find_waits()
        self._order_streams()
        self._extras()
        self.actions = self._build_actions()

    # What happened

    def _build_works(self, spans: list[Span]) -> list[Work]:
        by_correlation: dict[Any, Span] = {}
        for call in self.calls:
            if not _is_sync(call.name) and "correlation" in call.args:
                by_correlation.setdefault(call.args["correlation"], call)

        works = [
            Work(span, call=by_correlation.get(span.args.get("correlation"))) for span in spans
        ]
        works.sort(key=lambda work: work.span.begin)
        last: dict[Stream, Work] = {}
        for work in works:
            before, launch = last.get(work.span.where), work.call
            if launch is not None:
                queued = (
                    "cpy" in work.span.cat and before is not None and before.span.end > launch.begin
                )
                if launch.end <= work.span.begin:
                    work.submitted = launch.end
                elif queued:
                    work.submitted = launch.begin
                else:
                    work.submitted = max(launch.begin, work.span.begin - SUBMIT)
            last[work.span.where] = work

        return works

    def _find_waits(self) -> list[Wait]:
        work_of_call = {id(work.call): work for work in self.works if work.call is not None}
        blocking = []
        reached: dict[Thread, int] = {}

        for call in self.calls:
            copy = work_of_call.get(id(call))
            if call.begin < reached.get(call.where, -1) or not _blocks(call, copy):
                continue
            reached[call.where] = call.end
            blocking.append((call, copy))
        streams: dict[Stream, list[Work]] = defaultdict(list)
        for work in self.works:
            streams[work.span.where].append(work)
        for queue in streams.values():
            queue.sort(key=lambda work: work.span.begin)
        waits = []
        for call, copy in blocking:
            limit = call.end + CLOCK_ERROR
            if copy is not None and copy.span.end <= limit:
                is_within = copy.submitted is not None and copy.submitted < call.end
                targets = [copy] if is_within else []
            else:
                targets = []
                for queue in streams.values():
                    issued = [w for w in queue if w.submitted is None or w.submitted <= call.begin]
                    ended = [w for w in issued if w.span.end <= limit]
                    anywhere = "Stream" not in call.name and "Memcpy" not in call.name
                    if ended and (anywhere or ended[-1] is issued[-1]):
                        targets.append(ended[-1])
                if "DeviceSync" not in call.name and targets:
                    targets = [max(targets, key=lambda work: work.span.end)]
            wait = Wait(call, targets)
            wait.waited = any(work.span.end > call.begin for work in targets)
            waits.append(wait)

        return waits

    def _measure_latencies(self) -> None:
        last: dict[Stream, Work] = {}
        alone, queued, certain = [], [], []
        ended = sorted(work.span.end for work in self.works)

        for work in self.works:
            before = last.get(work.span.where)
            free = before.span.end if before else -1
            if work.submitted is not None:
                if free < work.submitted:
                    alone.append(work.span.begin - work.submitted)
                elif work.submitted + SHORT < free:
                    queued.append(work.span.begin - free)
                    # Else it may have waited for another stream's work that ended by then.
                    if bisect_right(ended, work.span.begin) == bisect_right(ended, free):
                        certain.append(queued[-1])
            last[work.span.where] = work
        self.launching = _middle(alone, SUBMIT, SHORT)
        self.switching = _middle(certain or queued, 1_000, SHORT)
        late, free_calls = defaultdict(list), defaultdict(list)
        for wait in self.waits:
            if wait.waited:
                ends = max(work.span.end for work in wait.works)
                late[wait.span.name].append(wait.span.end - ends)
            elif _is_sync(wait.span.name):
                free_calls[wait.span.name].append(wait.span.dur)

        names = {wait.span.name for wait in self.waits}
        self.returning = {name: _middle(late[name], SUBMIT, RETURN_LIMIT) for name in names}
        self.calling = {
            name: max(_middle(free_calls[name], 0, RETURN_LIMIT), self.returning[name])
            for name in names
        }

    def _find_unrecorded(self, ignored: Collection[Key]) -> list[Work]:
        """Idle time within blocking calls, as work on the stream that it delayed."""
        if not self.works:
            return []
        ordered = sorted(self.works, key=lambda work: work.span.begin)
        busy = _merged(
            [(w.span.begin, w.span.end) for w in ordered]
            + [(o.begin, o.end) for o in self.overhead]
        )
        hidden = []
        inside = []
        copies = {id(work.call): work for work in ordered if work.call is not None}

        for wait in self.waits:
            call = wait.span
            copy = copies.get(id(call))
            if call.key in ignored or (copy is not None and "HtoD" in copy.span.name):
                continue
            stop = call.end - self.returning[call.name]
            inside.append((call.begin, min(copy.span.begin, call.end) if copy else stop))
        in_calls = _minus(_merged(inside), busy)
        for begin, end in in_calls:
            if end - begin <= SHORT + self.launching:
                continue
            wait = [wait for wait in self.waits if wait.span.begin <= begin][-1]
            later = [work for work in ordered if work.span.begin >= end]
            stream = max(wait.works, key=lambda w: w.span.end).span.where if wait.works else None
            if later and later[0].span.begin - end < SHORT:
                submitted = later[0].submitted
                if submitted is None or submitted < begin:
                    stream = later[0].span.where
            stream = ordered[0].span.where if stream is None else stream
            hidden.append(Work(Span("kernel", "", begin, end, stream, {}), wait.span.begin))

        return hidden + self._find_gaps_within_graphs(
            _merged(busy + [(w.span.begin, w.span.end) for w in hidden])
        )

    def _find_gaps_within_graphs(self, busy: list[tuple[int, int]]) -> list[Work]:
        """Idle time between the kernels of one launch of a graph."""
        of_graphs = [w for w in self.works if w.call is not None and "GraphLaunch" in w.call.name]
        spans: dict[int, list[Work]] = defaultdict(list)
        for work in of_graphs:
            spans[id(work.call)].append(work)
        waits_in_graphs = []
        whole = _merged(
            (min(w.span.begin for w in works), max(w.span.end for w in works))
            for works in spans.values()
        )

        for begin, end in _minus(whole, busy):
            if end - begin > SHORT:
                later = min(
                    (w for w in of_graphs if w.span.begin >= end), key=lambda w: w.span.begin
                )
                place = Span("kernel", "", begin, end, later.span.where, {})
                waits_in_graphs.append(Work(place, later.submitted))

        return waits_in_graphs

    def _order_streams(self) -> None:  # noqa: C901  (one rule after another)
        self.works.sort(key=lambda work: work.span.begin)
        launches: dict[Thread, list[Work]] = defaultdict(list)
        last: dict[Stream, Work] = {}

        for work in self.works:
            work.before = last.get(work.span.where)
            last[work.span.where] = work
            if work.call is not None:
                launches[work.call.where].append(work)
        told: set[int] = set()
        for thread, works in launches.items():
            works.sort(key=lambda work: work.submitted or 0)
            submitted = [work.submitted or 0 for work in works]
            for call in self.calls:
                if call.where == thread and "StreamWaitEvent" in call.name:
                    place = bisect_left(submitted, call.end)
                    told.update(id(work) for work in works[place : place + 1])

        by_end = sorted(self.works, key=lambda work: work.span.end)
        ends = [work.span.end for work in by_end]
        for work in self.works:
            began = work.span.begin
            predecessor = None
            for place in range(bisect_right(ends, began + self.switching) - 1, -1, -1):
                candidate = by_end[place]
                if (
                    candidate.span.where != work.span.where
                    and candidate.span.begin < began
                    and (candidate.submitted or 0) <= (work.submitted or began)
                ):
                    predecessor = candidate
                    break
            if predecessor is None:
                continue
            ready = self._ready(work, {})
            late = predecessor.span.end > ready and began - ready > CLOCK_ERROR
            if id(work) in told or (late and began - predecessor.span.end <= SHORT):
                work.waited_for = predecessor

    def _ready(self, work: Work, ends: dict[int, int], submitted: int | None = None) -> int:
        """When work can begin, with the ends of other work and its submission, or as recorded."""
        moments = [-(1 << 60)]
        at = work.submitted if submitted is None else submitted
        if work.call is not None and at is not None:
            moments.append(at + self.launching)
        predecessors = [
            work_before for work_before in (work.before, work.waited_for) if work_before is not None
        ]
        moments += [
            ends.get(id(work_before), work_before.span.end) + self.switching
            for work_before in predecessors
        ]
        return max(moments)

    def _extras(self) -> None:
        for work in self.works:
            ready = self._ready(work, {})
            work.extra = work.span.begin - ready if ready > -(1 << 60) else 0
            for work_before in (work.before, work.waited_for):
                if work_before is not None:
                    work_before.followers.append(work)
        for wait in self.waits:
            wait.extra = wait.span.end - self._returns(wait, wait.span.begin, {})

    def _returns(self, wait: Wait, entered: int, ends: dict[int, int]) -> int:
        span = wait.span
        own_ns = min(self.calling[span.name], span.dur) if wait.waited else span.dur
        done = [ends.get(id(work), work.span.end) for work in wait.works]
        return max([entered + own_ns, *(end + self.returning[span.name] for end in done)])

    def _build_actions(self) -> dict[Thread, list[Action]]:
        waiting = {id(wait.span): wait for wait in self.waits}
        used = {s.where for s in self.host if s.cat in {"cpu_op", "operator"}}
        used |= {w.call.where for w in self.works if w.call} | {w.span.where for w in self.waits}
        used |= {s.where for s in self.host if s.name.startswith("ProfilerStep")}
        of_thread = {
            thread: [span for span in self.host if span.where == thread] for thread in used
        }
        actions: dict[Thread, list[Action]] = {}

        for thread, spans in of_thread.items():
            actions[thread] = listed = [
                Action(min(s.begin for s in spans), 0, "nothing"),
                Action(max(s.end for s in spans), 9, "nothing"),
            ]
            for span in spans:
                if wait := waiting.get(id(span)):
                    listed.append(Action(span.begin, 6 if span.dur else 1, "enter", wait))
                    listed.append(Action(span.end, 2, "leave", wait))
            fetches = [span for span in spans if span.name.startswith(WORKERS)]
            for former, span in pairwise(fetches):
                is_late = span.dur > READY_SHARE * (span.end - former.end)
                if former.dur > BATCH_READY < span.dur and is_late:
                    listed.append(Action(former.end, 2, "arrived", former))
                    listed.append(Action(span.begin, 6, "nothing"))
                    listed.append(Action(span.end, 2, "fetched", (former, span)))

        for work in self.works:
            if work.call is not None and work.submitted is not None:
                actions[work.call.where].append(Action(work.submitted, 5, "launch", work))
        self._add_handovers(of_thread, actions)
        for listed in actions.values():
            listed.sort(key=lambda action: (action.at, action.order))
        return actions

    def _add_handovers(
        self, of_thread: dict[Thread, list[Span]], actions: dict[Thread, list[Action]]
    ) -> None:
        if not of_thread:
            return
        marked: Callable[[Thread, tuple[str, ...]], int] = lambda thread, marks: sum(  # noqa: E731
            span.name.startswith(marks) for span in of_thread[thread]
        )
        length = {
            thread: max(s.end for s in spans) - min(s.begin for s in spans)
            for thread, spans in of_thread.items()
        }
        main = max(
            of_thread,
            key=lambda thread: (marked(thread, MARKS[:1]), marked(thread, MARKS), length[thread]),
        )
        bounds = _moments(of_thread[main])
        pauses = [(begin, end) for begin, end in pairwise(bounds) if end - begin > SHORT]
        in_pause: dict[tuple[int, int], list[tuple[int, int, Thread]]] = defaultdict(list)

        for thread, spans in of_thread.items():
            if thread == main:
                continue
            starts = sorted(span.begin for span in spans)
            stops = sorted(span.end for span in spans)
            active_pauses = []
            n_inside = 0
            for begin, end in pauses:
                inside = starts[bisect_left(starts, begin) : bisect_left(starts, end)]
                inside += stops[bisect_right(stops, begin) : bisect_right(stops, end)]
                n_inside += len(inside)
                if inside and min(inside) < max(inside):
                    active_pauses.append((begin, end, min(inside), max(inside)))
            helps_only = n_inside == 2 * len(spans)
            for begin, end, first, last in active_pauses:
                if helps_only or 2 * (last - first) >= end - begin:
                    in_pause[begin, end].append((first, last, thread))

        for pause, active in in_pause.items():
            busy = _merged([(first, last) for first, last, _ in active])
            if 2 * sum(last - first for first, last in busy) >= pause[1] - pause[0]:
                self._hand_over(main, pause, sorted(active), actions)

    @staticmethod
    def _hand_over(
        main: Thread,
        pause: tuple[int, int],
        active: list[tuple[int, int, Thread]],
        actions: dict[Thread, list[Action]],
    ) -> None:
        """Add a pause in which each group of threads starts at the end of the group before."""
        there = object()
        actions[main].append(Action(pause[0], 7, "call", there))
        waits_for, since = [there], pause[0]
        group: list[object] = []
        until = pause[0]
        for first, last, thread in active:
            if group and first >= until:
                waits_for, since, group = group, until, []
            back = object()
            group.append(back)
            until = max(until, last)
            actions[thread].append(Action(first, -1, "called", (waits_for, first - since)))
            actions[thread].append(Action(last, 7, "call", back))
        actions[main].append(Action(pause[1], -1, "called", (group, pause[1] - until)))

    # What would happen

    def run(
        self,
        *,
        removed: Collection[Key] = (),
        shorter: Collection[Key] = (),
        factor: float = 1.0,
    ) -> list[tuple[Key, int]]:
        """Run it again.

        Args:
            removed: Host events that no longer happen; a call does not wait.
            shorter: Device work whose duration is multiplied.
            factor: By how much.

        Returns:
            Keys and ends of all device work; names of threads, with ``-1``, and their ends.
        """
        return _Run(self, set(removed), set(shorter), factor).result()


class _Run:
    """One run: a heap of moments at which processes go on."""

    def __init__(
        self, recording: Simulation, removed: set[Key], shorter: set[Key], factor: float
    ) -> None:
        self.recording = recording
        self.removed, self.shorter, self.factor = removed, shorter, factor
        self.heap: list[tuple[int, int, Callable[[int], None]]] = []
        self.numbers = count()
        self.signals: dict[object, int] = {}
        self.listeners: dict[object, list[Callable[[int], None]]] = defaultdict(list)
        self.submitted: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.found: list[tuple[Key, int]] = []

    def result(self) -> list[tuple[Key, int]]:
        for work in self.recording.works:
            work.missing = (
                (work.call is not None) + (work.before is not None) + (work.waited_for is not None)
            )
            if not work.missing:
                self.at(work.span.begin, partial(self.begin, work))
        for thread, actions in self.recording.actions.items():
            process = self.run_thread(thread, actions)
            self.at(actions[0].at, partial(self.step, process))
        while self.heap:
            now, _, go = heapq.heappop(self.heap)
            go(now)
        assert len(self.ends) == len(self.recording.works), "some work never ran"
        return self.found

    def at(self, moment: int, go: Callable[[int], None]) -> None:
        heapq.heappush(self.heap, (moment, next(self.numbers), go))

    def signal(self, name: object, now: int) -> None:
        self.signals[name] = now
        for go in self.listeners.pop(name, []):
            self.at(now, go)

    def step(self, process: Iterator[object], now: int) -> None:
        """Let a thread go on until it waits: for a moment, or for a signal."""
        try:
            wanted = next(process)
        except StopIteration:
            return
        if isinstance(wanted, int):
            self.at(wanted, partial(self.step, process))
        elif wanted in self.signals:
            self.at(max(now, self.signals[wanted]), partial(self.step, process))
        else:
            self.listeners[wanted].append(partial(self.step, process))

    def arrive(self, work: Work, now: int) -> None:
        work.missing -= 1
        if not work.missing:
            start = self.recording._ready(work, self.ends, self.submitted.get(id(work)))
            self.at(max(start + work.extra, now - CLOCK_ERROR), partial(self.begin, work))

    def begin(self, work: Work, now: int) -> None:
        dur = work.span.dur
        if work.span.key in self.shorter:
            dur = round(dur * self.factor)
        self.ends[id(work)] = now + dur
        self.found.append((work.span.key, now + dur))
        self.at(now + dur, partial(self.complete, work))

    def complete(self, work: Work, now: int) -> None:
        for follower in work.followers:
            self.arrive(follower, now)
        self.signal(("work", id(work)), now)

    def run_thread(  # noqa: C901  (one branch per kind of action)
        self, name: Thread, actions: list[Action]
    ) -> Iterator[object]:
        """Run a thread: yield the moments and signals that it waits for."""
        gone = _merged(
            [
                (s.begin, s.end)
                for s in self.recording.host
                if s.where == name and s.key in self.removed
            ]
        )
        now = before = actions[0].at
        entered: dict[int, int] = {}

        for action in actions:
            spent = action.at - before - _overlap(gone, before, action.at)
            before, thing = action.at, action.thing
            if action.do == "leave" and thing.span.key not in self.removed:
                for work in thing.works:
                    yield ("work", id(work))
                back = self.recording._returns(thing, entered[id(thing)], self.ends)
                now = max(back + thing.extra, entered[id(thing)])
            elif action.do == "fetched" and thing[1].key not in self.removed:
                former, span = thing
                arrived = self.signals[id(former)]
                now = max(now + min(BATCH_READY, spent), arrived + span.end - former.end)
            elif action.do == "called":
                callers, delay = thing
                yield from callers
                resumed = max(self.signals[caller] for caller in callers) + delay
                now = resumed if action is actions[0] else max(now, resumed)
            else:
                now += spent
            yield now
            if action.do == "enter":
                entered[id(thing)] = now
            elif action.do == "launch":
                self.submitted[id(thing)] = now
                self.arrive(thing, now)
            elif action.do == "call":
                self.signal(thing, now)
            if action.do == "arrived":
                self.signals[id(thing)] = now
            elif action.do == "fetched":
                self.signals[id(thing[1])] = now

        self.found.append((("/".join(name), -1), now))


def _read_spans(source: Path | bytes) -> Iterable[Span]:
    text = source if isinstance(source, bytes) else gzip.decompress(source.read_bytes())
    document = json.loads(text, parse_float=Decimal, strict=False)
    events = document if isinstance(document, list) else document["traceEvents"]
    events = [event for event in events if event.get("ph") == "X" and "dur" in event]
    first = min((Decimal(event["ts"]) for event in events), default=Decimal(0))

    for raw_event in events:
        args = raw_event.get("args") or {}
        cat = str(raw_event.get("cat", "")).lower()
        begin = int((Decimal(raw_event["ts"]) - first) * 1000)
        dur = int(Decimal(raw_event["dur"]) * 1000)
        where = (str(raw_event["pid"]), str(raw_event["tid"]))
        if cat in DEVICE:
            where = (
                str(args.get("device", raw_event["pid"])),
                str(args.get("stream", raw_event["tid"])),
            )
        yield Span(cat, raw_event["name"], begin, begin + max(dur, 0), where, args)


def _is_sync(name: str) -> bool:
    return "Synchronize" in name


def _blocks(call: Span, copy: Work | None) -> bool:
    if _is_sync(call.name) or call.name in {"cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream"}:
        return True
    name = copy.span.name if copy else ""
    return "Device -> Pageable" in name or "Pageable -> Device" in name


def _middle(values: list[int], otherwise: int, limit: int) -> int:
    return int(min(max(statistics.median(values), 0), limit)) if values else otherwise


def _moments(spans: Iterable[Span]) -> list[int]:
    return sorted({at for span in spans for at in (span.begin, span.end)})


def _merged(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    # Those that touch stay apart: short calls in a row are no long call.
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _minus(pairs: list[tuple[int, int]], taken: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    for begin, end in pairs:
        at = begin
        for first, last in taken:
            if last <= at or first >= end:
                continue
            if first > at:
                yield at, first
            at = max(at, last)
        if at < end:
            yield at, end


def _overlap(pairs: list[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(end, last) - max(begin, first)) for first, last in pairs)
