"""Objects of the process by their type, and its frames, found without running the program's code.

A metaclass of the program may hash or compare its classes as it likes, or refuse: identity alone
is asked.
"""

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import compress
from operator import is_not
from types import FrameType, ModuleType
from typing import Any, Final


def no_torch_function() -> AbstractContextManager[object]:
    """Disable ``__torch_function__`` of tensor subclasses while open."""
    import torch

    return torch._C.DisableTorchFunction()  # noqa: SLF001  (there is no other way)


def is_exactly(thing: object, *kinds: type) -> bool:
    """Return whether the type of something is one of some types, and no subclass."""
    return any(type(thing) is kind for kind in kinds)


def types_of(*types: type) -> list[type]:
    """Return some types and all their subclasses at this moment."""
    kinds = [*types]
    seen = set(map(id, kinds))

    for kind in kinds:  # which grows meanwhile
        # By `type`, as a metaclass may have a method of this name. Several bases share a subclass.
        children: list[type] = type.__subclasses__(kind)
        new = [child for child in children if id(child) not in seen]
        seen.update(map(id, new))
        kinds += new
    return kinds


def type_ids(*types: type) -> set[int]:
    """Return the ids of some types and all their subclasses at this moment."""
    return set(map(id, types_of(*types)))


def instances(objects: Sequence[object], types: Collection[int]) -> list[Any]:
    """Return the objects whose type has one of the given ids: in C alone, 0.1 s for a million."""
    return list(compress(objects, map(types.__contains__, map(id, map(type, objects)))))


def referents_without_modules(*things: object) -> list[object]:
    """Return what some objects refer to, as ``gc.get_referents`` gives it; of modules nothing.

    Python 3.12 up to 3.12.5 counts objects that ``_asyncio`` has freed and will use again among
    what that module refers to. Whoever lists them frees them a second time, and from then on the
    first garbage collection of the program does not end. A module's globals are a container of
    their own.

    Source: https://github.com/python/cpython/issues/122695.
    """
    is_no_module = map(partial(is_not, ModuleType), map(type, things))
    return gc.get_referents(*compress(things, is_no_module))


referents: Final[Callable[..., list[object]]] = (
    referents_without_modules if sys.version_info[:2] == (3, 12) else gc.get_referents
)
"""What some objects refer to directly, to be asked instead of ``gc.get_referents``."""


_MAX_IMMORTAL: Final = 1_000
"""Objects that Python freezes by itself: 375 in Python 3.12.1."""


def has_frozen_objects() -> bool:
    """Return whether the program has frozen its objects, ten thousands of them, by ``gc.freeze()``.

    The collector of Python 3.12 moves immortal objects to the frozen ones by itself.

    Source: ``update_refs`` in CPython's ``Modules/gcmodule.c``.
    """
    return gc.get_freeze_count() > _MAX_IMMORTAL


def running_frames() -> Iterator[FrameType]:
    """Yield the frames of all threads, the innermost of each thread first.

    A frame that one of its own variables refers to is a cycle: until the next full collection it
    would keep all of its callers with what they refer to, such as the gradients of a step. This
    generator's frame is among those that it goes through, and it has only the one variable.
    """
    frame: FrameType | None
    for frame in sys._current_frames().values():  # noqa: SLF001  (there is no other way)
        while frame is not None:
            yield frame
            frame = frame.f_back  # noqa: PLW2901
