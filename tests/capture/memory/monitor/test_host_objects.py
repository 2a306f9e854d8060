"""Host memory beside tensors, compared with objects of known size and with tracemalloc."""

import array
import collections
import functools
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from profkit.capture.memory.monitor.host_objects import bytes_within, scan_host_objects

Totals = dict[str, tuple[int, int]]


@pytest.fixture(autouse=True)
def _only_what_is_new() -> Iterator[None]:
    """Exclude existing objects from scans."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _gained(before: Totals, after: Totals, name: str) -> tuple[int, int]:
    n, n_bytes = after.get(name, (0, 0))
    old_n, old_bytes = before.get(name, (0, 0))
    return n - old_n, n_bytes - old_bytes


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
        for n, one in enumerate(made):
            held[n] = one
        return [held]
    return [Box(one) for one in made]


def test_a_shared_object_is_counted_once() -> None:
    before = scan_host_objects().by_type
    one = bytes(5_000)
    held = [[one] for _ in range(50)]
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
    assert (n, n_bytes) == (5, 5 * dict.__sizeof__(held[0]))
    assert scan_host_objects().containers
    assert bytes_within(held) > 0


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
    (found,) = (one for one in scan_host_objects().containers if one.thing is mine)
    assert (found.type, found.length) == (name, 40)
    assert found.bytes == sys.getsizeof(mine)


def test_an_untracked_dict_of_arrays_is_returned() -> None:
    cache = {f"{n}": np.zeros(3) for n in range(30)}
    holder = [cache]
    assert any(one.thing is cache for one in scan_host_objects().containers)
    assert len(holder) == 1


def test_a_functools_cache_is_returned_with_its_entries() -> None:
    gc.unfreeze()
    for n in range(12):
        _cached(n)
    (found,) = (one for one in scan_host_objects().containers if one.thing is _cached)
    assert found.length == 12


def test_containers_of_few_entries_are_left_out() -> None:
    few, some = list(range(7)), list(range(8))
    found = [one.thing for one in scan_host_objects().containers]
    assert not any(one is few for one in found)
    assert any(one is some for one in found)
    assert any(one.thing is few for one in scan_host_objects(min_entries=7).containers)


def test_bytes_within_count_each_object_once() -> None:
    shared = bytes(1_000)
    names = ["é" * 40, "ü" * 50]
    held = [shared, [shared, names[0]], {names[1]: np.zeros(100)}, (bytearray(10),)]
    parts: list[object] = [held, shared, held[1], *names, held[2], held[3], held[3][0]]  # type: ignore[index]
    parts.append(held[2][names[1]])  # type: ignore[index]
    assert bytes_within(held) == sum(map(sys.getsizeof, parts))


def test_bytes_within_exclude_tensors_and_the_rest_of_the_program() -> None:
    plain = bytes_within([None] * 6)
    held = [torch.zeros(100_000), np, Box, len, test_containers_of_few_entries_are_left_out, sys]
    assert plain <= bytes_within(held) < plain + 1_000


def test_measuring_stops_at_its_limit() -> None:
    held = [bytes(1_000 + n) for n in range(500)]
    assert bytes_within(held, limit=101) < sys.getsizeof(held) + 102 * 1_600
    assert bytes_within(held) > 500 * 1_000
