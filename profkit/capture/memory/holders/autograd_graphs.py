"""Walks the autograd graph behind tensors: its nodes, and the bytes that they save for backward.

Nodes live in C++, and the garbage collector does not see what they hold, so the walk reads them
one by one. Saved tensors are read raw: unpacking would run the user's hooks, which may read a file
or recompute a layer. The walk holds the nodes' Python objects while it runs and nothing after it.

Its depth is bounded. Since torch 2.13 a node that was accessed from Python keeps its Python object
until it dies, and a chain of such nodes is destroyed recursively, with some 180 bytes of stack per
node: fifty thousand of them overflow a stack of 8 MiB. So all walks together leave most of the
stack free. Earlier releases leave nothing behind, and any depth is safe.

Source: ``torch/csrc/autograd/saved_variable.h`` (``get_raw_data``, ``retrieve_unpack_hook_data``),
``torch/csrc/autograd/python_cpp_function.h``; ``can_have_pyobject`` of
``torch/csrc/autograd/node.h`` (the bytes per node are measured).
"""

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from profkit.capture.memory.holders.attributes import namespace_of, type_name
from profkit.capture.process.new_thread import in_new_thread
from profkit.capture.process.objects import no_torch_function
from profkit.capture.process.torch_features import shows_saved_tensors
from profkit.model.live_memory import Graph

LIMIT: Final = 200_000
"""Nodes after which a walk stops: a second or two, and far more than the graph of one step."""

_RAW: Final = "_raw_saved_"
_LEAF: Final = "variable"
"""The attribute in which ``AccumulateGrad`` holds its leaf."""

_MOSTLY: Final = 0.5
"""Share of the nodes of the smaller of two graphs from which they are one graph."""
_PACKED_DEPTH: Final = 3
"""Nesting of a tensor in what a user's hook packed: ``(device, (tensor, True))``."""

_STACK_BYTES_PER_NODE: Final = 256
"""Stack that the destruction of a node is taken to need: 180 bytes were measured."""
_DEFAULT_STACK_BYTES: Final = 8 << 20
_SMALL_STACK_BYTES: Final = 1 << 20
"""The main thread's stack on Windows, which has no ``resource`` module to report it."""
_UNLIMITED_DEPTH: Final = sys.maxsize
_SHALLOW: Final = 64
"""Depth of later walks once a graph was too deep: each reaches its newest nodes."""
_MAX_SHALLOW_WALKS: Final = 100
"""Number of such walks: together they reach no more than a third of what the stack allows."""


class _ProcessState:
    """What walks have left in the graphs of this process, which adds up.

    Attributes:
        n_cut_walks: Walks that stopped at the safe depth.
    """

    n_cut_walks: int = 0


_state: Final = _ProcessState()


def grad_fn_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """Return the node that created a tensor, or None; ``__torch_function__`` is not called."""
    return _read(tensor, "grad_fn")


def grad_fns_of(tensors: Iterable[Any]) -> list[Any]:
    """Return the nodes that created some tensors; those without a graph are left out."""
    return [node for tensor in tensors if (node := grad_fn_of(tensor)) is not None]


def sequence_nr_of(tensor: Any) -> int | None:  # noqa: ANN401
    """Return the sequence number of the node that created a tensor, or None without one.

    Autograd numbers the nodes of a thread (``torch/csrc/autograd/function.h``, ``sequence_nr``),
    so an in-place operation changes it.
    """
    try:
        return int(grad_fn_of(tensor)._sequence_nr())  # type: ignore[union-attr]  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return None


def gradient_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """Return ``tensor.grad``; ``__torch_function__`` is not called."""
    # Reading it on a non-leaf tensor warns, and such a tensor rarely has one.
    if not _read(tensor, "is_leaf") and not _read(tensor, "retains_grad"):
        return None
    return _read(tensor, "grad")


def base_of(tensor: Any) -> Any | None:  # noqa: ANN401
    """Return the tensor that this one is a view of, or None, as :func:`grad_fn_of` does."""
    return _read(tensor, "_base")


def wrapped_by(tensor: Any) -> Any | None:  # noqa: ANN401
    """Return the tensor that one of ``torch.func`` wraps, or None.

    Source: ``get_unwrapped`` in ``torch/csrc/functorch/init.cpp``.
    """
    if "torch._functorch" not in sys.modules:
        return None
    import torch

    functorch = torch._C._functorch  # noqa: SLF001
    is_wrapper = functorch.is_functorch_wrapped_tensor(tensor)
    return functorch.get_unwrapped(tensor) if is_wrapper else None


