"""The autograd graph behind a tensor: how many nodes, and what they keep for backward.

Nodes live in C++ and hide what they hold from Python's collector, so the walk asks them one by
one. What a node saved is read raw: unpacking would run the user's hooks, which may read a file or
compute a layer anew. The walk holds the nodes' Python sides while it runs, and nothing after it.

Source: ``torch/csrc/autograd/saved_variable.h`` (``get_raw_data``, ``retrieve_unpack_hook_data``)
and ``torch/csrc/autograd/python_cpp_function.h``.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from profkit.capture.memory.attributes import namespace_of
from profkit.model.live import Graph

LIMIT: Final = 500_000
"""Nodes after which a walk stops: some seconds, and far beyond the graph of any one step."""

_RAW: Final = "_raw_saved_"
_PACKED_DEPTH: Final = 3
"""How deep a tensor may lie within what the user's hook packed: ``(device, (tensor, True))``."""

_saved_names: dict[type, tuple[str, ...]] = {}


def grad_fn_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """The node that made a tensor, or None: without calling ``__torch_function__``.

    Args:
        tensor: A tensor.
    """
    return _read(tensor, "grad_fn")


def gradient_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """What is in ``tensor.grad``: without calling ``__torch_function__``.

    Args:
        tensor: A tensor.
    """
    # Reading it from a tensor that is no leaf warns, and such a tensor rarely has one.
    if not _read(tensor, "is_leaf") and not _read(tensor, "retains_grad"):
        return None
    return _read(tensor, "grad")


def base_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """The tensor that this one is a view of, or None: without calling ``__torch_function__``.

    Args:
        tensor: A tensor.
    """
    return _read(tensor, "_base")


def storage_of(tensor: Any) -> tuple[int, int] | None:  # noqa: ANN401
    """Address of a tensor's storage object and its bytes, or None where it has none.

    Args:
        tensor: A tensor.
    """
    import torch

    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001  (the one way past the user's code)
            storage = torch.Tensor.untyped_storage(tensor)
            return int(storage._cdata), int(storage.nbytes())  # noqa: SLF001
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def behind(node_or_tensor: Any, *, counted: set[int], limit: int = LIMIT) -> Graph:  # noqa: ANN401
    """The graph behind a node, or behind the ``grad_fn`` of a tensor.

    Args:
        node_or_tensor: A node or a tensor.
        counted: Addresses of storages that are not to be counted; those counted are added.
        limit: Nodes after which the walk stops.

    Returns:
        Its nodes, and the bytes of the storages that they keep.
    """
    node = grad_fn_of(node_or_tensor) if is_tensor(node_or_tensor) else node_or_tensor
    if node is None:
        return Graph(0, 0, "")
    walk = Walk(limit)
    n_bytes = sum(_kept_by(one, counted) for one in walk.nodes([node]))
    return Graph(walk.n_nodes, n_bytes, type(node).__name__, is_exact=walk.is_exact)


def kept_bytes(tensors: Iterable[Any], *, counted: set[int], limit: int = LIMIT) -> int:
    """Bytes that all graphs behind some tensors keep, each storage once.

    Args:
        tensors: The tensors, such as all that are alive.
        counted: Addresses of storages that are not to be counted, such as those of these
            tensors; those counted are added.
        limit: Nodes after which the walk stops.
    """
    roots = (node for tensor in tensors if (node := grad_fn_of(tensor)) is not None)
    return sum(_kept_by(one, counted) for one in Walk(limit).nodes(roots))


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
        is_exact: Whether it has not stopped at its limit.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.n_nodes = 0
        self.is_exact = True
        self._limit = limit
        # A node's Python side is made anew when it is asked for after it has died, so an id is
        # an identity only for as long as the object is held.
        self._seen: dict[int, Any] = {}

    def nodes(self, roots: Iterable[Any]) -> Iterator[Any]:
        """Every node behind ``roots``, those included, that this walk has not met before.

        Args:
            roots: Nodes.
        """
        for root in roots:
            pending = [root]
            while pending:
                node = pending.pop()
                if id(node) in self._seen:
                    continue
                if self.n_nodes >= self._limit:
                    self.is_exact = False
                    return
                self._seen[id(node)] = node
                self.n_nodes += 1
                yield node
                pending.extend(following(node))


def following(node: Any) -> list[Any]:  # noqa: ANN401
    """The nodes that backward visits after this one.

    Args:
        node: A node.
    """
    try:
        return [one for one, _ in node.next_functions if one is not None]
    except (AttributeError, RuntimeError):
        return []


def saved_by(node: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401
    """What a node keeps, by the name that it has there.

    Tensors as they are, and where the user's hook packed one, what it packed. Of the user's own
    functions also the attributes that they set on ``ctx``.

    Args:
        node: A node.
    """
    kind = type(node)
    if kind not in _saved_names:
        _saved_names[kind] = tuple(
            name for name in dir(kind) if name.startswith(_RAW) or name == "variable"
        )
    for name in _saved_names[kind]:
        value = _attribute(node, name)
        if value is None:
            continue
        label = name.removeprefix(_RAW)
        if type(value) is tuple:
            for place, one in enumerate(value):
                yield f"{label}[{place}]", _raw(one)
        else:
            yield label, value if name == "variable" else _raw(value)
    for label, value in ctx_attributes(node).items():
        yield label, value


def ctx_attributes(node: object) -> dict[str, object]:
    """What the user's own function has set on its ``ctx``, which is the node.

    Args:
        node: A node.
    """
    import torch

    if not issubclass(type(node), torch.autograd.function.BackwardCFunction):
        return {}
    return dict(namespace_of(node) or {})


def _raw(saved: Any) -> object:  # noqa: ANN401
    """What is in a saved variable; None when backward has freed it."""
    return _attribute(saved, "data")


def _attribute(owner: Any, name: str) -> Any | None:  # noqa: ANN401
    """An attribute of one of torch's own classes; None where it is freed or not to be had."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def _kept_by(node: Any, counted: set[int]) -> int:  # noqa: ANN401
    """Bytes of the storages that one node keeps and that are not counted yet."""
    total = 0
    for _, kept in saved_by(node):
        for tensor in _tensors_in(kept):
            storage = storage_of(tensor)
            if storage is not None and storage[0] not in counted:
                counted.add(storage[0])
                total += storage[1]
    return total


def _tensors_in(kept: object) -> Iterator[object]:
    """A tensor, or those within what a hook packed."""
    level: list[object] = [kept]
    for _ in range(_PACKED_DEPTH):
        yield from (one for one in level if is_tensor(one))
        inner: list[Iterable[object]] = []
        for one in level:
            if type(one) in {tuple, list}:
                inner.append(one)  # type: ignore[arg-type]
            elif type(one) is dict:
                inner.append(one.values())
        level = list(chain.from_iterable(inner))


def _read(tensor: Any, name: str) -> Any | None:  # noqa: ANN401
    """An attribute of a tensor as torch has it, past ``__torch_function__`` and subclasses."""
    import torch

    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001  (the one way past the user's code)
            return getattr(torch.Tensor, name).__get__(tensor)
    except (RuntimeError, AttributeError, TypeError):
        return None
