"""Own time of events, against the union of a thread's events and a walk over moments."""

from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.index.host.nesting import build_call_tree, compute_own_ns
from profkit.index.intervals import union
from tests.index.host.test_nesting import nested, table

spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=14,
)


@settings(max_examples=200, deadline=None)
@given(spans, st.data())
def test_own_times_of_a_thread_add_up_to_the_time_that_its_events_cover(
    spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    lanes = data.draw(st.lists(st.integers(0, 1), min_size=len(spans), max_size=len(spans)))
    events = table(spans, lanes)
    own_ns = compute_own_ns(events, build_call_tree(events))
    assert own_ns.min() >= 0
    for lane in (0, 1):
        on_lane = events.lane == lane
        covered = union(events.ts_ns[on_lane], events.end_ns[on_lane])
        assert own_ns[on_lane].sum() == covered.total_ns


@settings(max_examples=60, deadline=None)
@given(nested(end=300))
def test_each_moment_belongs_to_the_innermost_event(spans: list[tuple[int, int]]) -> None:
    if not spans:
        return
    expected = [0] * len(spans)
    for moment in range(max(end for _, end in spans)):
        open_now = [i for i, (start, end) in enumerate(spans) if start <= moment < end]
        if open_now:
            expected[min(open_now, key=lambda i: spans[i][1] - spans[i][0])] += 1
    events = table(spans)
    assert compute_own_ns(events, build_call_tree(events)).tolist() == expected


def test_a_call_that_ends_after_its_caller_extends_the_caller() -> None:
    events = table([(0, 10), (5, 15)])
    assert compute_own_ns(events, build_call_tree(events)).tolist() == [5, 10]
