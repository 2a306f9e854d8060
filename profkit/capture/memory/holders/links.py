"""Names each link of a reference chain: the attribute, key, index or variable.

Each ``_from_…`` function handles one kind of holder. It receives the rest of a path, the holder
first, and returns how the reference reads and how many objects it covers: an attribute covers both
the instance and its ``__dict__``. Torch's classes are looked up among the loaded modules: without
torch there are no such links.
"""

import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.attributes import (
    class_namespace,
    full_name,
    is_class,
    module_of,
    mro_of,
    namespace_of,
    result_of,
    slots_of,
    type_name,
)
from profkit.capture.memory.holders.containers import (
    find_array_index,
    find_index,
    find_key,
    subscript,
)
from profkit.capture.process.frames import describe_code, locals_of
from profkit.capture.process.objects import is_exactly, referents
from profkit.model.live_memory import CYCLE, FINALIZER, HolderKind

Path = Sequence[object]

_SUSPENDABLE: Final[tuple[tuple[type, str, str], ...]] = (
    (types.GeneratorType, "gi", "generator"),
    (types.CoroutineType, "cr", "coroutine"),
    (types.AsyncGeneratorType, "ag", "async generator"),
)
"""Types of functions that can be suspended, the prefix of their attributes, and their name."""

_KINDS: Final[dict[str, HolderKind]] = {
    "threading.Thread": "thread",
    "_thread._local": "thread",
    "queue.Queue": "queue",
    "_queue.SimpleQueue": "queue",
    "asyncio.queues.Queue": "queue",
    "multiprocessing.queues.Queue": "queue",
    "concurrent.futures._base.Executor": "executor",
}
"""Kinds of holders by the name of their class, or of a base of it."""

_FINALIZER_INFO: Final = vars(weakref.finalize).get("_Info")
"""What ``weakref.finalize`` keeps of each finalizer: what it calls, with its arguments."""

_MODULE_PARTS: Final = frozenset({"_modules", "_parameters", "_buffers"})
"""Dicts of an ``nn.Module`` whose entries read as the module's attributes."""


class Link(NamedTuple):
    """One link of a chain as text.

    Attributes:
        text: Such as ``.cache``, ``['k']``, or the name of a variable that starts a segment.
        length: Number of objects of the path that it covers.
        starts_segment: Whether a new segment begins: a function's variable, not an attribute.
        where: Suffix of that segment, such as `` in the closure of hook at train.py:5``.
        restarts: Whether it has a name of its own that replaces all text before it.
        kind: The kind of holder that this link shows, or None.
        is_entry: Whether it is an entry of a container, such as ``[17]``.
        is_named: Whether the program can write it; an attribute of an object in C has no name.
    """

    text: str
    length: int
    starts_segment: bool = False
    where: str = ""
    restarts: bool = False
    kind: HolderKind | None = None
    is_entry: bool = False
    is_named: bool = True


def name_link(path: Path) -> Link:
    """Name how the first of at least two objects of a path refers to the next."""
    for namer in _NAMERS:
        link = namer(path)
        if link is not None:
            return link

    # A suspended function is named by its variable, which comes next.
    text = "" if _is_suspendable(path[1]) else f" → its {type_name(type(path[1]))}"
    return Link(text, 1, is_named=False)


def unnamed_holder(thing: object) -> str:
    """Return the text for an object that no name leads to."""
    if _is_suspendable(thing) or type(thing) is types.FrameType:
        return ""  # named by its variable and the function that it runs in

    callbacks = (
        (tuple, "the arguments"),
        (types.FunctionType, "the function"),
        (types.MethodType, "the method"),
    )
    for kind, part in callbacks:
        if is_exactly(thing, kind):
            return f"{part} of a callback in C, such as that of `atexit`"
    return f"a {full_name(type(thing))} that no name leads to"


def is_a(thing: object, module: str, name: str) -> bool:
    """Tell whether something is an instance of one of torch's classes, by its type alone.

    Args:
        module: The class's module; without it there are no instances.
        name: The class's name in it.
    """
    loaded: Any = sys.modules.get(module)
    cls = None if loaded is None else vars(loaded).get(name)
    return isinstance(cls, type) and issubclass(type(thing), cls)


def _from_globals(path: Path) -> Link | None:
    if type(path[0]) is not dict or "__builtins__" not in path[0]:
        return None
    key = find_key(path[0], path[1])
    return None if key is None else _attribute(key, 1)


