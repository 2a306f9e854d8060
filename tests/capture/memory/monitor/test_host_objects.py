"""Host memory beside tensors, compared with objects of known size and with tracemalloc."""

import array
import collections
import functools
import gc
import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from profkit.capture.memory.monitor import host_growth
from profkit.capture.memory.monitor.host_growth import HostGrowthTracker
from profkit.capture.memory.monitor.host_objects import scan_containers, scan_host_objects
from profkit.capture.memory.monitor.newest_entries import (
    find_library_object,
    find_view,
    measure_entries,
)
from profkit.capture.memory.monitor.object_sizes import TypeTotals
from profkit.capture.process.malloc_stats import Heap
from tests.capture.memory.monitor import sizes_program

Totals = dict[str, TypeTotals]


@pytest.fixture(autouse=True)
def _only_what_is_new() -> None:
    """Exclude existing objects from scans."""
    gc.collect()
    gc.freeze()


def _gained(before: Totals, after: Totals, name: str) -> tuple[int, int]:
    n, n_bytes, *_ = after.get(name, TypeTotals()).plus(before.get(name, TypeTotals()), -1)
    return n, n_bytes


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("bytes", lambda n: bytes([n]) * 5_000),
        ("bytearray", lambda n: bytearray(4_000 + n)),
        ("str", lambda n: chr(1000 + n) * 30_000),
        ("array.array", lambda n: array.array("d", [n] * 100)),
        ("numpy.ndarray", lambda n: np.full(700, n, np.float64)),
    ],
)
@pytest.mark.parametrize("where", ["list", "dict", "tuple in dict", "array of objects", "instance"])
def test_objects_are_counted_with_their_bytes_wherever_they_are_held(
    name: str,
    make: Any,  # noqa: ANN401
    where: str,
) -> None:
    before = scan_host_objects().by_type
    made = [make(n) for n in range(1, 21)]
    expected = sum(map(sys.getsizeof, made))
    held = _held(made, where)
    del made
    n, n_bytes = _gained(before, scan_host_objects().by_type, name)
    assert n >= 20, "the test itself creates a string or two more"
    assert expected <= n_bytes < expected + 10_000
    assert held is not None


class Box:
    """Holds one thing."""

    def __init__(self, kept: object) -> None:
        self.kept = kept


def _held(made: list[Any], where: str) -> object:
    if where == "list":
        return list(made)
    if where == "dict":
        return dict(enumerate(made))
    if where == "tuple in dict":
        return {0: (tuple(made), 1)}
    if where == "array of objects":
        held = np.empty(len(made), object)
        for n, entry in enumerate(made):
            held[n] = entry
        return [held]
    return [Box(content) for content in made]


def test_a_shared_object_is_counted_once() -> None:
    before = scan_host_objects().by_type
    kept_bytes = bytes(5_000)
    held = [[kept_bytes] for _ in range(50)]
    assert _gained(before, scan_host_objects().by_type, "bytes")[1] < 5_200
    assert len(held) == 50


def test_a_view_owns_no_bytes() -> None:
    tensor = torch.zeros(10_000)
    data = np.zeros(10_000)
    before = scan_host_objects().by_type
    held = [data[5:], data.reshape(100, 100), tensor.numpy()]
    assert _gained(before, scan_host_objects().by_type, "numpy.ndarray")[1] < 3 * 200
    assert len(held) == 3


def test_stored_results_add_no_new_strings() -> None:
    kept = [scan_host_objects().by_type for _ in range(3)]
    assert _gained(kept[1], scan_host_objects().by_type, "str")[1] < 2_000


def test_the_keys_of_a_dict_are_counted() -> None:
    before = scan_host_objects().by_type
    held = [dict.fromkeys(f"{n}" * 500 for n in range(100, 200))]
    expected = sum(map(sys.getsizeof, held[0]))
    assert expected <= _gained(before, scan_host_objects().by_type, "str")[1] < expected + 10_000


def test_instances_are_counted_by_class_name() -> None:
    before = scan_host_objects().by_type
    held = [Box(None) for _ in range(40)]
    name = f"{__name__}.Box"
    assert _gained(before, scan_host_objects().by_type, name)[0] == 40
    assert len(held) == 40


