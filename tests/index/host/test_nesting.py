"""Call trees, against a stack that is walked event by event."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.index.host import nesting
from profkit.index.host.nesting import CallTree, build_call_tree, compute_self_ns
from profkit.model.events import NO_ROW, Category, EventTable, Lane
from profkit.testing import TraceBuilder
from tests.traces import load_trace as load


def table(spans: list[tuple[int, int]], lanes: list[int] | None = None) -> EventTable:
    n = len(spans)
    return EventTable(
        position=np.arange(n, dtype=np.int32),
        category=np.full(n, Category.OP, dtype=np.uint8),
        name=np.zeros(n, dtype=np.int32),
        lane=np.array(lanes or [0] * n, dtype=np.int32),
        ts_ns=np.array([start for start, _ in spans], dtype=np.int64),
        dur_ns=np.array([end - start for start, end in spans], dtype=np.int64),
        names=("op",),
        lanes=(Lane("1", "1"), Lane("1", "2")),
    )


def tree(spans: list[tuple[int, int]], lanes: list[int] | None = None) -> CallTree:
    return build_call_tree(table(spans, lanes))


@st.composite
def nested(
    draw: st.DrawFn, start: int = 0, end: int = 1 << 20, depth: int = 4
) -> list[tuple[int, int]]:
    """Spans that nest properly, with room between any two of them."""
    if depth == 0 or end - start < 64:
        return []
    spans, at = [], start + 1
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.integers(16, max(16, (end - at) // 4)))
        if at + length >= end:
            break
        spans.append((at, at + length))
        spans += draw(nested(at, at + length, depth - 1))
        at += length + 1
    return spans


def enclosing(spans: list[tuple[int, int]], i: int) -> int:
    around = [
        j for j, (start, end) in enumerate(spans) if start < spans[i][0] and spans[i][1] < end
    ]
    return min(around, key=lambda j: spans[j][1] - spans[j][0]) if around else NO_ROW


@settings(max_examples=80, deadline=None)
@given(nested().flatmap(st.permutations))
def test_the_parent_is_the_shortest_span_around_whatever_the_order(
    spans: list[tuple[int, int]],
) -> None:
    parents = tree(spans)
    assert parents.parent.tolist() == [enclosing(spans, i) for i in range(len(spans))]
    for i in range(len(spans)):
        above = enclosing(spans, i)
        assert parents.depth[i] == (0 if above == NO_ROW else parents.depth[above] + 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 1)),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 5),
)
def test_a_tree_does_not_depend_on_the_chunk_size(
    spans: list[tuple[int, int, int]], piece: int
) -> None:
    events = table([(start, start + length) for start, length, _ in spans], [s[2] for s in spans])
    whole = build_call_tree(events)
    among = np.arange(len(spans)) % 3 > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_CHUNK", piece)
        pieces = build_call_tree(events)
        self_ns = compute_self_ns(events, pieces, among)
    assert pieces.rows.tolist() == whole.rows.tolist()
    assert pieces.parent.tolist() == whole.parent.tolist()
    assert pieces.depth.tolist() == whole.depth.tolist()
    assert self_ns.tolist() == compute_self_ns(events, whole, among).tolist()


def test_rows_are_ordered_by_thread_start_length_and_file_position() -> None:
    spans = [(5, 6), (0, 3), (0, 9), (0, 3), (2, 4)]
    assert tree(spans, [0, 1, 1, 1, 0]).rows.tolist() == [4, 0, 2, 1, 3]


def test_threads_do_not_nest() -> None:
    parents = tree([(0, 100), (10, 20), (10, 20)], [0, 0, 1])
    assert parents.parent.tolist() == [NO_ROW, 0, NO_ROW]


def test_a_call_that_ends_after_its_caller_is_still_its_child() -> None:
    # Rounded to microseconds, as old traces are, a callee can end after its caller.
    parents = tree([(0, 10), (5, 12), (6, 7), (11, 12), (20, 21)])
    assert parents.parent.tolist() == [NO_ROW, 0, 1, 1, NO_ROW]


def test_an_event_of_zero_length_is_nested() -> None:
    assert tree([(0, 10), (4, 4), (10, 12)]).parent.tolist() == [NO_ROW, 0, NO_ROW]


def test_nearest_outermost_and_enclosing_find_marked_ancestors() -> None:
    parents = tree([(0, 100), (10, 90), (20, 80), (30, 70)])
    marked = np.array([True, False, True, False])
    assert parents.nearest(marked).tolist() == [0, 0, 2, 2]
    assert parents.outermost(marked).tolist() == [0, 0, 0, 0]
    assert parents.enclosing(marked).tolist() == [NO_ROW, 0, 0, 2]


def test_self_time_excludes_children() -> None:
    spans = [(0, 100), (10, 60), (20, 30), (70, 120)]
    events = table(spans)
    among = np.ones(4, dtype=np.bool_)
    # The last one outlasts its caller: only what lies within the caller is taken from it.
    assert compute_self_ns(events, build_call_tree(events), among).tolist() == [20, 40, 10, 50]


def test_self_time_skips_unselected_rows() -> None:
    events = table([(0, 100), (10, 60), (20, 30)])
    among = np.array([True, False, True])
    assert compute_self_ns(events, build_call_tree(events), among).tolist() == [90, 0, 10]


def test_operators_python_and_calls_of_a_thread_share_one_tree(tmp_path: Path) -> None:
    builder = TraceBuilder(stacks=True)
    with builder.step(), builder.frame("train.py", 3, "train"):
        builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    events = load(builder.write(tmp_path / "t.json")).events
    call_tree = build_call_tree(events)
    (call,) = events.rows_of(Category.RUNTIME)
    chain = []
    row = int(call)
    while row != NO_ROW:
        chain.append(events.name_of(row))
        row = int(call_tree.parent[row])
    assert chain == ["cudaLaunchKernel", "aten::mm", "train.py(3): train", "ProfilerStep#0"]


def item_and_read(*, length_ns: int, name: str = "aten::_local_scalar_dense") -> TraceBuilder:
    """``Tensor.item`` in whole microseconds, whose read begins where it ends."""
    builder = TraceBuilder(device_names=())
    for _ in range(3):
        with builder.op("aten::item"):
            builder.advance(1_000)
        with builder.op(name):
            builder.advance(length_ns)
        builder.advance(9_000)
    return builder


@pytest.mark.parametrize(
    ("name", "length_ns", "is_within"),
    [
        ("aten::_local_scalar_dense", 0, True),
        ("aten::_local_scalar_dense", 1_000, False),
        ("aten::view", 0, False),
    ],
)
def test_an_internal_operator_of_no_length_is_in_the_one_that_ends_there(
    tmp_path: Path, name: str, length_ns: int, *, is_within: bool
) -> None:
    path = item_and_read(length_ns=length_ns, name=name).write(tmp_path / "t.pt.trace.json")
    events = load(path).events
    assert build_call_tree(events).parent.tolist() == [NO_ROW, 0 if is_within else NO_ROW] + [
        part for row in (2, 4) for part in (NO_ROW, row if is_within else NO_ROW)
    ]


def test_an_internal_operator_of_no_length_is_in_the_one_that_begins_there(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    builder.compute("aten::mm", 1_000)
    with builder.op("aten::item"):
        builder.compute("aten::_local_scalar_dense", 0)
        builder.advance(1_000)
    events = load(builder.write(tmp_path / "t.pt.trace.json")).events
    assert build_call_tree(events).parent.tolist() == [NO_ROW, NO_ROW, 1]
