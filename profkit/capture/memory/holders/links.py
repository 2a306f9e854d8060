"""What one link of a chain is called: the attribute, the key, the index, the variable.

Each function here knows one kind of holder. It is given the rest of a path, the holder first, and
says how what it holds reads, and over how many objects that goes: an attribute takes the instance
and the dict of its attributes in one.
"""

import functools
import gc
import sys
from collections.abc import Callable, Sequence
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any, Final

from profkit.capture.memory.holders import torch_links
from profkit.capture.memory.holders.attributes import (
    class_namespace,
    full_name,
    is_class,
    module_of,
    mro_of,
    namespace_of,
    slots_of,
    type_name,
)
from profkit.capture.memory.holders.frames import locals_of, place_of
from profkit.capture.memory.holders.holder_step import HolderStep
from profkit.capture.memory.holders.keys import (
    array_index_of,
    base_of_array,
    index_of,
    key_of,
    subscript,
)
from profkit.model.live_memory import HolderKind

Path = Sequence[object]

_RUNNERS: Final[tuple[tuple[type, str, str], ...]] = (
    (GeneratorType, "gi", "generator"),
    (CoroutineType, "cr", "coroutine"),
    (AsyncGeneratorType, "ag", "async generator"),
)
"""Types of functions that stop and go on, what their attributes begin with, and their name."""

_THREADS: Final = frozenset(
    {
        "threading.Thread",
        "queue.Queue",
        "_queue.SimpleQueue",
        "_thread._local",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "multiprocessing.queues.Queue",
    }
)


def link(path: Path) -> HolderStep:
    """What the first object of a path says of those that follow.

    Args:
        path: The rest of a path, at least two objects.
    """
    for namer in _NAMERS:
        found = namer(path)
        if found is not None:
            return found
    # A function that waits is named by its variable, which comes next.
    text = "" if _is_runner(path[1]) else f" → its {type_name(type(path[1]))}"
    return HolderStep(text, 1)


def owner(thing: object) -> str:
    """What to call an object that no name leads to.

    Args:
        thing: The object.
    """
    if _is_runner(thing) or type(thing) is FrameType:
        return ""  # The variable within it, and where it runs, say it all.
    return f"a {full_name(type(thing))} that no name leads to"


def _from_globals(path: Path) -> HolderStep | None:
    """A module's global variable."""
    if type(path[0]) is not dict or "__builtins__" not in path[0]:
        return None
    key = key_of(path[0], path[1])
    return None if key is None else HolderStep(_attribute(key), 1)


def _from_class(path: Path) -> HolderStep | None:
    cls = path[0]
    if not is_class(cls):
        return None
    inner = gc.get_referents(class_namespace(cls))
    if path[2:] and any(one is path[1] for one in inner):
        return HolderStep(_attribute(key_of(path[1], path[2])), 2)
    return None


def _from_function(path: Path) -> HolderStep | None:
    function = path[0]
    if type(function) is not FunctionType:
        return None
    if function.__defaults__ is path[1]:
        return HolderStep(".__defaults__", 1)
    if function.__kwdefaults__ is path[1]:
        return HolderStep(".__kwdefaults__", 1)
    if function.__closure__ is not path[1] or not path[3:]:
        return None
    name = function.__code__.co_freevars[index_of(path[1], path[2]) or 0]
    where = f" in the closure of {place_of(function.__code__)}"
    return HolderStep(name, 3, stretch=True, where=where, kind="closure")


def _from_cache(path: Path) -> HolderStep | None:
    """A functools cache; the dict and the links that it is made of are no part of the name."""
    cache = path[0]
    if type(cache) is not functools._lru_cache_wrapper:  # noqa: SLF001
        return None
    namespace = namespace_of(cache) or {}
    if path[1] is namespace or namespace.get("__wrapped__") is path[1]:
        return None
    wrapped = namespace.get("__wrapped__")
    code = wrapped.__code__ if type(wrapped) is FunctionType else None
    name = place_of(code).partition(" at ")[0] if code else full_name(type(wrapped))
    length = 1
    while length < len(path) - 1 and (
        type(path[length]) is dict or "lru_list_elem" in type_name(type(path[length]))
    ):
        length += 1
    return HolderStep(f"functools.lru_cache of {name}", length, restarts=True, kind="cache")


def _from_exception(path: Path) -> HolderStep | None:
    error = path[0]
    if type(error) is TracebackType:
        return HolderStep("", 1, kind="traceback")
    if not issubclass(type(error), BaseException):
        return None
    for name in ("__traceback__", "__cause__", "__context__", "args"):
        if BaseException.__dict__[name].__get__(error) is path[1]:
            kind: HolderKind | None = "traceback" if name == "__traceback__" else None
            return HolderStep(f".{name}", 1, kind=kind)
    return None


def _from_frame(path: Path) -> HolderStep | None:
    frame = path[0]
    if type(frame) is not FrameType:
        return None
    if type(path[1]) is FrameType:
        return HolderStep("", 1)
    code = frame.f_code
    place = place_of(code).rpartition(":")[0]
    return _local(path, frame, f" in {place}:{frame.f_lineno or code.co_firstlineno}", None)


