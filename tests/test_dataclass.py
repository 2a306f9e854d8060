"""profkit's ``dataclass`` against that of the standard library."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pytest

from profkit.dataclass import dataclass, replace

OURS: Any = dataclass
THEIRS: Any = dataclasses.dataclass


def made(of: Callable[..., Any], *, frozen: bool = True, eq: bool = True) -> Any:  # noqa: ANN401
    """Return a class with fields of every kind that profkit has."""

    @of(frozen=frozen, eq=eq)
    class Made:
        """A class."""

        name: str
        numbers: tuple[int, ...] = ()
        counts: dict[str, int] = field(default_factory=dict)
        took_ns: int = field(default=0, compare=False)
        hidden: object = field(default=None, repr=False)

        @cached_property
        def total(self) -> int:
            """Return a value that is stored in an instance."""
            return sum(self.numbers)

    return Made


@dataclass(frozen=True)
class Plain:
    """A class that can be pickled."""

    name: str
    size: float = 0.0


@pytest.mark.parametrize(
    "options", [{}, {"frozen": False}, {"frozen": False, "eq": False}], ids=str
)
def test_it_makes_what_the_standard_library_makes(options: dict[str, bool]) -> None:
    ours, theirs = made(OURS, **options), made(THEIRS, **options)
    assert dataclasses.is_dataclass(ours("a"))
    assert ours("a").counts is not ours("a").counts
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__dataclass_params__.frozen is theirs.__dataclass_params__.frozen

    for arguments in [("a",), ("a", (1, 2)), ("a", (), {"b": 1}, 5, 6)]:
        mine, expected = ours(*arguments), theirs(*arguments)
        assert repr(mine) == repr(expected)
        assert dataclasses.asdict(mine) == dataclasses.asdict(expected)
        assert (mine == ours(*arguments)) == (expected == theirs(*arguments))
        assert (mine != ours("b")) == (expected != theirs("b"))
        assert mine != expected
        later = dataclasses.replace(mine, took_ns=9)
        assert (later == mine) == (dataclasses.replace(expected, took_ns=9) == expected)
        assert later.took_ns == 9
    for n_arguments in (0, 6):
        with pytest.raises(TypeError) as mine_raised:
            ours(*range(n_arguments))
        with pytest.raises(TypeError) as other_raised:
            theirs(*range(n_arguments))
        assert str(mine_raised.value) == str(other_raised.value)


@pytest.mark.parametrize("of", [OURS, THEIRS])
def test_frozen_instances_do_not_change(of: Callable[..., Any]) -> None:
    instance = made(of)("a", (1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        instance.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del instance.name
    assert instance.total == 3


@pytest.mark.parametrize("of", [OURS, THEIRS])
def test_hashes(of: Callable[..., Any]) -> None:
    @of(frozen=True)
    class Key:
        name: str
        note: str = field(default="", compare=False)

    @of(frozen=True)
    class Empty:
        pass

    assert len({Key("a"), Key("a", "b"), Key("c")}) == 2  # type: ignore[call-arg]
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert made(of, frozen=False).__hash__ is None
    assert hash(made(of, frozen=False, eq=False)("a"))


@pytest.mark.parametrize("of", [OURS, THEIRS])
def test_fields_are_compared_by_identity_first(of: Callable[..., Any]) -> None:
    @of(frozen=True)
    class Column:
        values: Any

    values = np.arange(3)
    assert Column(values) == Column(values)  # type: ignore[call-arg]
    assert Column(float("nan")) != Column(float("nan"))  # type: ignore[call-arg]


@pytest.mark.parametrize("of", [OURS, THEIRS])
def test_own_methods_stay(of: Callable[..., Any]) -> None:
    @of
    class Own:
        size: int

        def __post_init__(self) -> None:
            self.double = 2 * self.size

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    @of
    class Begun:
        size: int

        def __init__(self) -> None:
            self.size = 7

    instance = Own(3)  # type: ignore[call-arg]
    assert (
        instance.double,
        repr(instance),
        instance == 5,
        hash(instance) == object.__hash__(instance),
    ) == (
        6,
        "own",
        True,
        True,
    )
    assert Begun() == Begun()


@pytest.mark.parametrize("of", [OURS, THEIRS])
def test_classes_are_inherited(of: Callable[..., Any]) -> None:
    base: Any = made(of)

    @of(frozen=True)
    class More(base):
        size: int = 1

    class Plainer(base):
        pass

    assert More("a", size=2) == More("a", size=2)
    assert More("a", size=2) != More("a", size=3)
    assert repr(Plainer("a")).endswith("Plainer(name='a', numbers=(), counts={}, took_ns=0)")
    with pytest.raises(TypeError, match="frozen"):

        @of
        class _Changing(base):
            pass


def test_instances_are_copied_pickled_and_decoded() -> None:
    instance = Plain("a", 0.5)
    assert pickle.loads(pickle.dumps(instance)) == instance  # noqa: S301
    assert copy.deepcopy(instance) == instance
    assert msgspec.json.decode(msgspec.json.encode(instance), type=Plain) == instance
    assert msgspec.json.decode(b'{"name": "a"}', type=Plain) == Plain("a")


def test_a_copy_with_other_values_is_what_the_standard_library_makes() -> None:
    instance = made(OURS)("a", numbers=(1, 2), hidden=object())
    assert instance.total == 3
    for changes in ({}, {"numbers": (4,), "took_ns": 7}, {"counts": {"b": 2}}):
        ours, theirs = replace(instance, **changes), dataclasses.replace(instance, **changes)
        assert vars(ours) == vars(theirs)
        assert ours.total == sum(ours.numbers)
    with pytest.raises(TypeError, match="no field 'size'"):
        replace(instance, size=1)


def test_a_copy_is_checked_as_a_new_instance_is() -> None:
    @dataclass(frozen=True)
    class Checked:
        size: int = 0

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

    assert replace(Checked(1), size=2) == Checked(2)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), size=-1)


def test_methods_are_compiled_for_classes_with_many_instances() -> None:
    kind = made(OURS)
    instance = kind("a", counts={"b": 1})
    assert not inspect.isfunction(vars(kind)["__init__"])
    for _ in range(20):
        assert kind("a", counts={"b": 1}) == instance
    assert inspect.isfunction(vars(kind)["__init__"])


@pytest.mark.parametrize("options", [{"kw_only": True}, {"init": False}, {"default": []}], ids=str)
def test_fields_are_positional(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="name"):

        @dataclass
        class _Keyword:
            name: object = field(**options)  # type: ignore[misc]
