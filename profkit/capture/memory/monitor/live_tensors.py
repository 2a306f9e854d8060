# ruff: noqa: SLF001  (torch's weak references to storages have no public names)
"""Tracks live tensors without keeping any alive and without scanning every object.

Every new tensor is in Python's youngest garbage collector generations. So it is enough to scan
those at step boundaries, and right before a collection promotes them; each storage found is then
tracked by a weak reference. While that exists no other storage can have its address, and torch
still frees the bytes. What existed before the first step is found by one pass over all objects,
which may come later: what is still unknown then has existed all the time.

Source: ``torch.multiprocessing.reductions.StorageWeakRef``.
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
from profkit.capture.memory.holders.untracked_containers import live_tensors, tensor_types
from profkit.capture.memory.monitor.budget import Clock
from profkit.capture.process import devices, signals
from profkit.capture.process.garbage_collections import CollectorCallback, before_collections
from profkit.capture.process.objects import has_frozen_objects, instances, no_torch_function
from profkit.readers.process_memory import garbage_collection_paused

MAX_STORAGES: Final = 200_000
"""Storages that are tracked at most, which takes some 70 MB."""
_MAX_SEEN: Final = 50_000
"""Tensors that are recorded at most before collections until the next scan."""
_BYTES_PER_STORAGE: Final = 370
"""Memory to track a storage: its entry in a dict, two numbers and a weak reference. Measured."""
_PINNED_FROM_BYTES: Final = 4096
"""Smaller host storages are not checked for being pinned, which asks the CUDA driver."""
_META: Final = "meta"
"""The device of tensors without memory, such as those that a compiler creates."""
MIN_AGE_STEPS: Final = 2
"""Steps that a storage survives to count as aged: variables of a loop live into the next step."""
_YOUNG_GENERATIONS: Final = (0, 1)
_EVERY_COLLECTION_PROMOTES: Final = (3, 14)
"""Since then every collection promotes young objects out of sight."""


class TensorKind(NamedTuple):
    """A group of similar tensors.

    Attributes:
        device: ``cpu``, ``pinned``, ``cuda:0``.
        dtype: Such as ``float32``.
        size_class: Bit length of the storage's bytes, which all tensors on a storage share,
            whereas their shapes differ.
        has_graph: Whether autograd created it.
    """

    device: str
    dtype: str
    size_class: int
    has_graph: bool


class LiveStorage:
    """A storage that is alive.

    Attributes:
        first_step: The step at whose end it was first seen.
        kind: Kind of the tensor through which it was first seen; without a graph once that tensor
            is gone and another, such as a detached one, keeps the storage.
        tensor: The tensor through which it was last seen, one with a graph if there is one; None
            for parameters and other tensors that modules may swap.
        graph: The tensor with a graph through which it was seen, or None.
        is_shared: Whether a tensor without a graph was seen on it too.
        is_aged: Whether it has survived :data:`MIN_AGE_STEPS`.
        n_enlarged: Scans that found it larger than the one before.
    """

    __slots__ = (
        "bytes",
        "first_step",
        "graph",
        "is_aged",
        "is_shared",
        "kind",
        "n_enlarged",
        "tensor",
    )

    def __init__(self, first_step: int, n_bytes: int, kind: TensorKind) -> None:
        self.first_step = first_step
        self.bytes = n_bytes
        self.kind = kind
        self.tensor: weakref.ref[Any] | None = None
        self.graph: weakref.ref[Any] | None = None
        self.is_shared = False
        self.is_aged = False
        self.n_enlarged = 0


class Amount(NamedTuple):
    """Bytes and number of the storages of one kind, aged ones and all."""

    aged_bytes: int
    aged_n: int
    bytes: int
    n: int


class Earlier(NamedTuple):
    """What existed before the first step.

    Attributes:
        n_nodes: Nodes of the graphs of these tensors.
        graph_bytes: Bytes that they save beyond live tensors.
    """

    amounts: dict[TensorKind, Amount]
    n_nodes: int
    graph_bytes: int


class _Heads(NamedTuple):
    """The nodes that created the tensors from before the first step.

    Attributes:
        step: The step at whose end they were found.
        numbers: The sequence number of each node, by the tensor's id; None if it is unknown.
    """

    step: int
    numbers: dict[int, int | None]


class LiveTensors:
    """Tracks the storages of a program's tensors from scan to scan.

    Attributes:
        n_missed: Collections that promoted young objects unseen since the last full scan.
        has_more: Whether there were more storages than can be tracked.
        most_bytes: Most memory that tracking took at any scan.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.n_missed = 0
        self.has_more = False
        self.most_bytes = 0
        self._storages: dict[int, LiveStorage] = {}
        self._kinds: dict[TensorKind, TensorKind] = {}
        self._graphs: dict[int, weakref.ref[Any]] = {}
        self._first_heads: _Heads | None = None
        self._types: set[int] = set()
        self._seen: deque[list[_Observation | None]] = deque()
        self._pid = os.getpid()
        self._callback: CollectorCallback | None = None

    def begin(self) -> None:
        """Hook into the garbage collector, and leave older objects out of later scans."""
        self._callback = before_collections(self._record_before_collection)
        self._callback.begin()
        _promote_young_objects()

    def end(self) -> None:
        """Unhook from the garbage collector and release all weak references."""
        if self._callback is not None:
            self._callback.end()
            self._callback = None
        free = _storage_type()._free_weak_ref
        for address in self._storages:
            free(address)
        self._storages.clear()
        self._graphs.clear()
        self._first_heads = None
        self._seen.clear()

    def scan(self, step: int, *, full: bool = False) -> dict[TensorKind, Amount]:
        """Return the amount of each kind that is alive at the end of a step.

        Args:
            full: Scan all objects, not only young ones.
        """
        with garbage_collection_paused(), no_torch_function():
            self._types = tensor_types()
            self.n_missed = 0 if full else self.n_missed
            self._track_all(live_tensors() if full else self._find_young_tensors(), step)
            return self._count(self._storages, step)

    @property
    def is_at_limit(self) -> bool:
        """Tell whether as many storages are alive as can be tracked."""
        return len(self._storages) >= MAX_STORAGES

    @property
    def has_earlier(self) -> bool:
        """Tell whether what existed before the first step was found."""
        return self._first_heads is not None

    def find_earlier(self, first_step: int, step: int) -> Earlier:
        """Track what existed before the first step, by a pass over all objects.

        What a missed collection has promoted since counts as that too.

        Args:
            first_step: The first step that has ended.
            step: The step that has ended now.
        """
        with garbage_collection_paused(), no_torch_function():
            self._track_all(self._find_young_tensors(), step)
            known_addresses, known_graphs = set(self._storages), set(self._graphs)

            self.n_missed = 0
            self._track_all(live_tensors(), first_step)

            # The oldest first, as if they had been found before all others.
            older = {key: ref for key, ref in self._graphs.items() if key not in known_graphs}
            self._graphs = {**older, **self._graphs}
            roots = [root for ref in older.values() if (root := ref()) is not None]
            numbers = {id(root): autograd_graphs.sequence_nr_of(root) for root in roots}
            self._first_heads = _Heads(step, numbers)

            graph = autograd_graphs.measure_graph(roots, counted=set(self._storages))
            new = {
                address: storage
                for address, storage in self._storages.items()
                if address not in known_addresses
            }
            amounts = self._count(new, step)
            return Earlier(amounts, graph.n_nodes, graph.saved_bytes)

    def roots(self) -> list[Any]:
        """Return live tensors that have a graph, the oldest first; release them soon."""
        dead = [key for key, reference in self._graphs.items() if reference() is None]
        for key in dead:
            del self._graphs[key]
        return [tensor for ref in self._graphs.values() if (tensor := ref()) is not None]

    def changed_roots(self, step: int) -> list[Any]:
        """Return live tensors with a graph that differs from the one when they were found.

        A sum that is accumulated in place may exist from the start, but has a new ``grad_fn``. What
        an unchanged graph saves may be new to Python only: a walk that reads a tensor which an
        operator made in C++ creates its Python object.

        Args:
            step: The step that has ended. All graphs may have changed before it if what existed
                before the first step was found only now.
        """
        heads = self._first_heads
        first = heads.numbers if heads is not None and heads.step < step else {}
        changed: list[Any] = []
        unchanged: list[Any] = []
        for root in self.roots():
            number = first.get(id(root))
            is_same = number is not None and number == autograd_graphs.sequence_nr_of(root)
            (unchanged if is_same else changed).append(root)

        walk = autograd_graphs.GraphWalk()
        unchanged_nodes = {id(node) for node in walk.walk(autograd_graphs.grad_fns_of(unchanged))}
        return [
            root for root in changed if id(autograd_graphs.grad_fn_of(root)) not in unchanged_nodes
        ]

    def storage(self, address: int) -> LiveStorage | None:
        """Return the live storage at an address of torch's storage objects, or None."""
        return self._storages.get(address)

    def storages(self) -> Iterator[tuple[int, LiveStorage]]:
        """Yield the address and the storage of each that was alive at the last scan."""
        yield from self._storages.items()

    def _find_young_tensors(self) -> list[Any]:
        """Find the tensors that no collection has promoted to the oldest generation."""
        tensors: list[Any] = []
        for generation in _YOUNG_GENERATIONS:
            tensors += instances(gc.get_objects(generation=generation), self._types)
        return tensors

    def _record_before_collection(self, generation: int) -> None:
        """Record young tensors before a collection promotes them out of sight."""
        if self._callback is None or self._pid != os.getpid():
            return
        # A collection of generation 0 promotes to generation 1, which scans cover.
        if generation == 0 and sys.version_info < _EVERY_COLLECTION_PROMOTES:
            return

        # What cannot be recorded is found by the next scan of all objects.
        n_seen = sum(map(len, self._seen))
        if n_seen > _MAX_SEEN or not self._clock.affords("collector"):
            self.n_missed += 1
            return

        with (
            signals.deferred(),
            contextlib.suppress(Exception),
            self._clock.spending("collector"),
            no_torch_function(),
        ):
            self._seen.append([_observe(tensor, {}) for tensor in self._find_young_tensors()])

    def _track_all(self, tensors: list[Any], step: int) -> None:
        """Track what was recorded before collections, and some tensors."""
        while self._seen:
            for seen in self._seen.popleft():
                if seen is not None:
                    self._track(seen, step)
        for tensor in tensors:
            seen = _observe(tensor, self._storages)
            if seen is not None:
                self._track(seen, step)

    def _track(self, seen: "_Observation", step: int) -> None:
        """Track the storage of a tensor, and free the weak reference if there is one already."""
        kind = self._kinds.setdefault(seen.kind, seen.kind)
        storage = self._storages.get(seen.address)
        if storage is None and len(self._storages) >= MAX_STORAGES:
            self.has_more = True
            _storage_type()._free_weak_ref(seen.address)
            return

        if storage is None:
            storage = self._storages[seen.address] = LiveStorage(step, seen.bytes, kind)
        else:
            _storage_type()._free_weak_ref(seen.address)
            if storage.first_step == step:
                # Of several tensors on one storage, which one counts must not depend on order.
                storage.kind = max(storage.kind, kind, key=lambda seen_kind: seen_kind.has_graph)

        if seen.graph is not None:
            self._graphs[id(seen.graph)] = storage.graph = storage.tensor = seen.graph
        else:
            storage.is_shared = True
            if seen.tensor is not None and (storage.graph is None or storage.graph() is None):
                storage.tensor = seen.tensor

    def _count(self, storages: dict[int, LiveStorage], step: int) -> dict[TensorKind, Amount]:
        """Add up what is alive of some storages, and stop tracking what is not."""
        self.most_bytes = max(self.most_bytes, _BYTES_PER_STORAGE * len(self._storages))
        resolve = _storage_type()._new_with_weak_ptr

        counted: dict[TensorKind, list[int]] = {}
        dead = []
        for address, entry in storages.items():
            storage = resolve(address)
            if storage is None:
                dead.append(address)
                continue

            n_bytes = storage.nbytes()
            entry.n_enlarged += n_bytes > entry.bytes
            entry.bytes = n_bytes
            ages = not entry.is_aged and entry.first_step <= step - MIN_AGE_STEPS
            if ages:
                entry.is_aged = True
                entry.kind = self._without_dead_graph(entry)
            # Young ones count as well: of their kind, what is aged by then is not all that grows.
            if ages or entry.first_step == step:
                entry.kind = self._with_pinned(entry.kind, storage)

            sums = counted.setdefault(entry.kind, [0, 0, 0, 0])
            sums[2] += entry.bytes
            sums[3] += 1
            if entry.is_aged:
                sums[0] += entry.bytes
                sums[1] += 1

        for address in dead:
            del self._storages[address]
            _storage_type()._free_weak_ref(address)
        return {kind: Amount(*sums) for kind, sums in counted.items()}

    def _without_dead_graph(self, entry: LiveStorage) -> TensorKind:
        """Return the kind of an aged storage: its first scan may have seen a step's variables."""
        is_attached = entry.graph is not None and entry.graph() is not None
        if not entry.kind.has_graph or not entry.is_shared or is_attached:
            return entry.kind
        detached = entry.kind._replace(has_graph=False)
        return self._kinds.setdefault(detached, detached)

    def _with_pinned(self, kind: TensorKind, storage: Any) -> TensorKind:  # noqa: ANN401
        """Return the kind of a storage, with device ``pinned`` if it is pinned."""
        if kind.device != "cpu" or storage.nbytes() < _PINNED_FROM_BYTES:
            return kind
        if not any(devices.modules_in_use()) or not storage.is_pinned():
            return kind
        pinned = kind._replace(device="pinned")
        return self._kinds.setdefault(pinned, pinned)


