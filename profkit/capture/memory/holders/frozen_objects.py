"""Holders among objects that the program has frozen.

``gc.freeze()`` takes all objects there are out of the collector's sight, and so out of a search
backward. Where a program has called it, what seems to be held by nothing is looked for forward,
from the modules and the variables of running functions.

Source: ``gc.freeze`` of Python's library reference.
"""

import gc
import sys
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Final

from profkit.capture.memory.holders.attributes import namespace_of
from profkit.capture.memory.holders.untracked_containers import variables
from profkit.capture.source.files import PROFKIT_FOLDER

LIMIT: Final = 2_000_000
"""Objects that are gone through: a few seconds."""

Step = tuple[object, int]
"""What holds, and the id of what it holds."""


def steps_to(wanted: Collection[int], skip: Collection[int]) -> Iterator[Step]:
    """The shortest way forward to each of some objects, the last step of it first.

    Args:
        wanted: Ids of the objects.
        skip: Ids of objects that are no holders.
    """
    if not gc.get_freeze_count():
        return
    missing = set(wanted)
    things: list[object] = [*_namespaces(), *variables()]
    holder_of: dict[int, int | None] = dict.fromkeys([*map(id, things), *skip])
    for place, thing in enumerate(things):
        for held in gc.get_referents(thing):
            if id(held) in holder_of:
                continue
            holder_of[id(held)] = place
            if id(held) in missing:
                missing.discard(id(held))
                yield from _back(things, holder_of, id(held))
            if gc.is_tracked(held):
                things.append(held)
        if not missing or len(things) > LIMIT:
            return


def _namespaces() -> Iterator[object]:
    for module in list(sys.modules.values()):
        namespace = namespace_of(module) if issubclass(type(module), ModuleType) else None
        if namespace is not None and not str(namespace.get("__file__")).startswith(PROFKIT_FOLDER):
            yield namespace


def _back(things: list[object], holder_of: dict[int, int | None], held: int) -> Iterator[Step]:
    place = holder_of[held]
    while place is not None:
        yield things[place], held
        held = id(things[place])
        place = holder_of[held]
