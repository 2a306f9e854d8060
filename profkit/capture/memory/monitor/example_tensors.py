"""Chooses tensors that show what grows: on which storages they are, and what shape they have."""

import math
from collections.abc import Collection
from typing import Any, Final

from profkit.capture.memory.holders.autograd_graphs import grad_fn_of, storage_of
from profkit.capture.memory.holders.untracked_containers import live_tensors
from profkit.capture.memory.monitor.live_tensors import LiveStorage
from profkit.capture.process.objects import is_exactly
from profkit.model.live_memory import TensorShape

_EXAMPLES: Final = 3
"""Tensors of a group whose holders are searched: the newest, a middle one, the oldest."""


def find_tensors(members: Collection[list[tuple[int, LiveStorage]]]) -> dict[int, Any]:
    """Find a tensor on each storage of some groups, by the storage's address.

    All objects are searched only for groups whose known tensors are all gone, and for storages of
    which only a view is known: what retains the whole of it is what grows.
    """
    tensor_on: dict[int, Any] = {}
    wanted: set[int] = set()
    for storages in members:
        known_tensors = {
            address: tensor
            for address, storage in storages
            if storage.tensor is not None and (tensor := storage.tensor()) is not None
        }
        tensor_on.update(known_tensors)
        wanted.update(address for address, tensor in known_tensors.items() if _is_part(tensor))
        if not known_tensors:
            wanted.update(address for address, _ in storages)

    if wanted:
        tensor_on.update(_select_tensors(live_tensors(), wanted))
    return tensor_on


def _select_tensors(tensors: list[Any], wanted: set[int]) -> dict[int, Any]:
    """Select a tensor on each wanted storage: one with a graph, the largest, the last created.

    A node's saved output is a tensor of its own, without a graph, and becomes a Python object when
    a walk reads it. It shares the storage of the output that the program has, whose holder is
    wanted. That of a view is not, if something has the whole.
    """
    tensor_on: dict[int, Any] = {}
    ranks: dict[int, tuple[bool, int]] = {}
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is None or storage[0] not in wanted:
            continue
        rank = grad_fn_of(tensor) is not None, _n_bytes(tensor)
        if rank >= ranks.get(storage[0], rank):
            ranks[storage[0]], tensor_on[storage[0]] = rank, tensor
    return tensor_on


def _is_part(tensor: Any) -> bool:  # noqa: ANN401
    """Return whether a tensor is a view of a part of its storage."""
    storage = storage_of(tensor)
    return storage is not None and 0 < _n_bytes(tensor) < storage[1]


def _n_bytes(tensor: Any) -> int:  # noqa: ANN401
    """Return the bytes of a tensor's elements; 0 for a subclass, which may compute its shape."""
    shape = shape_of(tensor)
    return 0 if shape.dims is None else shape.element_bytes * math.prod(shape.dims)


def choose_examples(
    storages: list[tuple[int, LiveStorage]], tensor_on: dict[int, Any]
) -> list[Any]:
    """Choose a few tensors of a group, the newest first."""
    by_age = sorted(
        (storage.first_step, address) for address, storage in storages if address in tensor_on
    )
    ranks = sorted({len(by_age) - 1, len(by_age) // 2, 0} - {-1}, reverse=True)[:_EXAMPLES]
    return [tensor_on[by_age[rank][1]] for rank in ranks if by_age]


def shape_of(tensor: Any) -> TensorShape:  # noqa: ANN401
    """Return the shape of a tensor, without dimensions for a subclass, which may compute them."""
    import torch

    base: Any = torch.Tensor
    dtype = base.dtype.__get__(tensor)
    is_plain = is_exactly(tensor, base, torch.nn.Parameter)
    dims = tuple(base.size(tensor)) if is_plain else None
    return TensorShape(str(dtype).removeprefix("torch."), dims, dtype.itemsize)
