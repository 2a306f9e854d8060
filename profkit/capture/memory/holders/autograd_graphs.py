"""The autograd graph behind a tensor: how many nodes, and what they keep for backward.

Nodes live in C++ and hide what they hold from Python's collector, so the walk asks them one by
one. What a node saved is read raw: unpacking would run the user's hooks, which may read a file or
compute a layer anew. The walk holds the nodes' Python sides while it runs, and nothing after it;
how deep it may go is a matter of safety (:mod:`profkit.capture.memory.holders.recursion_depth`).

Source: ``torch/csrc/autograd/saved_variable.h`` (``get_raw_data``, ``retrieve_unpack_hook_data``)
and ``torch/csrc/autograd/python_cpp_function.h``.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from profkit.capture.memory.holders import recursion_depth
from profkit.capture.memory.holders.attributes import namespace_of, type_name
from profkit.model.live_memory import Graph

LIMIT: Final = 200_000
"""Nodes after which a walk stops: a second or two, and far beyond the graph of any one step."""

_RAW: Final = "_raw_saved_"
_LEAF: Final = "variable"
"""What the node that adds up a leaf's gradient calls the leaf."""

_PACKED_DEPTH: Final = 3
"""How deep a tensor may lie within what the user's hook packed: ``(device, (tensor, True))``."""


def grad_fn_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """The node that made a tensor, or None: without calling ``__torch_function__``."""
    return _read(tensor, "grad_fn")


def head_of(tensor: Any) -> int | None:  # noqa: ANN401
    """The number of the node that made a tensor, or None where it has none.

    Autograd counts the nodes that a thread makes (``torch/csrc/autograd/function.h``,
    ``sequence_nr``), so a tensor changed in place has another one than before.
    """
    try:
        return int(grad_fn_of(tensor)._sequence_nr())  # type: ignore[union-attr]  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return None


def gradient_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """What is in ``tensor.grad``: without calling ``__torch_function__``."""
    # Reading it from a tensor that is no leaf warns, and such a tensor rarely has one.
    if not _read(tensor, "is_leaf") and not _read(tensor, "retains_grad"):
        return None
    return _read(tensor, "grad")


def base_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """The tensor that this one is a view of, or None: without calling ``__torch_function__``."""
    return _read(tensor, "_base")


def storage_of(tensor: Any) -> tuple[int, int] | None:  # noqa: ANN401
    """Address of a tensor's storage object and its bytes, or None where it has none."""
    with past_user_code():
        return _storage(tensor)


def past_user_code() -> AbstractContextManager[object]:
    """While it is open, torch answers for tensors itself and asks no ``__torch_function__``."""
    import torch

    return torch._C.DisableTorchFunction()  # noqa: SLF001  (there is no other way)


def behind(node_or_tensor: Any, *, counted: set[int], limit: int = LIMIT) -> Graph:  # noqa: ANN401
    """The graph behind a node, or behind the ``grad_fn`` of a tensor.

    Args:
        counted: Addresses of storages that are not to be counted; those counted are added.
        limit: Nodes after which the walk stops.

    Returns:
        Its nodes, and the bytes of the storages that they keep.
    """
    node = grad_fn_of(node_or_tensor) if is_tensor(node_or_tensor) else node_or_tensor
    if node is None:
        return Graph(0, 0, "")
    walk = Walk(limit)
    with past_user_code():
        n_bytes = sum(walk.bytes_kept_by(one, counted) for one in walk.nodes([node]))
    return Graph(walk.n_nodes, n_bytes, type_name(type(node)), is_exact=walk.is_exact)


def kept_bytes(tensors: Iterable[Any], *, counted: set[int], limit: int = LIMIT) -> int:
    """Bytes that all graphs behind some tensors keep, each storage once.

    Args:
        tensors: The tensors, such as all that are alive.
        counted: Addresses of storages that are not to be counted, such as those of these
            tensors; those counted are added.
        limit: Nodes after which the walk stops.
    """
    roots = (node for tensor in tensors if (node := grad_fn_of(tensor)) is not None)
    walk = Walk(limit)
    with past_user_code():
        return sum(walk.bytes_kept_by(one, counted) for one in walk.nodes(roots))


def is_tensor(thing: object) -> bool:
    """Whether something is a tensor, by its type alone: ``__class__`` may lie.

    Args:
        thing: Anything.
    """
    import torch

    return issubclass(type(thing), torch.Tensor)