class _Observation(NamedTuple):
    """One tensor of a scan.

    Attributes:
        address: A weak reference to its storage, which has to be freed.
        graph: The tensor, if it has a graph.
    """

    address: int
    bytes: int
    kind: TensorKind
    tensor: "weakref.ref[Any] | None"
    graph: "weakref.ref[Any] | None"


def _observe(tensor: Any, known: Mapping[int, LiveStorage]) -> _Observation | None:  # noqa: ANN401
    """Observe a tensor; None without a storage, or if the storage is aged and it has no graph.

    Args:
        tensor: May be of a subclass; attributes that it may compute are not read.
        known: The storages that are tracked already, by address.
    """
    import torch

    base: Any = torch.Tensor
    try:
        storage: Any = base.untyped_storage(tensor)
        address, n_bytes = storage._cdata, storage.nbytes()
        has_graph = base.grad_fn.__get__(tensor) is not None
        if not has_graph and address in known and known[address].is_aged:
            return None

        dtype = str(base.dtype.__get__(tensor)).removeprefix("torch.")
        device = str(storage.device)
        if device == _META:
            return None
        kind = TensorKind(device, dtype, n_bytes.bit_length(), has_graph)
        # Modules swap parameters and buffers, which have no graph.
        reference = weakref.ref(tensor) if has_graph or not _may_be_swapped(tensor) else None
        graph = reference if has_graph else None
        return _Observation(storage._weak_ref(), n_bytes, kind, reference, graph)
    # A layout without storage, such as sparse, raises a kind of RuntimeError.
    except (RuntimeError, TypeError, AttributeError):
        return None


def _may_be_swapped(tensor: Any) -> bool:  # noqa: ANN401
    """Tell whether modules may swap a tensor with another, which fails with weak references.

    Source: ``torch.utils.swap_tensors``, and its use for parameters, their gradients and buffers in
    ``torch.nn.Module._apply`` and ``_load_from_state_dict``: by default only for tensors of
    subclasses.
    """
    import torch

    swaps_all = torch.__future__.get_swap_module_params_on_conversion()
    return type(tensor) is not torch.Tensor or swaps_all


def _promote_young_objects() -> None:
    """Promote all objects to the oldest generation, unless the program has frozen some.

    Importing torch leaves 100,000 young objects, which every scan would cover. Freezing and
    unfreezing promotes them without a collection, which would run the program's finalizers.
    """
    if not has_frozen_objects():
        gc.freeze()
        gc.unfreeze()


def _storage_type() -> Any:  # noqa: ANN401  (its weak references have no public names)
    import torch

    return torch.UntypedStorage