def _from_class(path: Path) -> Link | None:
    cls = path[0]
    if not is_class(cls):
        return None
    inner = referents(class_namespace(cls))
    # Python shows the dict of a class only as a proxy, which refers to the dict.
    if path[2:] and any(thing is path[1] for thing in inner):
        return _attribute(find_key(path[1], path[2]), 2)
    return None


def _from_function(path: Path) -> Link | None:
    function = path[0]
    if type(function) is not types.FunctionType:
        return None
    if function.__defaults__ is path[1] or function.__kwdefaults__ is path[1]:
        return _from_default(function, path)
    if function.__closure__ is not path[1] or not path[3:]:
        return None
    name = function.__code__.co_freevars[find_index(path[1], path[2]) or 0]
    where = f" in the closure of {describe_code(function.__code__)}"
    return Link(name, 3, starts_segment=True, where=where, kind="closure")


def _from_default(function: types.FunctionType, path: Path) -> Link:
    """Name a value that a function has for an argument, which is the same one in every call."""
    code, defaults = function.__code__, function.__defaults__
    attribute = ".__defaults__" if path[1] is defaults else ".__kwdefaults__"

    name: object = None
    if path[2:] and defaults is not None and path[1] is defaults:
        names = code.co_varnames[: code.co_argcount][-len(defaults) :]
        index = find_index(defaults, path[2])
        name = names[index] if index is not None and index < len(names) else None
    elif path[2:]:
        (name,) = find_key(path[1], path[2]) or (None,)

    if type(name) is not str:
        return Link(attribute, 1)
    where = f" in the defaults of {describe_code(code)}"
    return Link(name, 2, starts_segment=True, where=where)


def _from_cache(path: Path) -> Link | None:
    """Name a functools cache, without its internal dict and list elements."""
    cache = path[0]
    if type(cache) is not functools._lru_cache_wrapper:  # noqa: SLF001
        return None
    namespace = namespace_of(cache) or {}
    if path[1] is namespace or namespace.get("__wrapped__") is path[1]:
        return None

    wrapped: Any = namespace.get("__wrapped__")
    is_function = type(wrapped) is types.FunctionType
    name = _name_function(wrapped) if is_function else full_name(type(wrapped))

    length = 1
    while length < len(path) - 1 and (
        type(path[length]) is dict or "lru_list_elem" in type_name(type(path[length]))
    ):
        length += 1
    return Link(f"functools.lru_cache of {name}", length, restarts=True, kind="cache")


def _from_finalizer(path: Path) -> Link | None:
    """Name a finalizer by what it calls and what it watches, not by the registry of all of them."""
    info: Any = path[0]
    if type(info) is not _FINALIZER_INFO:
        return None

    function, watched = info.func, info.weakref()
    if type(function) is types.MethodType:
        function = function.__func__
    is_function = type(function) is types.FunctionType
    name = _name_function(function) if is_function else type_name(type(function))
    text = f"{FINALIZER}(<{type_name(type(watched))}>, {name})"
    return Link(text, 1, restarts=True, kind="class")


def _name_function(function: types.FunctionType) -> str:
    return describe_code(function.__code__).partition(" at ")[0]


def _from_cycle(path: Path) -> Link | None:
    """Name the items of the first pass, which ``itertools.cycle`` saves for the others."""
    if type(path[0]) is itertools.cycle and type(path[1]) is list:
        return Link(f" → the items that {CYCLE} saves", 1, is_named=False)
    return None


def _from_exception(path: Path) -> Link | None:
    error = path[0]
    if type(error) is types.TracebackType:
        return Link("", 1, kind="traceback")
    if not issubclass(type(error), BaseException):
        return None
    for name in ("__traceback__", "__cause__", "__context__", "args"):
        if BaseException.__dict__[name].__get__(error) is path[1]:
            kind: HolderKind | None = "traceback" if name == "__traceback__" else None
            return Link(f".{name}", 1, kind=kind)
    return None


def _from_frame(path: Path) -> Link | None:
    frame = path[0]
    if type(frame) is not types.FrameType:
        return None
    if type(path[1]) is types.FrameType:
        return Link("", 1)
    code = frame.f_code
    function = describe_code(code).rpartition(":")[0]
    return _from_local(path, frame, f" in {function}:{frame.f_lineno or code.co_firstlineno}", None)


