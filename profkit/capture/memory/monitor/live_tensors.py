# ruff: noqa: SLF001  (torch has weak references to storages, and no public names for them)
"""Which tensors are alive, without holding any of them and without looking at every object.

Every tensor is born into Python's youngest generation. So it is enough to look through the young
ones at a boundary, and right before the collector moves them on; what was seen once is followed by
a weak reference to its storage. While that exists no other storage can have its address, and
torch itself frees the bytes as if it did not. Only the first look goes through all objects.

Source: ``torch.multiprocessing.reductions.StorageWeakRef``; ``gc.callbacks``.
"""

import contextlib
import gc
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.autograd_graphs import past_user_code
from profkit.capture.memory.holders.unreachable import quiet_collector
from profkit.capture.memory.holders.untracked_containers import instances, tensor_types
from profkit.capture.memory.monitor import process_metrics
from profkit.capture.memory.monitor.budget import Clock

_PINNED_FROM_BYTES: Final = 4096
"""Smaller host tensors are not asked whether they are pinned."""
_NOWHERE: Final = "meta"
"""The device of tensors that have a shape and no memory, as a compiler makes them to try things."""
AGE: Final = 2
"""Steps that a storage outlives to be one that stays: a loop's variables live into the next."""
_YOUNG_GENERATIONS: Final = (0, 1)
_ALWAYS_MOVED_ON: Final = (3, 14)
"""Since then every collection moves young objects among the old ones."""


class TensorKind(NamedTuple):
    """What tells one sort of tensors from another.

    Attributes:
        device: ``cpu``, ``pinned``, ``cuda:0``.
        dtype: Such as ``float32``.
        size_class: The binary digits of the storage's bytes: all tensors on a storage share them,
            as they do not share a shape.
        has_graph: Whether autograd made it.
    """

    device: str
    dtype: str
    size_class: int
    has_graph: bool


class Entry:
    """A storage that is alive.

    Attributes:
        born: The step whose end first saw it.
        bytes: Its bytes.
        kind: Of the tensor through which it was first seen; without a graph once that tensor is
            gone and another, such as a detached one, has kept the storage.
        graph: The tensor with a graph through which it was seen, or None.
        is_shared: Whether a tensor without a graph was seen on it too.
        is_aged: Whether it has outlived the step that made it, and the next one.
    """

    __slots__ = ("born", "bytes", "graph", "is_aged", "is_shared", "kind")

    def __init__(self, born: int, n_bytes: int, kind: TensorKind) -> None:
        self.born = born
        self.bytes = n_bytes
        self.kind = kind
        self.graph: weakref.ref[Any] | None = None
        self.is_shared = False
        self.is_aged = False


_NONE_KNOWN: Final[Mapping[int, Entry]] = {}


class Amount(NamedTuple):
    """How much there is of one kind.

    Attributes:
        aged_bytes: Bytes of those that have outlived the step that made them, and the next one.
        aged_n: How many those are.
        bytes: Bytes of all.
        n: How many those are.
    """

    aged_bytes: int
    aged_n: int
    bytes: int
    n: int