def storage_of(tensor: Any) -> tuple[int, int] | None:  # noqa: ANN401
    """Return the address of a tensor's storage object and its bytes, or None without one."""
    import torch

    try:
        with no_torch_function():
            storage = torch.Tensor.untyped_storage(tensor)
            return storage._cdata, storage.nbytes()  # noqa: SLF001
    except (RuntimeError, TypeError):  # a layout without storage, such as sparse; no tensor
        return None


def is_tensor(thing: object) -> bool:
    """Tell whether something is a tensor, by its type alone: ``__class__`` may be overridden."""
    import torch

    return issubclass(type(thing), torch.Tensor)


def measure_graph(tensors: Iterable[Any], *, counted: set[int], limit: int = LIMIT) -> Graph:
    """Measure the graph behind some tensors together, each node and storage once.

    Args:
        counted: Addresses of storages to leave out; those counted are added.
    """
    roots = grad_fns_of(tensors)
    walk = GraphWalk(limit)
    with no_torch_function():
        n_bytes = walk.sum_saved_bytes(roots, counted)

    root = type_name(type(roots[-1])) if roots else ""
    return Graph(walk.n_nodes, n_bytes, root, is_exact=walk.is_exact)


def number_graphs(roots: Sequence[list[Any]], limit: int = LIMIT) -> list[int]:
    """Number graphs from 1 on, the same for those that have most of their nodes in common.

    What accumulates the gradients of parameters belongs to each graph of a network, and counts for
    none.

    Args:
        roots: The first nodes of each graph.
    """
    # The walks live until all are compared: ids identify nodes only while these are held.
    walks = [GraphWalk(limit) for _ in roots]
    node_ids = [
        {id(node) for node in walk.walk(nodes) if _attribute(node, _LEAF) is None}
        for walk, nodes in zip(walks, roots, strict=True)
    ]

    numbers: list[int] = []
    for index, ids in enumerate(node_ids):
        same = (
            numbers[n]
            for n in range(index)
            if len(ids & node_ids[n]) > _MOSTLY * min(len(ids), len(node_ids[n]))
        )
        numbers.append(next(same, max(numbers, default=0) + 1))
    return numbers


