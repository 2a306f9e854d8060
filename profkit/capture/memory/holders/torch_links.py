"""Links of a chain that only torch has: a module's parts, an optimizer's state, a tensor's graph.

Torch's classes are found among the modules that are loaded: a program that has not imported torch
has no such links.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.attributes import namespace_of, type_name
from profkit.capture.memory.holders.holder_step import HolderStep
from profkit.capture.memory.holders.keys import key_of, subscript
from profkit.model.live_memory import HolderKind

Path = Sequence[object]

_PARTS: Final = frozenset({"_modules", "_parameters", "_buffers"})
"""Dicts of a module whose entries read as the module's attributes."""


def from_module(path: Path) -> HolderStep | None:
    """An attribute of an ``nn.Module``.

    Args:
        path: The rest of a path, the holder first.
    """
    if not is_a(path[0], "torch.nn", "Module"):
        return None
    length = 2 if path[1] is namespace_of(path[0]) else 1
    if len(path) <= length:
        return None
    key = key_of(namespace_of(path[0]), path[length])
    if key is None or type(key[0]) is not str:
        return None
    name = key[0]
    kind: HolderKind = "hook" if name.endswith("hooks") else "instance"
    if name not in _PARTS or len(path) <= length + 1:
        return HolderStep(f".{name}", length, kind=kind)
    part = key_of(path[length], path[length + 1])
    if part is None or type(part[0]) is not str:
        return HolderStep(f".{name}", length, kind=kind)
    text = f".{part[0]}" if part[0].isidentifier() else f"[{part[0]}]"
    return HolderStep(text, length + 1, kind=kind)


def from_optimizer(path: Path) -> HolderStep | None:
    """An attribute of an optimizer.

    Args:
        path: The rest of a path, the holder first.
    """
    if not is_a(path[0], "torch.optim", "Optimizer"):
        return None
    length = 2 if path[1] is namespace_of(path[0]) else 1
    if len(path) <= length:
        return None
    key = key_of(namespace_of(path[0]), path[length])
    if key is None or type(key[0]) is not str:
        return None
    kind: HolderKind = "hook" if key[0].endswith("hooks") else "optimizer"
    return HolderStep(f".{key[0]}", length, kind=kind)


def from_tensor(path: Path) -> HolderStep | None:
    """A tensor's hooks and its graph; its own attributes are those of any instance.

    Args:
        path: The rest of a path, the holder first.
    """
    if not is_a(path[0], "torch", "Tensor") or path[1] is namespace_of(path[0]):
        return None
    if autograd_graphs.grad_fn_of(path[0]) is path[1]:
        return HolderStep(".grad_fn", 1)
    if issubclass(type(path[1]), dict):
        return HolderStep("._backward_hooks", 1, kind="hook")
    return None


def from_node(path: Path) -> HolderStep | None:
    """What the user's own autograd function keeps: on ``ctx``, which is its node.

    Args:
        path: The rest of a path, the holder first.
    """
    if not is_a(path[0], "torch.autograd.function", "BackwardCFunction"):
        return None
    function = type_name(type(path[0])).removesuffix("Backward")
    where = f" on the ctx of {function}"
    namespace = namespace_of(path[0])
    length = 2 if path[1] is namespace else 1
    if len(path) <= length:
        return None
    key = key_of(namespace, path[length])
    if key is None:
        return None
    name = key[0] if type(key[0]) is str else subscript(key[0])
    return HolderStep(name, length, stretch=True, where=where, kind="context")


def is_a(thing: object, module: str, name: str) -> bool:
    """Whether something is an instance of one of torch's classes, by its type alone.

    Args:
        thing: Any object.
        module: The class's module; when it is not loaded there are no instances.
        name: The class's name in it.
    """
    loaded: Any = sys.modules.get(module)
    cls = None if loaded is None else vars(loaded).get(name)
    return isinstance(cls, type) and issubclass(type(thing), cls)
