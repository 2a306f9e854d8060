"""Objects of the process by their type."""

import gc
import subprocess
import sys
from types import ModuleType

import torch

from profkit.capture.process import program_profilers
from profkit.capture.process.objects import (
    has_frozen_objects,
    instances,
    referents,
    referents_without_modules,
    type_ids,
)


class Hostile(type):
    """A metaclass whose classes may not be compared, hashed or asked for subclasses."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError

    def __hash__(cls) -> int:
        raise RuntimeError

    def __subclasses__(cls) -> list[type]:
        raise RuntimeError


class Base(metaclass=Hostile):
    pass


class Middle(Base):
    pass


class Last(Middle):
    pass


def test_instances_of_subclasses_are_found_without_asking_their_metaclass() -> None:
    made = [Base(), 1, Last(), [], Middle(), None]
    assert instances(made, type_ids(Base)) == [made[0], made[2], made[4]]
    assert instances(made, type_ids(Middle, list)) == [made[2], made[3], made[4]]
    assert instances(made, type_ids()) == []


def test_objects_of_a_type_agree_with_isinstance() -> None:
    objects = gc.get_objects()
    types = (dict, BaseException, torch.nn.Module)
    expected = [thing for thing in objects if issubclass(type(thing), types)]
    assert list(map(id, instances(objects, type_ids(*types)))) == list(map(id, expected))


def test_a_subclass_of_torchs_profiler_in_its_warm_up_is_noticed() -> None:
    class Profile(torch.profiler.profile):
        pass

    users = Profile()
    users.prepare_trace()
    try:
        assert program_profilers.is_open()
    finally:
        users.start_trace()
        users.stop_trace()
    assert not program_profilers.is_open()


def test_referents_agree_with_the_garbage_collector() -> None:
    thing, other_thing = Base(), [1, "a", (2,)]
    thing.name = other_thing  # type: ignore[attr-defined]
    for objects in (
        [],
        [thing],
        [other_thing],
        [thing, other_thing, {"key": thing}, gc.get_objects],
    ):
        expected = list(map(id, gc.get_referents(*objects)))
        assert list(map(id, referents(*objects))) == expected
        assert list(map(id, referents_without_modules(*objects))) == expected


def test_a_module_is_left_out_among_others() -> None:
    held = [object()]
    module = ModuleType("module")
    assert referents_without_modules(module) == []
    assert list(map(id, referents_without_modules(module, held, torch))) == [id(held[0])]


def test_listing_the_referents_of_all_objects_leaves_asyncio_intact() -> None:
    """On Python 3.12 up to 3.12.5 the collection did not end, https://github.com/python/cpython/issues/122695."""
    program = """
import asyncio, gc
from profkit.capture.process.objects import referents

async def main():
    loop = asyncio.get_running_loop()
    for _ in range(3):
        future = loop.create_future()
        loop.call_soon(future.set_result, 1)
        await future

for _ in range(3):
    asyncio.run(main())
    for thing in gc.get_objects():
        referents(thing)
    referents(*gc.get_objects())
    gc.collect()
print("intact")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stdout.strip() == "intact"


def test_immortal_objects_are_not_frozen_by_the_program() -> None:
    gc.unfreeze()
    gc.collect()  # in which Python 3.12 freezes them
    assert not has_frozen_objects()
    gc.freeze()
    try:
        assert has_frozen_objects()
    finally:
        gc.unfreeze()
    assert not has_frozen_objects()