class GraphWalk:
    """Visits up to ``limit`` nodes once each, in linear time and without recursion.

    Attributes:
        n_nodes: Nodes visited so far.
        is_exact: False once it has stopped at its limit or at the safe depth.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.n_nodes = 0
        self.is_exact = True
        self._limit = limit
        # A node's Python object may be created anew after it died, so its id identifies the node
        # only while the object is held.
        self._seen: dict[int, Any] = {}
        # Lives no longer than the walk: a program may define a new node class in every step.
        self._classes: dict[int, tuple[tuple[str, ...], bool]] = {}

    def walk(self, roots: Iterable[Any]) -> Iterator[Any]:
        """Yield the nodes reachable from ``roots``, themselves included, not visited yet."""
        max_depth = safe_depth()

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

                # Deeper nodes stay without Python objects, whose destruction would be recursive.
                if depth < max_depth:
                    edges = _attribute(node, "next_functions") or ()
                    pending.extend((parent, depth + 1) for parent, _ in edges if parent is not None)
                elif self.is_exact:
                    self.is_exact = False
                    note_cut_walk()

    def count(self, roots: Iterable[Any]) -> int:
        """Visit the nodes reachable from ``roots``; return how many were visited so far."""
        for _ in self.walk(roots):
            pass
        return self.n_nodes

    def sum_saved_bytes(self, roots: Iterable[Any], counted: set[int]) -> int:
        """Sum the bytes that nodes reachable from ``roots`` save, as in ``measure_graph``.

        Leaves that Python holds, such as the parameters of a module, do not count: they are there
        with or without a graph. 0 where torch does not show saved tensors: a part of them would be
        taken for all.
        """
        nodes = list(self.walk(roots))
        if not shows_saved_tensors():
            return 0

        # A node that saves a leaf comes before the one that accumulates the leaf's gradient.
        for node in nodes:
            if _LEAF in self._describe(type(node))[0]:
                _count_held_leaf(node, counted)
        return sum(self._saved_bytes_of(node, counted) for node in nodes)

    def saved_values(self, node: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401
        """Yield what a node saves for backward, by name.

        Tensors, or what a user's hook packed in their place; of a custom function also the
        attributes set on ``ctx``. None in place of tensors where torch does not show them.
        """
        names, is_custom = self._describe(type(node))

        for name in names:
            value = _attribute(node, name)
            if type(value) is tuple:
                for index, saved in enumerate(value):
                    yield f"{name.removeprefix(_RAW)}[{index}]", _attribute(saved, "data")
            elif name != _LEAF:
                yield name.removeprefix(_RAW), _attribute(value, "data")
            else:
                yield name, value

        if is_custom:
            yield from (namespace_of(node) or {}).copy().items()

    def _saved_bytes_of(self, node: Any, counted: set[int]) -> int:  # noqa: ANN401
        total = 0
        for _, saved in self.saved_values(node):
            for tensor in (saved,) if is_tensor(saved) else _packed_tensors(saved):
                storage = storage_of(tensor)
                if storage is not None and storage[0] not in counted:
                    counted.add(storage[0])
                    total += storage[1]
        return total

    def _describe(self, cls: type) -> tuple[tuple[str, ...], bool]:
        """Return the attributes in which nodes of a class save values, and whether it is custom."""
        description = self._classes.get(id(cls))
        if description is None:
            import torch

            names = (name for name in dir(cls) if name.startswith(_RAW) or name == _LEAF)
            is_custom = issubclass(cls, torch.autograd.function.BackwardCFunction)
            description = self._classes[id(cls)] = tuple(names), is_custom
        return description


def safe_depth() -> int:
    """Return how many links from a root a walk may follow now."""
    if not _nodes_keep_python_objects():
        return _UNLIMITED_DEPTH
    if not _state.n_cut_walks:
        return _half_of_stack()
    return _SHALLOW if _state.n_cut_walks <= _MAX_SHALLOW_WALKS else 0


def note_cut_walk() -> None:
    """Note that a walk has stopped at the safe depth."""
    _state.n_cut_walks += 1


@functools.cache
def _half_of_stack() -> int:
    """Return how many nodes can be destroyed recursively in half of the stack."""
    try:
        import resource

        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
    except ImportError:
        limit_bytes = _SMALL_STACK_BYTES

    is_unlimited = limit_bytes < 0
    stack = _DEFAULT_STACK_BYTES if is_unlimited else min(limit_bytes, _DEFAULT_STACK_BYTES)
    return stack // 2 // _STACK_BYTES_PER_NODE


def _count_held_leaf(node: Any, counted: set[int]) -> None:  # noqa: ANN401
    """Add the storage of the leaf whose gradient a node accumulates, if Python holds it."""
    leaf = _attribute(node, _LEAF)
    if leaf is None or sys.getrefcount(leaf) <= _references_of_graph():
        return
    storage = storage_of(leaf)
    if storage is not None:
        counted.add(storage[0])


@functools.cache
def _references_of_graph() -> int:
    """Count the references to a leaf that only its graph holds: one more from torch 2.13 on."""
    output = _make_output()
    if output is None:
        return sys.maxsize
    leaf = _attribute(output.grad_fn.next_functions[0][0], _LEAF)
    return sys.getrefcount(leaf)


@functools.cache
def _nodes_keep_python_objects() -> bool:
    """Tell whether torch itself holds the Python object of a node that was accessed."""
    output = _make_output()
    if output is None:
        return True
    nodes, plain_objects = [output.grad_fn], [object()]
    # torch holds it for as long as its own tensor holds the node.
    return sys.getrefcount(nodes[0]) > sys.getrefcount(plain_objects[0])


def _make_output() -> Any | None:  # noqa: ANN401
    """Return a tensor with a graph of one node; None where no thread can be started.

    In a thread of its own, so that autograd numbers the nodes of the program as it would.
    """
    import torch

    try:
        return in_new_thread(lambda: torch.ones((), requires_grad=True) * 1)
    except RuntimeError:
        return None


def _attribute(owner: Any, name: str) -> Any | None:  # noqa: ANN401
    """Read an attribute of one of torch's own classes; None once backward has freed it."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def _packed_tensors(packed: object) -> Iterator[object]:
    """Yield the tensors inside what a user's hook packed."""
    level: list[Any] = [packed]
    for _ in range(_PACKED_DEPTH):
        inner: list[Any] = []
        for thing in level:
            if type(thing) is tuple or type(thing) is list:
                inner.extend(thing)
            elif type(thing) is dict:
                inner.extend(thing.values())
        yield from (thing for thing in inner if is_tensor(thing))
        level = inner


def _read(tensor: Any, name: str) -> Any | None:  # noqa: ANN401
    """Read an attribute as ``torch.Tensor`` defines it, whatever a subclass overrides."""
    import torch

    try:
        with no_torch_function():
            return getattr(torch.Tensor, name).__get__(tensor)
    except (RuntimeError, AttributeError, TypeError):  # a view that is invalid now; no tensor
        return None