def _from_runner(path: Path) -> HolderStep | None:
    runner: Any = path[0]
    if not _is_runner(runner):
        return None
    prefix, words = next(names for kind, *names in _RUNNERS if type(runner) is kind)
    frame: FrameType | None = getattr(runner, f"{prefix}_frame")
    code: CodeType = getattr(runner, f"{prefix}_code")
    if frame is None or frame is path[1]:
        return HolderStep("", 1, kind="generator")
    return _local(path, frame, f" in {words} {place_of(code)}", "generator")


def _local(path: Path, frame: FrameType, where: str, kind: HolderKind | None) -> HolderStep | None:
    """The variable of a frame that leads on, or None where only its evaluation holds it."""
    through_cell = type(path[1]) is CellType and len(path[2:]) > 0
    held = path[2] if through_cell else path[1]
    for name, value in locals_of(frame).items():
        if value is held:
            length = 2 if through_cell else 1
            return HolderStep(name, length, stretch=True, where=where, kind=kind)
    return HolderStep("what is being worked out", 1, stretch=True, where=where, kind=kind)


def _is_runner(thing: object) -> bool:
    return any(type(thing) is kind for kind, *_ in _RUNNERS)


def _from_cell(path: Path) -> HolderStep | None:
    return HolderStep("", 1) if type(path[0]) is CellType else None


def _from_method(path: Path) -> HolderStep | None:
    method = path[0]
    if type(method) is MethodType or type(method) is BuiltinFunctionType:
        owner_of: Any = method
        return HolderStep(".__self__", 1) if owner_of.__self__ is path[1] else None
    return None


def _from_instance(path: Path) -> HolderStep | None:
    """An attribute: through the dict of attributes, beside it, or in a slot."""
    thing = path[0]
    namespace = namespace_of(thing)
    if namespace is None:
        return None
    if path[1] is not namespace:
        key = key_of(namespace, path[1])
        return None if key is None else HolderStep(_attribute(key), 1, kind=_instance_kind(thing))
    if not path[2:]:
        return HolderStep(".__dict__", 1, kind=_instance_kind(thing))
    return HolderStep(_attribute(key_of(namespace, path[2])), 2, kind=_instance_kind(thing))


def _from_slots(path: Path) -> HolderStep | None:
    for name, value in slots_of(path[0]):
        if value is path[1]:
            return HolderStep(f".{name}", 1, kind=_instance_kind(path[0]))
    return None


def _instance_kind(thing: object) -> HolderKind | None:
    if any(full_name(cls) in _THREADS for cls in mro_of(type(thing))):
        return "thread"
    # A function, a partial, an iterator: Python's own say nothing as a kind.
    top = module_of(type(thing)).partition(".")[0]
    return None if top in sys.stdlib_module_names and top != "__main__" else "instance"


def _from_thread_local(path: Path) -> HolderStep | None:
    """A thread's own values: Python keeps each thread's dict in a dict of the local."""
    if not any(full_name(cls) == "_thread._local" for cls in mro_of(type(path[0]))):
        return None
    length = 1
    while length < len(path) - 1 and type(path[length]) is dict:
        length += 1
    key = key_of(path[length - 1], path[length])
    return HolderStep(_attribute(key), length, kind="thread")


def _from_container(path: Path) -> HolderStep | None:
    holder, held = path[0], path[1]
    kind: HolderKind | None = "thread" if full_name(type(holder)) in _THREADS else None
    if issubclass(type(holder), dict):
        key = key_of(holder, held)
        return HolderStep(" → one of its keys" if key is None else subscript(key[0]), 1)
    if issubclass(type(holder), (set, frozenset)):
        return HolderStep(" → a member", 1)
    place = index_of(holder, held)
    if place is None:
        return None if kind is None else HolderStep(" → an item", 1, kind=kind)
    fields = class_namespace(type(holder)).get("_fields")
    if type(holder) is not tuple and type(fields) is tuple and place < len(fields):
        return HolderStep(f".{fields[place]}", 1)
    return HolderStep(f"[{place}]", 1)


def _from_array(path: Path) -> HolderStep | None:
    """An array's elements, and what it looks into."""
    if base_of_array(path[0]) is path[1]:
        return HolderStep(".base", 1)
    numbers = array_index_of(path[0], path[1])
    return None if numbers is None else HolderStep(f"[{', '.join(map(str, numbers))}]", 1)


def _attribute(key: tuple[object] | None) -> str:
    """How an attribute reads; names that are no identifiers, as a namespace may have, as keys."""
    if key is None:
        return ".__dict__"
    name = key[0]
    return f".{name}" if type(name) is str and name.isidentifier() else subscript(name)


_NAMERS: Final[tuple[Callable[[Path], HolderStep | None], ...]] = (
    _from_globals,
    _from_class,
    _from_function,
    _from_cache,
    _from_exception,
    _from_frame,
    _from_runner,
    _from_cell,
    _from_method,
    _from_thread_local,
    torch_links.from_module,
    torch_links.from_optimizer,
    torch_links.from_tensor,
    torch_links.from_node,
    _from_instance,
    _from_slots,
    _from_array,
    _from_container,
)