class Walk:
    """A walk over nodes, each once, in linear time and without recursion.

    Args:
        limit: Nodes after which it stops.

    Attributes:
        n_nodes: Nodes reached so far.
        is_exact: Whether it has not stopped at its limit, nor at a depth that is not safe.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.n_nodes = 0
        self.is_exact = True
        self._limit = limit
        # A node's Python side may be made anew when it is asked for after it has died, so an id
        # is an identity only for as long as the object is held.
        self._seen: dict[int, Any] = {}
        # Kept no longer than the walk: a program may make a new class of nodes every step.
        self._kinds: dict[int, tuple[tuple[str, ...], bool]] = {}

    def nodes(self, roots: Iterable[Any]) -> Iterator[Any]:
        """Every node behind ``roots``, those included, that this walk has not met before.

        Args:
            roots: Nodes.
        """
        deepest = recursion_depth.allowed()
        for root in roots:
            pending = [(root, 0)]
            while pending:
                node, depth = pending.pop()
                if id(node) in self._seen:
                    continue
                if self.n_nodes >= self._limit:
                    self.is_exact = False
                    return
                self._seen[id(node)] = node
                self.n_nodes += 1
                yield node
                if depth < deepest:
                    pending.extend((one, depth + 1) for one in following(node))
                elif self.is_exact:
                    self.is_exact = False
                    recursion_depth.note_deep()

    def saved_by(self, node: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401
        """What a node keeps, by the name that it has there.

        Tensors as they are, and where the user's hook packed one, what it packed. Of the user's
        own functions also the attributes that they set on ``ctx``.
        """
        names, is_own = self._kind(type(node))
        for name in names:
            value = _attribute(node, name)
            if type(value) is tuple:
                for place, one in enumerate(value):
                    yield f"{name.removeprefix(_RAW)}[{place}]", _attribute(one, "data")
            elif name != _LEAF:
                yield name.removeprefix(_RAW), _attribute(value, "data")
            else:
                yield name, value
        if is_own:
            yield from ctx_attributes(node).items()

    def bytes_kept_by(self, node: Any, counted: set[int]) -> int:  # noqa: ANN401
        """Bytes of the storages that one node keeps and that are not counted yet.

        Args:
            counted: Addresses of the storages that are; those counted now are added.
        """
        total = 0
        for _, kept in self.saved_by(node):
            for tensor in (kept,) if is_tensor(kept) else _packed_in(kept):
                storage = _storage(tensor)
                if storage is not None and storage[0] not in counted:
                    counted.add(storage[0])
                    total += storage[1]
        return total

    def _kind(self, kind: type) -> tuple[tuple[str, ...], bool]:
        """The names under which nodes of a class keep things, and if it is the user's own."""
        known = self._kinds.get(id(kind))
        if known is None:
            names = (name for name in dir(kind) if name.startswith(_RAW) or name == _LEAF)
            known = self._kinds[id(kind)] = tuple(names), _is_own_function(kind)
        return known


def following(node: Any) -> list[Any]:  # noqa: ANN401
    """The nodes that backward visits after this one."""
    try:
        return [one for one, _ in node.next_functions if one is not None]
    except (AttributeError, RuntimeError):
        return []


def ctx_attributes(node: object) -> dict[str, object]:
    """What the user's own function has set on its ``ctx``, which is the node."""
    return dict(namespace_of(node) or {}) if _is_own_function(type(node)) else {}


def _is_own_function(kind: type) -> bool:
    import torch

    return issubclass(kind, torch.autograd.function.BackwardCFunction)


def _attribute(owner: Any, name: str) -> Any | None:  # noqa: ANN401
    """An attribute of one of torch's own classes; None where backward has freed it."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def _packed_in(kept: object) -> Iterator[object]:
    """The tensors within what a hook packed."""
    level: list[Any] = [kept]
    for _ in range(_PACKED_DEPTH):
        inner: list[Any] = []
        for one in level:
            if type(one) is tuple or type(one) is list:
                inner.extend(one)
            elif type(one) is dict:
                inner.extend(one.values())
        yield from (one for one in inner if is_tensor(one))
        level = inner


def _storage(tensor: Any) -> tuple[int, int] | None:  # noqa: ANN401
    import torch

    try:
        storage = torch.Tensor.untyped_storage(tensor)
        return storage._cdata, storage.nbytes()  # noqa: SLF001
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _read(tensor: Any, name: str) -> Any | None:  # noqa: ANN401
    """An attribute of a tensor as torch has it, past ``__torch_function__`` and subclasses."""
    import torch

    try:
        with past_user_code():
            return getattr(torch.Tensor, name).__get__(tensor)
    except (RuntimeError, AttributeError, TypeError):
        return None
