"""Random programs whose recordings, with and without changes, are known exactly.

A program is a list of actions. :func:`play` records it; played without its synchronization, or with
shorter kernels, it shows what a replay of the first recording should predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from profkit.testing import TraceBuilder

STREAMS = (7, 13)
LATENCY_NS = 3_000
BACKWARD_THREAD = 2000
Action = tuple[Any, ...]
_PROLOGUE: tuple[Action, ...] = (
    *[("kernel", 7, 100_000)] * 2,
    *[("device!",)] * 3,
    *[("stream!",)] * 2,
    ("kernel", 7, 100_000),
    ("stream!",),
)

_ns = st.integers(1, 400).map(lambda us: us * 1000)
_long_ns = st.integers(30, 400).map(lambda us: us * 1000)
_stream = st.sampled_from(STREAMS)
_launches = st.one_of(
    st.tuples(st.just("compute"), _ns),
    st.tuples(st.just("kernel"), _stream, _ns),
    st.tuples(st.just("graph"), _stream, st.lists(_ns, min_size=1, max_size=30)),
    st.tuples(st.just("event"), _stream, _ns),
)
_backward = st.tuples(st.just("backward"), st.lists(_launches, min_size=1, max_size=5), _long_ns)
_replicas = st.tuples(
    st.just("replicas"),
    st.lists(st.tuples(st.lists(_launches, min_size=1, max_size=3), _long_ns), max_size=3),
    st.integers(0, 30).map(lambda us: us * 1000),
)
actions = st.lists(
    st.one_of(
        _launches,
        _launches,
        st.tuples(st.just("device")),
        st.tuples(st.just("fill"), _ns),
        _backward,
        _replicas,
    ),
    min_size=1,
    max_size=40,
)
"""Programs with two streams, events between them, graphs, more threads, and waits for all."""
loading = st.lists(
    st.one_of(_launches, st.tuples(st.just("batch"), _ns.map(lambda ns: 10 * ns)), _backward),
    min_size=1,
    max_size=40,
)
"""Programs whose batches come from worker processes."""
_one_stream = st.one_of(
    st.tuples(st.just("compute"), _ns),
    st.tuples(st.just("kernel"), st.just(7), _ns),
    st.tuples(st.just("graph"), st.just(7), st.lists(_ns, min_size=1, max_size=30)),
    st.tuples(st.just("device")),
    st.tuples(st.just("stream")),
    st.tuples(st.just("item"), _ns),
)
one_stream = st.lists(_one_stream, min_size=1, max_size=40)
"""Programs with one stream and every kind of wait."""


@dataclass
class Played:
    """A recording of a program.

    Attributes:
        builder: The recording.
        waits: Starts of the blocking calls, by number of the wait in the program.
        ends_ns: Ends of all kernels, copies and fills in the program's order.
        end_ns: The program's end.
    """

    builder: TraceBuilder
    waits: dict[int, int] = field(default_factory=dict)
    ends_ns: list[int] = field(default_factory=list)
    end_ns: int = 0


def record_program(
    program: Sequence[Action], *, without: Sequence[int] = (), factor: float = 1.0
) -> Played:
    """Record a program.

    Before it comes work in which each of a recording's usual latencies can be seen.

    Args:
        without: Numbers of waits that do not happen.
        factor: By which the duration of all device work is multiplied.
    """
    b = TraceBuilder(latency_ns=LATENCY_NS)
    played = Played(b)
    number = 0

    for action in (*_PROLOGUE, *program, ("compute", 0)):
        kept = True
        if action[0] in {"device", "stream", "item"}:
            kept = number not in without
            if kept:
                played.waits[number] = 0
            number += 1
        _do(b, action, played, factor, wait=number - 1 if kept else None)

    played.ends_ns = [
        event.ts_ns + (event.dur_ns or 0)
        for event in b.events
        if event.cat in {"kernel", "gpu_memcpy", "gpu_memset"}
    ]
    played.end_ns = b.now_ns
    return played


def _do(b: TraceBuilder, action: Action, played: Played, factor: float, wait: int | None) -> None:  # noqa: C901, PLR0912  (one case per action)
    match action:
        case ("compute", ns):
            b.compute("aten::work", ns)
        case ("kernel", stream, ns):
            dur_ns = round(ns * factor)
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=dur_ns, stream=stream)
        case ("graph", stream, kernels):
            with b.op("graph"):
                named = [("node", round(ns * factor)) for ns in kernels]
                b.graph_launch(named, stream=stream)
        case ("event", stream, ns):
            other_stream = STREAMS[stream == STREAMS[0]]
            with b.op("aten::wait"):
                event_ns = b.record_event(stream=other_stream)
                b.wait_for_event(event_ns, stream=stream)
            _do(b, ("kernel", stream, ns), played, factor, wait)
        case ("batch", ns):
            b.load(ns, workers=True)
        case ("fill", ns):
            b.fill(4096, round(ns * factor))
        case ("backward", inner, ns):
            with b.thread(BACKWARD_THREAD), b.op("backward", self_ns=ns):
                for child in inner:
                    _do(b, child, played, factor, wait)
        case ("replicas", replicas, ns):
            for number, (inner, own_ns) in enumerate(replicas, 1):
                b.advance(ns)
                with b.thread(BACKWARD_THREAD + number), b.op("replica", self_ns=own_ns):
                    for child in inner:
                        _do(b, child, played, factor, wait)
        case ("item", ns):
            with b.op("aten::item"), b.op("aten::_local_scalar_dense", self_ns=1_000):
                b.copy("DtoH (Device -> Pinned)", 4, round(ns * factor), blocking=False)
                if wait is not None:
                    played.waits[wait] = b.now_ns
                    b.synchronize("StreamSynchronize")
        case ("device" | "stream" | "device!" | "stream!" as kind,):
            if kind.endswith("!") or wait is not None:
                if not kind.endswith("!") and wait is not None:
                    played.waits[wait] = b.now_ns
                call = {"d": "DeviceSynchronize", "s": "StreamSynchronize"}[kind[0]]
                b.synchronize(call)
