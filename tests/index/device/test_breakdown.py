"""The parts of the steps' time exclude each other and add up to it."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.device.breakdown import (
    partition_time,
    split_by_step,
    split_host,
    sum_parts,
)
from profkit.index.intervals import Intervals, of_pairs
from profkit.testing import TraceBuilder
from tests.traces import load_trace

intervals = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40)).map(lambda at: (at[0], at[0] + at[1])),
    max_size=6,
).map(lambda pairs: of_pairs(tuple(pairs)))


def by_moment(covered: Intervals) -> set[int]:
    return {ns for start, end in covered.pairs() for ns in range(start, end)}


@given(intervals, intervals, intervals, intervals)
def test_parts_add_up_and_overlaps_count_for_the_first(
    window: Intervals, compute: Intervals, communication: Intervals, idle: Intervals
) -> None:
    window = window if len(window) else of_pairs(((0, 10),))
    parts = {"compute": compute, "communication": communication, "idle-sync": idle}
    told = sum_parts(window, 2, partition_time(window, parts))
    lengths = {part.kind: part.ns for part in told.parts}
    moments = by_moment(window)
    expected = {}
    for kind, covered in (("compute", compute), ("communication", communication)):
        expected[kind] = len(moments & by_moment(covered))
        moments -= by_moment(covered)
    expected["idle-sync"] = len(moments & by_moment(idle))
    expected["idle-host"] = len(moments - by_moment(idle))
    assert lengths == {kind: ns for kind, ns in expected.items() if ns}
    assert sum(lengths.values()) == told.total_ns == window.total_ns
    assert np.isclose(sum(part.share for part in told.parts), 1)


def test_work_precedes_idle_time_each_longest_first() -> None:
    window, none = of_pairs(((0, 100),)), of_pairs(())
    parts = {"compute": of_pairs(((0, 10),)), "copy": of_pairs(((0, 40),)), "idle-data": none}
    told = sum_parts(window, 0, partition_time(window, parts))
    assert [(part.kind, part.ns, part.per_step_ns) for part in told.parts] == [
        ("copy", 30, None),
        ("compute", 10, None),
        ("idle-host", 60, None),
    ]


def test_without_devices_the_rest_is_python() -> None:
    window = of_pairs(((0, 100),))
    told = sum_parts(window, 4, partition_time(window, {"data": of_pairs(((0, 8),))}))
    assert not told.on_device
    assert [(part.kind, part.per_step_ns) for part in told.parts] == [("python", 23), ("data", 2)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), intervals, intervals)
def test_the_parts_of_each_step_add_up_to_it(
    lengths: list[int], compute: Intervals, idle: Intervals
) -> None:
    ends = np.cumsum(np.array(lengths, np.int64), dtype=np.int64)
    starts = ends - np.array(lengths, np.int64)
    parts = partition_time(
        of_pairs(tuple(zip(starts.tolist(), ends.tolist(), strict=True))),
        {"compute": compute, "idle-data": idle},
    )

    for start, end, told in zip(starts, ends, split_by_step(starts, ends, parts), strict=True):
        moments = set(range(start, end))
        expected = {
            "compute": len(moments & by_moment(compute)),
            "idle-data": len((moments - by_moment(compute)) & by_moment(idle)),
            "idle-host": len(moments - by_moment(compute) - by_moment(idle)),
        }
        assert {part.kind: part.ns for part in told} == {k: ns for k, ns in expected.items() if ns}
        assert sum(part.ns for part in told) == end - start


def test_an_optimizers_closure_is_forward_and_backward(tmp_path: Path) -> None:
    builder = TraceBuilder(device_names=())
    with builder.annotation("Optimizer.step#LBFGS.step"):
        for _ in range(2):
            builder.compute("aten::mm", 30_000)
            builder.compute("autograd::engine::evaluate_function: MmBackward0", 50_000)
        builder.compute("aten::add_", 7_000)
    parts = split_host(load_trace(builder.write(tmp_path / "t.json")).events)
    assert parts["backward"].total_ns == 100_000
    assert parts["optimizer"].total_ns == 7_000
