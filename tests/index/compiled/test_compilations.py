"""Rows of compiling and of what was compiled, over versions of torch."""

from collections.abc import Callable
from itertools import takewhile

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.index.compiled.compilations import find_gaps_between_graphs
from profkit.testing import TraceBuilder

Read = Callable[[TraceBuilder], Context]


@pytest.mark.parametrize(
    "name",
    [
        "_compile (dynamo_timed)",  # torch 2.0
        "_compile.<locals>.compile_inner (dynamo_timed)",  # torch 2.2
        "_compile.compile_inner (dynamo_timed)",  # torch 2.6
        "entire_frame_compile",
        "dynamo",
    ],
)
def test_nested_compilation_events_are_one_compilation(read: Read, name: str) -> None:
    b = TraceBuilder()
    with b.op(name, self_ns=1_000):
        b.compute("OutputGraph.call_user_compiler (dynamo_timed)", 5_000)
    with b.op("Torch-Compiled Region: 7/2"):
        b.advance(1_000)
    compilations = read(b).compilations
    assert len(compilations.rows) == 1
    assert compilations.is_function.tolist() == [True]
    assert compilations.numbers == ("7/2",)


def test_annotations_of_older_versions_count(read: Read) -> None:
    b = TraceBuilder()
    with b.annotation("_compile (dynamo_timed)"):
        b.advance(1_000)
    assert len(read(b).compilations.rows) == 1


def test_a_user_function_of_that_name_is_not_a_compilation(read: Read) -> None:
    b = TraceBuilder()
    with b.frame("x.py", 1, "dynamo"), b.frame("y.py", 1, "entire_frame_compile"):
        b.compute("aten::mm", 1_000)
    assert not len(read(b).compilations.rows)


def test_compiling_a_backward_graph_is_not_a_function(read: Read) -> None:
    b = TraceBuilder()
    b.compute("compile_fx.<locals>.bw_compiler (dynamo_timed)", 1_000)
    compilations = read(b).compilations
    assert compilations.is_function.tolist() == [False]
    assert compilations.numbers == ("",)


def test_the_id_of_the_next_run_is_used_only_before_the_next_compilation(
    read: Read,
) -> None:
    # The first was given up, so nothing of it runs; and another thread's run is not its own.
    b = TraceBuilder()
    b.compute("_compile (dynamo_timed)", 1_000)
    with b.thread(5), b.op("Torch-Compiled Region: 9/9"):
        b.advance(500)
    b.compute("_compile (dynamo_timed)", 1_000)
    with b.op("Torch-Compiled Region: 3/1"):
        b.advance(1_000)
    assert read(b).compilations.numbers == ("", "3/1")


def test_a_recorded_id_precedes_the_id_of_the_next_run(read: Read) -> None:
    b = TraceBuilder()
    with b.op("dynamo"), b.annotation("dynamo_data: compile_id=4/1"):
        b.advance(1_000)
    with b.op("Torch-Compiled Region: 0/0"):
        b.advance(1_000)
    assert read(b).compilations.numbers == ("4/1",)


def test_runs_have_their_parent_and_whether_they_compute(read: Read) -> None:
    b = TraceBuilder()
    with b.op("Torch-Compiled Region: 0/0"):
        b.compute("TorchDynamo Cache Lookup", 10)
        with b.op("Torch-Compiled Region: 1/0"):
            b.compute("aten::mm", 10)
            with b.op("Torch-Compiled Region: 2/0"):
                b.compute("Pregraph bytecode", 10)
    with b.op("Torch-Compiled Region"):
        b.compute("_compile (dynamo_timed)", 10)
    runs = read(b).compiled_runs
    assert runs.numbers == ("0/0", "1/0", "2/0", "")
    assert runs.parent.tolist() == [-1, 0, 1, -1]
    assert runs.root.tolist() == [0, 0, 0, 3]
    assert runs.has_ops.tolist() == [False, True, False, False]


def calls_of_random_shape(seed: int) -> TraceBuilder:
    rng = np.random.default_rng(seed)
    b = TraceBuilder()
    for _ in range(3):
        b.advance(int(rng.integers(1, 5)))
        with b.op("Torch-Compiled Region: 0/0"):
            for _ in range(int(rng.integers(1, 4))):
                b.advance(int(rng.integers(0, 5)))
                b.compute("aten::mm", int(rng.integers(1, 5)))
                b.advance(int(rng.integers(0, 5)))
                with b.op("Torch-Compiled Region: 1/0"):
                    b.advance(int(rng.integers(0, 3)))
                    b.compute("aten::add" if rng.random() < 0.7 else "TorchDynamo Cache Lookup", 2)
                    b.advance(1)
    return b


def spans(b: TraceBuilder, ending: str) -> list[tuple[int, int]]:
    """Starts and ends of events, from the first event on."""
    first = min(event.ts_ns for event in b.events)
    return [
        (event.ts_ns - first, event.ts_ns - first + (event.dur_ns or 0))
        for event in b.events
        if event.name.startswith(ending) or event.name.endswith(ending)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_gaps_between_graphs_are_not_covered_by_operators(read: Read, seed: int) -> None:
    """Against a walk over nanoseconds, of calls of random shape."""
    b = calls_of_random_shape(seed)
    covered = {ns for begin, end in spans(b, "aten::") for ns in range(begin, end)}
    expected = set()
    for inner, _ in spans(b, ": 1/0"):
        (around,) = [range(*outer) for outer in spans(b, ": 0/0") if inner in range(*outer)]
        for way in (range(inner, around.stop), range(inner - 1, around.start - 1, -1)):
            expected |= set(takewhile(lambda ns: ns not in covered, way))
    ctx = read(b)
    places = np.flatnonzero([number == "1/0" for number in ctx.compiled_runs.numbers])
    gaps = find_gaps_between_graphs(ctx.events, ctx.compiled_runs, places)
    pairs = [range(*pair) for pair in zip(*(rows.tolist() for rows in gaps), strict=True)]
    assert {ns for pair in pairs for ns in pair} == expected