def test_a_user_defined_sizeof_is_not_called() -> None:
    class Boastful(dict[str, int]):
        def __sizeof__(self) -> int:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

    before = scan_host_objects().by_type
    held = [Boastful(a=1, b=2) for _ in range(5)]
    name = next(name for name in scan_host_objects().by_type if name.endswith("Boastful"))
    n, n_bytes = _gained(before, scan_host_objects().by_type, name)
    assert (n, n_bytes) == (5, 5 * (dict.__sizeof__(held[0]) + 32))
    assert scan_host_objects().containers
    assert measure_entries(held, 5).mean_bytes > 0


def test_the_sum_is_what_pythons_allocator_has_allocated() -> None:
    tracemalloc.start()
    before = scan_host_objects().by_type
    gc.collect()
    allocated_before, _ = tracemalloc.get_traced_memory()
    held: list[object] = [{"name": f"sample {n}" * 20, "x": np.zeros(50)} for n in range(3_000)]
    held += [bytes(n) for n in range(1_000, 3_000)]
    held += [Box(("a", [n] * 30)) for n in range(1_000)]
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0] - allocated_before
    tracemalloc.stop()
    after = scan_host_objects().by_type
    gained = sum(after[name][1] - before.get(name, (0, 0))[1] for name in after)
    assert gained == pytest.approx(allocated, rel=0.05)
    assert len(held) == 6_000


@functools.lru_cache
def _cached(n: int) -> int:
    return n


