"""Objects of the process by their type."""

import gc

import torch

from profkit.capture import program_profilers
from profkit.capture.objects import instances, type_ids


class Hostile(type):
    """Its classes may not be compared, hashed or asked for their subclasses."""

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


def test_they_are_those_that_isinstance_finds() -> None:
    objects = gc.get_objects()
    types = (dict, BaseException, torch.nn.Module)
    expected = [one for one in objects if issubclass(type(one), types)]
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
