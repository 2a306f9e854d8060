"""Exchanges between ranks: when they are waited for, whose waits these are, and their names."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.engine.families.collectives.waits import find_device_waits
from profkit.index.intervals import union
from profkit.index.ranks.collectives import (
    collective_kind,
    find_exposed_waits,
    find_launching_ops,
    host_collectives,
    wait_by_collective,
)
from profkit.testing import TraceBuilder
from tests.traces import read_context

Interval = tuple[int, int]
END_NS = 60
INTERVAL = st.tuples(st.integers(0, 40), st.integers(1, 20))
INTERVALS = st.lists(INTERVAL, max_size=6)


def of_gloo(collectives: list[Interval]) -> TraceBuilder:
    """Exchanges ``(start, length)``, each on a thread of its own."""
    b = TraceBuilder(device_names=())
    with b.annotation("begin"):  # times begin with the first event
        pass
    for number, (start, length) in enumerate(sorted(collectives)):
        b.now_ns = start
        with b.thread(3000 + number), b.annotation("gloo:all_reduce"):
            b.advance(length)
    return b


def covers(intervals: list[Interval], moment: int) -> bool:
    return any(start <= moment < start + length for start, length in intervals)


def pauses_within(work: list[Interval], start: int, end: int) -> list[list[int]]:
    """Return the moments of each pause in the work."""
    groups: list[list[int]] = [[]]
    for moment in range(start, end):
        if covers(work, moment):
            groups.append([])
        else:
            groups[-1].append(moment)
    return [group for group in groups if group]


@given(collectives=st.lists(INTERVAL, min_size=1, max_size=6), work=INTERVALS)
def test_time_is_exposed_if_a_collective_ends_when_work_continues_or_shortly_after(
    collectives: list[Interval], work: list[Interval], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ctx = read_context(of_gloo(collectives), tmp_path_factory.mktemp("trace"))
    rows = host_collectives(ctx.events)
    working = union(
        np.array([start for start, _ in work], dtype=np.int64),
        np.array([start + length for start, length in work], dtype=np.int64),
    )
    waits = find_exposed_waits(ctx.events, rows, working, 0, END_NS)
    mine = {moment for start, end in waits.pairs() for moment in range(start, end)}
    expected = set()
    for start, length in collectives:
        end = start + length
        pauses = [
            pause
            for pause in pauses_within(work, start, min(end, END_NS))
            if 4 * (end - pause[-1] - 1) <= len(pause)
        ]
        longest = max((len(pause) for pause in pauses), default=0)
        expected.update(next((pause for pause in pauses if len(pause) == longest), []))

    assert mine == expected

    shares = wait_by_collective(ctx.events, rows, waits)
    assert shares.sum() == waits.total_ns == len(mine)
    assert (shares >= 0).all()


@given(
    computing=st.lists(INTERVAL, min_size=1, max_size=6),
    exchanging=st.lists(INTERVAL, min_size=1, max_size=6),
)
def test_exposed_time_is_collective_time_without_computation(
    computing: list[Interval],
    exchanging: list[Interval],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    b = TraceBuilder()
    with b.step():
        ident = b.call("LaunchKernel", 1, at_ns=0)
        for start, length in computing:
            b.kernel("gemm", length, at_ns=start, correlation=ident)
        for start, length in exchanging:
            b.kernel("ncclDevKernel_AllReduce", length, at_ns=start, stream=20, correlation=ident)
        b.advance(END_NS)
    ctx = read_context(b, tmp_path_factory.mktemp("trace"))
    waits = find_device_waits(ctx)
    assert waits is not None

    alone = sum(
        covers(exchanging, moment) and not covers(computing, moment) for moment in range(END_NS)
    )
    # All was launched at once, so that no host was late.
    assert waits.exposed_ns == waits.waited.total_ns == alone
    assert waits.share_ns.sum() == alone


def started(b: TraceBuilder, op: str, line: int) -> None:
    with b.frame("train.py", line, "main"), b.op(op, self_ns=10):
        pass


def ran(b: TraceBuilder, name: str, at_ns: int) -> None:
    before, b.now_ns = b.now_ns, at_ns
    with b.thread(3000), b.annotation(name):
        b.advance(10)
    b.now_ns = before


def lines(ctx: Context) -> list[int | None]:
    rows = find_launching_ops(ctx.events, ctx.tree, host_collectives(ctx.events))
    return [ctx.location(int(row)).line for row in rows]


def test_queued_collectives_belong_to_the_operator_that_started_them(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    started(b, "c10d::allreduce_", 10)
    started(b, "c10d::broadcast_", 20)
    started(b, "c10d::allreduce_", 30)
    for number, name in enumerate(("all_reduce", "broadcast", "all_reduce")):
        ran(b, f"gloo:{name}", 100 + 20 * number)
    assert lines(read_context(b, tmp_path)) == [10, 20, 30]


def test_an_all_reduce_of_gloo_may_be_a_reduce_scatter_of_the_program(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    started(b, "c10d::allreduce_", 10)
    started(b, "c10d::_reduce_scatter_base_", 20)
    ran(b, "gloo:all_reduce", 100)
    ran(b, "gloo:all_reduce", 120)
    assert lines(read_context(b, tmp_path)) == [10, 20]


def test_without_all_starts_the_last_preceding_operator_is_used(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    ran(b, "gloo:all_reduce", 0)
    b.advance(50)
    started(b, "c10d::allreduce_", 10)
    ran(b, "gloo:all_reduce", 70)
    assert lines(read_context(b, tmp_path)) == [None, 10]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "all-reduce"),
        ("c10d::allreduce_coalesced_", "all-reduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", "all-reduce"),
        ("void vllm::cross_device_reduce_1stage<half, 4>", "all-reduce"),
        ("multimem_all_reduce_kernel", "all-reduce"),
        ("c10d::_allgather_base_", "all-gather"),
        ("_reduce_scatter_base", "reduce-scatter"),
        ("c10d::alltoall_base_", "all-to-all"),
        ("mpi:broadcast", "broadcast"),
        ("c10d::barrier", "barrier"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send and receive"),
        ("gloo:recv", "receive"),
        ("gloo:scatter", "scatter"),
        ("gloo:reduce", "reduce"),
        ("ncclDevKernel_Generic", "collective"),
    ],
)
def test_a_collective_is_named_after_what_it_does(name: str, kind: str) -> None:
    assert collective_kind(name) == kind