CONTAINERS: dict[str, Any] = {
    "list": list(range(40)),
    "dict": {n: [n] for n in range(40)},
    "set": set(range(40)),
    "collections.deque": collections.deque(range(40)),
    "collections.OrderedDict": collections.OrderedDict.fromkeys(range(40)),
    "collections.defaultdict": collections.defaultdict(int, {n: n for n in range(40)}),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_returned_with_its_entries_and_its_own_bytes(name: str) -> None:
    mine = CONTAINERS[name].copy()
    (of_mine,) = (
        container for container in scan_host_objects().containers if container.thing is mine
    )
    assert (of_mine.type, of_mine.length) == (name, 40)
    assert of_mine.bytes == sys.getsizeof(mine)


def test_an_untracked_dict_of_arrays_is_returned() -> None:
    cache = {f"{n}": np.zeros(3) for n in range(30)}
    holder = [cache]
    assert any(container.thing is cache for container in scan_host_objects().containers)
    assert len(holder) == 1


def test_a_functools_cache_is_returned_with_its_entries() -> None:
    gc.unfreeze()
    for n in range(12):
        _cached(n)
    # Other tests may have left so many objects that only a part of them would be searched.
    containers = scan_host_objects(many_objects=sys.maxsize).containers
    (of_cached,) = (container for container in containers if container.thing is _cached)
    assert of_cached.length == 12


def test_containers_of_few_entries_are_left_out() -> None:
    few, four = list(range(3)), list(range(4))
    things = [container.thing for container in scan_host_objects().containers]
    assert not any(thing is few for thing in things)
    assert any(thing is four for thing in things)
    assert any(container.thing is few for container in scan_host_objects(min_entries=3).containers)


@pytest.fixture(scope="module")
def sizes() -> dict[str, tuple[float, float]]:
    """By kind of container its measured bytes per entry, and those that a process gained."""
    program = subprocess.run(
        [sys.executable, Path(__file__).with_name("sizes_program.py")],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )
    lines = map(json.loads, program.stdout.splitlines())
    return {name: (measured, gained) for name, measured, gained in lines}


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("kind", sizes_program.MADE)
def test_entries_are_measured_within_a_tenth_of_what_the_process_gains(
    kind: str, sizes: dict[str, tuple[float, float]]
) -> None:
    measured, gained = sizes[kind]
    assert measured == pytest.approx(gained, rel=0.1)


def test_entries_share_what_they_have_in_common() -> None:
    shared = bytes(100_000)
    held = [[shared, [n]] for n in range(100)]
    alone = measure_entries([[None, [n]] for n in range(100)], 100).mean_bytes
    assert measure_entries(held, 100).mean_bytes == pytest.approx(alone + 1_000, rel=0.05)


def test_entries_exclude_tensors_and_the_rest_of_the_program() -> None:
    plain = measure_entries([None] * 6, 6).mean_bytes
    held = [torch.zeros(100_000), np, Box, len, test_containers_of_few_entries_are_left_out, sys]
    assert plain <= measure_entries(held, 6).mean_bytes < plain + 200


def test_a_view_counts_with_the_array_that_it_retains() -> None:
    clips = [np.zeros((50, 1000)) for _ in range(10)]
    held = [clip[0] for clip in clips]
    del clips
    assert measure_entries(held, 10).mean_bytes == pytest.approx(400_000, rel=0.01)
    assert measure_entries([row.copy() for row in held], 10).mean_bytes == pytest.approx(
        8_000, rel=0.05
    )


def test_a_traced_module_has_memory_that_is_not_measured_and_a_tensor_has_not() -> None:
    def is_user_file(file: str) -> bool:
        return file == __file__

    traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert "torch.jit" in find_library_object({"net": traced}, is_user_file)
    assert not find_library_object({"net": torch.nn.Linear(2, 2)}, is_user_file)


def test_the_newest_entry_of_a_container_may_be_a_view() -> None:
    clip = np.zeros((50, 1000))
    assert find_view([clip, clip[0]]).shape == (1000,)  # type: ignore[union-attr]
    assert find_view({3: {"frame": clip[1:3]}}).shape == (2, 1000)  # type: ignore[union-attr]
    assert find_view([clip[0], clip]) is None
    assert find_view([]) is None


def test_an_object_of_a_library_may_have_memory_of_its_own() -> None:
    def is_user_file(file: str) -> bool:
        return "pytest" not in file

    rows = [{"step": 3, "of": Box((pytest.MonkeyPatch(), 1))}]
    assert find_library_object(rows, is_user_file) == "_pytest.monkeypatch.MonkeyPatch"
    assert find_library_object([pytest.MonkeyPatch(), 3], is_user_file) == ""  # not the newest
    assert find_library_object([Box((np.zeros(3), torch.zeros(3), {}))], is_user_file) == ""
    assert find_library_object([], is_user_file) == ""


def test_the_newest_entries_are_measured() -> None:
    held = [bytes(n) for n in (*[9_000] * 100, *[1_000] * 100)]
    assert measure_entries(held, 100).mean_bytes == pytest.approx(1_041, rel=0.05)


def test_of_many_objects_the_bytes_are_estimated() -> None:
    before = scan_host_objects(many_objects=500)
    held = [{"name": f"sample {n}" * 5, "loss": n / 7, "step": n + 1_000} for n in range(20_000)]
    names = sum(sys.getsizeof(row["name"]) for row in held)
    after = scan_host_objects(many_objects=500)
    for kind, expected in {"str": names, "float": 24 * 20_000, "int": 28 * 20_000}.items():
        assert _gained(before.by_type, after.by_type, kind)[1] == pytest.approx(expected, rel=0.1)
    assert _gained(before.by_type, after.by_type, "dict")[0] == pytest.approx(20_000, rel=0.01)


def test_of_many_objects_what_has_come_since_the_first_scan_is_counted_whole() -> None:
    texts = [[f"text {n} of the first" * 9] for n in range(8_000)]
    _ = scan_host_objects()  # interns the names of types
    first = scan_host_objects(many_objects=500)
    assert first.earlier is not None

    texts += [[f"text {n} of the second" * 9] for n in range(100)]
    expected = sum(sys.getsizeof(text[0]) for text in texts[8_000:])
    second = scan_host_objects(many_objects=500, earlier=first.earlier)
    gained = _gained(first.by_type, second.by_type, "str")[1]
    assert gained == pytest.approx(expected, abs=0.15 * expected)
    assert second.earlier is first.earlier

    # What was freed is known by a part of it.
    del texts[:4_000]
    third = scan_host_objects(many_objects=500, earlier=first.earlier)
    freed = -_gained(second.by_type, third.by_type, "str")[0]
    assert freed == pytest.approx(4_000, rel=0.3)


def _small_bytes() -> int:
    return sum(group.small_bytes for group in scan_host_objects().by_type.values())


def test_small_blocks_come_from_pythons_allocator() -> None:
    before, n_before = _small_bytes(), sys.getallocatedblocks()
    held: list[object] = [bytes(200 + n % 200) for n in range(5_000)]
    held += [bytes(5_000) for _ in range(1_000)]
    held += [np.zeros(1_000) for _ in range(1_000)]
    n_blocks = sys.getallocatedblocks() - n_before
    gained = _small_bytes() - before
    # bytes objects have 33 more bytes, arrays an object of 112, and blocks multiples of 16.
    assert gained == pytest.approx(5_000 * 341 + 1_000 * 112, rel=0.1)
    # What C's allocator has counts as a block too, unless a library has asked for it.
    assert n_blocks == pytest.approx(7_000, rel=0.1)


def test_large_objects_are_returned_once() -> None:
    large = np.zeros(100_000)
    held = [large, [large], {"a": large}, io.BytesIO(bytes(500_000))]
    large_containers = [(thing.type, thing.bytes) for thing in scan_host_objects().large]
    assert large_containers.count(("numpy.ndarray", sys.getsizeof(large))) == 1
    # From Python 3.13 on its buffer is an object of its own.
    names = {name for name, size in large_containers if size > 500_000}
    assert names & {"_io.BytesIO", "bytes"}
    assert len(held) == 4


def _text(n: int) -> str:
    return f"sample number {n} of the run"


GROWN: dict[str, Callable[[int], list[object]]] = {
    "ints": lambda n: [i + 1_000_000 for i in range(n)],
    "floats": lambda n: [i / 7 for i in range(n)],
    "strings": lambda n: [_text(i) for i in range(n)],
    "tuples": lambda n: [(i / 7, _text(i), i + 1_000_000) for i in range(n)],
    "dicts": lambda n: [{"step": i + 1_000_000, "loss": i / 7, "name": _text(i)} for i in range(n)],
    "nested lists": lambda n: [[[i / 7, i / 9, i / 3], [_text(i)]] for i in range(n)],
    "byte arrays": lambda n: [bytearray(100 + i % 100) for i in range(n)],
    "large bytes": lambda n: [bytes(1_000) if i % 4 else i / 7 for i in range(n)],
    "sets": lambda n: [{i / 7, i / 9} for i in range(n)],
}


def _bytes_within(thing: Any, seen: set[int]) -> int:  # noqa: ANN401
    """Bytes of an object and all within by ``sys.getsizeof``, with each block a multiple of 16."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    held = [*thing, *thing.values()] if isinstance(thing, dict) else thing
    inner = held if isinstance(held, (list, tuple, set)) else ()
    head = sys.getsizeof(type(thing)()) if isinstance(thing, (list, dict)) else 0
    own_bytes = -(-head // 16) * 16 - (head - sys.getsizeof(thing)) // 16 * 16
    return own_bytes + sum(_bytes_within(child, seen) for child in inner)


@pytest.mark.parametrize("many_objects", [10**9, 4_000], ids=["all objects", "a part of them"])
@pytest.mark.parametrize("kind", GROWN)
def test_the_mean_block_of_what_grows_is_measured(
    kind: str, many_objects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = functools.partial(scan_host_objects, many_objects=many_objects)
    monkeypatch.setattr(host_growth, "scan_host_objects", scan)
    tracker = HostGrowthTracker()
    kept = GROWN[kind](8_000)
    heap = Heap()
    tracker.scan(1)
    before = heap.allocated()
    kept += GROWN[kind](6_000)
    after = heap.allocated()
    tracker.scan(2)
    assert before is not None
    assert after is not None
    expected = _bytes_within(kept[8_000:], {id("step"), id("loss"), id("name")})
    n_blocks = after.n_blocks - before.n_blocks

    gained = after.bytes - before.bytes + n_blocks * tracker.block_bytes
    assert gained == pytest.approx(expected, rel=0.1)


def test_of_many_objects_rare_ones_and_long_lists_are_always_searched() -> None:
    class Table:
        def __init__(self) -> None:
            self.values = np.zeros(20_000)

    tables = [Table() for _ in range(20)]
    checkpoints = [bytes(50_000 + n) for n in range(20)]
    scan = scan_host_objects(many_objects=2_000)
    large_ids = {id(thing.thing) for thing in scan.large}
    assert {id(table.values) for table in tables} <= large_ids
    assert {id(checkpoint) for checkpoint in checkpoints} <= large_ids


class _Log:
    def __init__(self) -> None:
        self.by_split: dict[str, dict[str, float]] = {"train": {}, "test": {}}


_log = _Log()


def test_a_dict_of_numbers_is_always_found_wherever_it_is() -> None:
    """The collector does not track it, so that only what refers to it tells of it."""
    gc.unfreeze()
    before = scan_host_objects(many_objects=2_000)
    numbers = _log.by_split["train"]
    numbers.update({f"step {n}": float(n) for n in range(20_000)})
    is_tracked = gc.is_tracked(numbers)
    try:
        assert any(sized.thing is _log.by_split["train"] for sized in scan_containers().containers)
        del numbers
        after = scan_host_objects(many_objects=2_000, earlier=before.earlier)
        assert any(sized.thing is _log.by_split["train"] for sized in after.containers)
    finally:
        _log.by_split["train"].clear()
    assert not is_tracked or sys.version_info >= (3, 14)
