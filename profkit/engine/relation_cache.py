"""Caches costly relations of large recordings between runs.

A relation is worth it if it takes much longer to compute than to map its arrays.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

from profkit.dataclass import dataclass
from profkit.readers.cache import Cache, Key
from profkit.readers.progress import Stages
from profkit.readers.stored_value import entry_of, find_valid, value_of
from profkit.readers.stream import Place

_T = TypeVar("_T")
_KIND: Final = b"relation"


@dataclass(frozen=True, eq=False)
class RelationCache:
    """The relations of a recording in the cache.

    Attributes:
        cache: The user's cache.
        key: Of what they depend on: the files.
    """

    cache: Cache
    key: Key

    @classmethod
    def of(cls, cache: Cache, places: Iterable[Place]) -> "RelationCache | None":
        """Return the relations of a recording about to be read; None if it is not worth it."""
        key = cache.key(tuple(places), _KIND)
        return None if key is None else cls(cache, key)

    @property
    def is_current(self) -> bool:
        """Return whether the files are unchanged."""
        return self.cache.is_current(self.key)

    def find(self, name: str, kind: type[_T], holds: Callable[[_T], bool]) -> _T | None:
        """Find a relation, or return None; an entry that is not valid is removed."""
        return find_valid(
            self.cache, self.key.named(name), lambda entry: value_of(kind, entry, holds)
        )

    def store(self, name: str, value: object) -> None:
        """Store a relation."""
        self.cache.store(self.key.named(name), lambda: entry_of(value), Stages())


class _Context(Protocol):
    @property
    def kept(self) -> RelationCache | None: ...


_C = TypeVar("_C", bound=_Context)


def cached_relation(
    holds: Callable[[Any, Any], bool],
) -> Callable[[Callable[[_C], _T]], "cached_property[_T]"]:
    """Make a property that is computed once: the next process finds it in the cache.

    Args:
        holds: Whether a value of its type fits a context, which all readers rely on.
            The cache is input like any other.
    """

    def decorate(make: Callable[[_C], _T]) -> "cached_property[_T]":
        name, kind = make.__name__, make.__annotations__["return"]

        def value(ctx: _C) -> _T:
            if ctx.kept is None:
                return make(ctx)
            stored: _T | None = ctx.kept.find(name, kind, lambda stored: holds(stored, ctx))
            if stored is None:
                stored = make(ctx)
                if stored is not None:
                    ctx.kept.store(name, stored)
            return stored

        value.__doc__ = make.__doc__
        return cached_property(value)

    return decorate
