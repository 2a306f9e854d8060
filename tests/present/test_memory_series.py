"""Memory over time matches a count of allocations and frees."""

import random
from collections import Counter
from pathlib import Path

import numpy as np

from profkit.api import study
from profkit.engine.context import Context
from profkit.model.memory_series import MemorySeries
from profkit.model.snapshot import MemorySnapshot
from profkit.present.memory_series import MAX_LAYERS, memory_series
from profkit.readers.open import load
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import ReferenceBlock

MIB = 1 << 20


def course_of(builder: SnapshotBuilder, path: Path) -> MemorySeries:
    snapshot = load(builder.write(path))
    assert isinstance(snapshot, MemorySnapshot)
    (course,) = memory_series(Context(snapshot=snapshot))
    return course


def together(course: MemorySeries, kind: str) -> list[int]:
    """Return the sum of all layers at each moment."""
    return [int(n) for n in np.sum([layer.bytes for layer in course.layers[kind]], axis=0)]


def test_each_line_has_the_bytes_that_it_allocated_and_did_not_free(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311  (the same program every time)
    b = SnapshotBuilder()
    standing: list[tuple[int, ReferenceBlock]] = []
    expected: list[Counter[int]] = []
    for _ in range(60):
        if standing and chance.random() < 0.45:
            line, block = standing.pop(chance.randrange(len(standing)))
            b.free(block)
        else:
            line = chance.choice((3, 8, 21))
            with b.frame("train.py", line, "main"):
                standing.append((line, b.alloc(2 * chance.randint(1, 20) * MIB)))
        held: Counter[int] = Counter()
        for line, block in standing:
            held[line] += block.n_bytes
        expected.append(held)
    course = course_of(b, tmp_path / "s.pickle")

    layers = {layer.name: layer.bytes for layer in course.layers["line"]}
    assert set(layers) == {"train.py:3", "train.py:8", "train.py:21"}
    assert together(course, "line") == course.allocated_bytes.tolist()

    for line in (3, 8, 21):
        seen = layers[f"train.py:{line}"]
        assert int(seen.max()) == max(amounts[line] for amounts in expected)
        assert int(seen[-1]) == expected[-1][line]
    assert int(course.allocated_bytes.max()) == max(sum(amounts.values()) for amounts in expected)
    assert course.reserved_bytes is not None
    assert (course.reserved_bytes >= course.allocated_bytes).all()


def test_memory_allocated_before_recording_is_one_layer(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        old = b.alloc(64 * MIB)
    with b.frame("train.py", 3, "main"):
        b.alloc(16 * MIB)
    b.free(old)
    course = course_of(b, tmp_path / "s.pickle")
    layers = {layer.name: layer.bytes for layer in course.layers["line"]}
    assert layers["allocated before recording"].tolist()[0] == 64 * MIB
    assert layers["allocated before recording"].tolist()[-1] == 0
    assert layers["train.py:3"].tolist()[-1] == 16 * MIB


def test_many_lines_become_a_few_layers_and_one_of_all_others(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    for line in range(1, 31):
        with b.frame("train.py", line, "main"):
            b.alloc(2 * line * MIB)
    course = course_of(b, tmp_path / "s.pickle")
    names = [layer.name for layer in course.layers["line"]]
    largest = [f"train.py:{line}" for line in range(30, 30 - MAX_LAYERS, -1)]
    assert names == [*largest, "all others"]
    assert together(course, "line") == course.allocated_bytes.tolist()


def test_a_trace_has_layers_by_line_and_by_operator(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("train.py", 5, "main"), b.op("aten::empty", self_ns=100):
        kept = b.alloc(8 * MIB)
        b.compute("aten::fill_", 1_000)
    with b.frame("train.py", 9, "main"), b.op("aten::mm", self_ns=100):
        b.alloc(2 * MIB)
        b.compute("aten::fill_", 1_000)
    b.free(kept)

    (course,) = memory_series(study(b.write(tmp_path / "t.json")).recording.context)
    assert course.clock == "ns"

    by_line = {layer.name: layer.bytes for layer in course.layers["line"]}
    assert int(by_line["train.py:5"].max()) == 8 * MIB
    assert int(by_line["train.py:5"][-1]) == 0
    assert by_line["train.py:9"].tolist()[-1] == 2 * MIB
    assert together(course, "operator") == course.allocated_bytes.tolist()


def test_without_memory_events_there_is_no_series(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("aten::mm", 1_000)
    assert memory_series(study(b.write(tmp_path / "t.json")).recording.context) == ()