def _from_suspended(path: Path) -> Link | None:
    thing: Any = path[0]
    if not _is_suspendable(thing):
        return None
    prefix, title = next(names for kind, *names in _SUSPENDABLE if type(thing) is kind)
    frame: types.FrameType | None = getattr(thing, f"{prefix}_frame")
    code: types.CodeType = getattr(thing, f"{prefix}_code")
    if frame is None or frame is path[1]:
        return Link("", 1, kind="generator")
    return _from_local(path, frame, f" in {title} {describe_code(code)}", "generator")


def _from_local(path: Path, frame: types.FrameType, where: str, kind: HolderKind | None) -> Link:
    """Name the variable of a frame that holds the next object, or a value on its stack."""
    through_cell = type(path[1]) is types.CellType and len(path[2:]) > 0
    held = path[2] if through_cell else path[1]
    for name, value in locals_of(frame).items():
        if value is held:
            length = 2 if through_cell else 1
            return Link(name, length, starts_segment=True, where=where, kind=kind)
    return Link("a temporary value", 1, starts_segment=True, where=where, kind=kind)


def _is_suspendable(thing: object) -> bool:
    return is_exactly(thing, *(kind for kind, *_ in _SUSPENDABLE))


def _from_cell(path: Path) -> Link | None:
    return Link("", 1) if type(path[0]) is types.CellType else None


def _from_method(path: Path) -> Link | None:
    method = path[0]
    if is_exactly(method, types.MethodType, types.BuiltinFunctionType):
        bound: Any = method
        return Link(".__self__", 1) if bound.__self__ is path[1] else None
    return None


def _from_instance(path: Path) -> Link | None:
    """Name an attribute, referred to by the ``__dict__`` or directly by the object."""
    thing = path[0]
    namespace = namespace_of(thing)
    if namespace is None:
        return None

    # Since Python 3.11 an instance may refer to its values without a dict in between.
    if path[1] is not namespace:
        key = find_key(namespace, path[1])
        return None if key is None else _attribute(key, 1, _instance_kind(thing, key))

    if not path[2:]:
        return Link(".__dict__", 1, kind=_instance_kind(thing))
    key = find_key(namespace, path[2])
    return _attribute(key, 2, _instance_kind(thing, key))


def _from_slots(path: Path) -> Link | None:
    names = (name for name, value in slots_of(path[0]) if value is path[1])
    name = next(names, None)
    return None if name is None else Link(f".{name}", 1, kind=_instance_kind(path[0]))


def is_queue(thing: object) -> bool:
    """Tell whether something is a queue or executor, which stores its items in an attribute."""
    return _class_kind(thing) in {"queue", "executor"} and namespace_of(thing) is not None


def _class_kind(thing: object) -> HolderKind | None:
    kinds = (_KINDS.get(full_name(cls)) for cls in mro_of(type(thing)))
    return next(filter(None, kinds), None)


def _instance_kind(thing: object, key: tuple[object] | None = None) -> HolderKind | None:
    """Return what kind of holder an object is.

    Args:
        key: The name of its attribute on the chain, as a 1-tuple; None if it has none.
    """
    kind = _class_kind(thing)
    # A thread's own attributes are its arguments; what the program adds outlives its end.
    is_added = kind == "thread" and key is not None and not str(key[0]).startswith("_")
    if kind is not None and not is_added:
        return kind
    # Types of the standard library, such as a partial or an iterator, are no meaningful kind.
    top = module_of(type(thing)).partition(".")[0]
    return None if top in sys.stdlib_module_names and top != "__main__" else "instance"


def _from_thread_local(path: Path) -> Link | None:
    """Name an entry of a ``threading.local``, which stores each thread's dict in a dict."""
    if not any(full_name(cls) == "_thread._local" for cls in mro_of(type(path[0]))):
        return None
    length = 1
    while length < len(path) - 1 and type(path[length]) is dict:
        length += 1
    return _attribute(find_key(path[length - 1], path[length]), length, "thread")


