"""Objects of the process by their type, found without running code of the program.

A metaclass of the program may hash or compare its classes as it likes, or refuse: identity alone
is asked.
"""

from collections.abc import Collection, Sequence
from itertools import compress
from typing import Any


def is_exactly(thing: object, *kinds: type) -> bool:
    """Whether the type of something is one of some types, and no subclass."""
    return any(type(thing) is kind for kind in kinds)


def type_ids(*types: type) -> set[int]:
    """Ids of some types and all their subclasses at this moment."""
    found: set[int] = set()
    pending = [*types]
    while pending:
        one = pending.pop()
        found.add(id(one))
        pending.extend(type.__subclasses__(one))
    return found


def instances(objects: Sequence[object], types: Collection[int]) -> list[Any]:
    """The objects whose type has one of the given ids: in C alone, 0.1 s for a million."""
    return list(compress(objects, map(types.__contains__, map(id, map(type, objects)))))