class LiveTensors:
    """Follows the storages of a program's tensors from look to look.

    Args:
        clock: Says what is within the budget.

    Attributes:
        n_full: How often all objects were looked through.
        n_missed: How often the collector moved young objects on unseen since the last full look.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.n_full = 0
        self.n_missed = 0
        self._entries: dict[int, Entry] = {}
        self._kinds: dict[TensorKind, TensorKind] = {}
        self._graphs: dict[int, weakref.ref[Any]] = {}
        self._first_heads: dict[int, int | None] | None = None
        self._types: set[int] = set()
        self._seen: deque[list[_Seen | None]] = deque()
        self._pid = os.getpid()
        self._is_watching = False

    def begin(self) -> None:
        """Watch the collector from now on."""
        self._is_watching = True
        gc.callbacks.append(self._before_collection)

    def end(self) -> None:
        """Let go of the collector and of everything followed."""
        self._is_watching = False
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._before_collection)
        free = _storages()._free_weak_ref
        for address in self._entries:
            free(address)
        self._entries.clear()
        self._graphs.clear()
        self._first_heads = None
        self._seen.clear()

    def look(self, step: int, *, full: bool = False) -> dict[TensorKind, Amount]:
        """How much there is of each kind now.

        Args:
            step: The step that has ended.
            full: Look through all objects, not the young ones alone.
        """
        with quiet_collector(), past_user_code():
            self._types = tensor_types()
            self.n_full += full
            self.n_missed = 0 if full else self.n_missed
            self._take_in(self._tensors(full=full), step)
            if self._first_heads is None:
                self._first_heads = {
                    id(root): autograd_graphs.head_of(root) for root in self.roots()
                }
                _grow_up()
            return self._count(step)

    def roots(self) -> list[Any]:
        """Tensors that are alive and have a graph; let go of them soon."""
        dead = [key for key, reference in self._graphs.items() if reference() is None]
        for key in dead:
            del self._graphs[key]
        return [tensor for ref in self._graphs.values() if (tensor := ref()) is not None]

    def risen_roots(self) -> list[Any]:
        """Those of :meth:`roots` whose graph is not the one that they had at the first look.

        A sum that is added to in place may be as old as the program, and hangs on a new node.
        """
        first = self._first_heads or {}
        return [
            root
            for root in self.roots()
            if first.get(id(root)) is None or first[id(root)] != autograd_graphs.head_of(root)
        ]

    def entry(self, address: int) -> Entry | None:
        """What is known of a storage.

        Args:
            address: The address of torch's own object for it.
        """
        return self._entries.get(address)

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Address and entry of each storage that was alive at the last look."""
        yield from self._entries.items()

    def tensors(self) -> list[Any]:
        """Every tensor that Python's collector knows of; let go of them soon."""
        self._types = tensor_types()
        return self._tensors(full=True)

    def _tensors(self, *, full: bool) -> list[Any]:
        types = self._types
        if full:
            return instances(gc.get_objects(), types)
        found: list[Any] = []
        for generation in _YOUNG_GENERATIONS:
            found += instances(gc.get_objects(generation=generation), types)
        return found

    def _before_collection(self, phase: str, info: dict[str, int]) -> None:
        """Look at the young ones before they are moved among the old ones, unseen for ever."""
        if phase != "start" or not self._is_watching or self._pid != os.getpid():
            return
        if info["generation"] == 0 and sys.version_info < _ALWAYS_MOVED_ON:
            return
        if not self._clock.affords("collector"):
            self.n_missed += 1
            return
        with contextlib.suppress(Exception), self._clock.spending("collector"), past_user_code():
            self._seen.append([_seen(one) for one in self._tensors(full=False)])

    def _take_in(self, tensors: list[Any], step: int) -> None:
        """Begin to follow what is not followed yet."""
        while self._seen:
            for seen in self._seen.popleft():
                if seen is not None:
                    self._follow(seen, step)
        for tensor in tensors:
            seen = _seen(tensor, self._entries)
            if seen is not None:
                self._follow(seen, step)

    def _follow(self, seen: "_Seen", step: int) -> None:
        kind = self._kinds.setdefault(seen.kind, seen.kind)
        entry = self._entries.get(seen.address)
        if entry is None:
            entry = self._entries[seen.address] = Entry(step, seen.bytes, kind)
        else:
            _storages()._free_weak_ref(seen.address)
            if entry.born == step:
                # Of several tensors on one storage it must not be chance which one counts.
                entry.kind = max(entry.kind, kind, key=_precedence)
        if seen.graph is not None:
            self._graphs[id(seen.graph)] = entry.graph = seen.graph
        else:
            entry.is_shared = True

    def _count(self, step: int) -> dict[TensorKind, Amount]:
        """Sum up what is alive, and forget what is not."""
        alive_now = _storages()._new_with_weak_ptr
        counted: dict[TensorKind, list[int]] = {}
        dead = []
        for address, entry in self._entries.items():
            storage = alive_now(address)
            if storage is None:
                dead.append(address)
                continue
            entry.bytes = storage.nbytes()
            if not entry.is_aged and entry.born <= step - AGE:
                entry.is_aged = True
                entry.kind = self._with_pinned(self._as_kept(entry), storage)
            sums = counted.setdefault(entry.kind, [0, 0, 0, 0])
            sums[2] += entry.bytes
            sums[3] += 1
            if entry.is_aged:
                sums[0] += entry.bytes
                sums[1] += 1
        for address in dead:
            del self._entries[address]
            _storages()._free_weak_ref(address)
        return {kind: Amount(*sums) for kind, sums in counted.items()}

    def _as_kept(self, entry: Entry) -> TensorKind:
        """The kind of a storage that has stayed: a look within a step also sees its variables."""
        is_attached = entry.graph is not None and entry.graph() is not None
        if not entry.kind.has_graph or not entry.is_shared or is_attached:
            return entry.kind
        bare = entry.kind._replace(has_graph=False)
        return self._kinds.setdefault(bare, bare)

    def _with_pinned(self, kind: TensorKind, storage: Any) -> TensorKind:  # noqa: ANN401
        """The kind of a storage that has stayed; only now it is worth asking if it is pinned."""
        if kind.device != "cpu" or storage.nbytes() < _PINNED_FROM_BYTES:
            return kind
        if not process_metrics.is_device_in_use() or not storage.is_pinned():
            return kind
        pinned = kind._replace(device="pinned")
        return self._kinds.setdefault(pinned, pinned)


class _Seen(NamedTuple):
    """What a look takes of a tensor: a weak reference to its storage, by address, and its kind."""

    address: int
    bytes: int
    kind: TensorKind
    graph: "weakref.ref[Any] | None"


def _precedence(kind: TensorKind) -> bool:
    return kind.has_graph


def _seen(tensor: Any, known: Mapping[int, Entry] = _NONE_KNOWN) -> _Seen | None:  # noqa: ANN401
    """Take note of a tensor; None for one without a storage, or with an aged one and no graph.

    Args:
        tensor: Of any kind; subclasses are not asked for what they may compute.
        known: The storages that are followed already, by address.
    """
    import torch

    base: Any = torch.Tensor
    try:
        storage: Any = base.untyped_storage(tensor)
        address, n_bytes = storage._cdata, storage.nbytes()
        made = base.grad_fn.__get__(tensor) is not None
        graph = weakref.ref(tensor) if made else None
        if graph is None and address in known and known[address].is_aged:
            return None
        dtype = str(base.dtype.__get__(tensor)).removeprefix("torch.")
        device = str(storage.device)
        if device == _NOWHERE:
            return None
        kind = TensorKind(device, dtype, n_bytes.bit_length(), made)
        return _Seen(storage._weak_ref(), n_bytes, kind, graph)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None


def _grow_up() -> None:
    """Move all objects among the old ones, unless the program has frozen some.

    Importing torch leaves 100,000 young ones, and each look would go through them. Freezing and
    unfreezing moves them without a collection, which would run the program's finalizers.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def _storages() -> Any:  # noqa: ANN401  (its weak references are no public names)
    import torch

    return torch.UntypedStorage