def _from_container(path: Path) -> Link | None:
    """Name a key, an index, a member or the field of a named tuple."""
    holder, held = path[0], path[1]
    kind: HolderKind | None = _KINDS.get(full_name(type(holder)))
    if issubclass(type(holder), dict):
        key = find_key(holder, held)
        text = " → one of its keys" if key is None else subscript(key[0])
        return Link(text, 1, is_entry=True)

    if issubclass(type(holder), (set, frozenset)):
        return Link(" → a member", 1, is_entry=True)

    index = find_index(holder, held)
    if index is None:
        # Until Python 3.13 a SimpleQueue has its items in a list.
        length = 2 if type(held) is list and path[2:] else 1
        return None if kind is None else Link(" → an item", length, kind=kind, is_entry=True)

    fields = class_namespace(type(holder)).get("_fields")
    if type(holder) is not tuple and type(fields) is tuple and index < len(fields):
        return Link(f".{fields[index]}", 1)
    return Link(f"[{index}]", 1, is_entry=True)


def _from_array(path: Path) -> Link | None:
    array = path[0]
    if type(array) is np.ndarray and array.base is path[1]:
        return Link(".base", 1)
    index = find_array_index(path[0], path[1])
    text = None if index is None else f"[{', '.join(map(str, index))}]"
    return None if text is None else Link(text, 1, is_entry=True)


def _attribute(key: tuple[object] | None, length: int, kind: HolderKind | None = None) -> Link:
    """Name an attribute, or an entry of the namespace if its name is not an identifier."""
    name = "__dict__" if key is None else key[0]
    if type(name) is str and name.isidentifier():
        return Link(f".{name}", length, kind=kind)
    return Link(subscript(name), length, kind=kind, is_entry=True)


def _attribute_of(path: Path) -> tuple[object, int] | None:
    """Find the key of an instance's ``__dict__`` that a path takes, and the objects it covers."""
    namespace = namespace_of(path[0])
    length = 2 if path[1] is namespace else 1
    key = find_key(namespace, path[length]) if len(path) > length else None
    return None if key is None else (key[0], length)


def _from_module_or_optimizer(path: Path) -> Link | None:
    """Name an attribute, hook, submodule, parameter or buffer."""
    is_module = is_a(path[0], "torch.nn", "Module")
    if not is_module and not is_a(path[0], "torch.optim", "Optimizer"):
        return None

    name, length = _attribute_of(path) or (None, 0)
    if type(name) is not str:
        return None

    kind: HolderKind = "instance" if is_module else "optimizer"
    kind = "hook" if name.endswith("hooks") else kind

    if is_module and name in _MODULE_PARTS and len(path) > length + 1:
        part = find_key(path[length], path[length + 1])
        if part is not None and type(part[0]) is str:
            is_name = part[0].isidentifier()
            text = f".{part[0]}" if is_name else f"[{part[0]}]"
            return Link(text, length + 1, kind=kind, is_entry=not is_name)

    return Link(f".{name}", length, kind=kind)


def _from_tensor(path: Path) -> Link | None:
    """Name a tensor's hooks and graph; its other attributes are those of any instance."""
    if not is_a(path[0], "torch", "Tensor") or path[1] is namespace_of(path[0]):
        return None
    if autograd_graphs.grad_fn_of(path[0]) is path[1]:
        return Link(".grad_fn", 1)
    if issubclass(type(path[1]), dict):
        return Link("._backward_hooks", 1, kind="hook")
    return None


def _from_node(path: Path) -> Link | None:
    """Name an attribute of a custom autograd function's ``ctx``, which is its node."""
    is_node = is_a(path[0], "torch.autograd.function", "BackwardCFunction")
    attribute = _attribute_of(path) if is_node else None
    if attribute is None:
        return None
    name = attribute[0] if type(attribute[0]) is str else subscript(attribute[0])
    where = f" on the ctx of {type_name(type(path[0])).removesuffix('Backward')}"
    return Link(name, attribute[1], starts_segment=True, where=where, kind="context")


def _from_task(path: Path) -> Link | None:
    """Name the result of an asyncio task, which the garbage collector sees from Python 3.13 on."""
    task, held = path[0], path[1]
    is_result = is_a(task, "_asyncio", "Future") and result_of(task) is held
    return Link(".result()", 1) if is_result else None


_NAMERS: Final[tuple[Callable[[Path], Link | None], ...]] = (
    _from_globals, _from_class, _from_function, _from_cache, _from_finalizer, _from_cycle,
    _from_exception,
    _from_frame, _from_suspended, _from_cell, _from_method, _from_thread_local,
    _from_module_or_optimizer, _from_tensor, _from_node, _from_task, _from_instance, _from_slots,
    _from_array, _from_container,
)  # fmt: skip
