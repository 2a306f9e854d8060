"""The inputs of an operator, as ``record_shapes`` writes them."""

import json
from functools import cached_property, lru_cache
from math import prod
from typing import Final

from profkit.dataclass import dataclass
from profkit.patterns import regex

Shape = tuple[int, ...]

ELEMENT_BYTES: Final = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2fnuz": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "long": 8, "long int": 8, "int": 4, "short": 2, "short int": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element by the name that Kineto writes, which is the type's in C++.

Source: ``torch/csrc/profiler/util.cpp`` (``inputTypes``); ``c10/util/typeid.h``.
"""
_LIST: Final = "TensorList"
_NAMED: Final = "double|float|c10::Half|c10::BFloat16|long|int|short|bool|signed char|unsigned char"
"""The types of elements, of :data:`ELEMENT_BYTES`, that the names of such kernels have."""
_OPAQUE: Final = regex(r"OpaqueType<(\d+)u?>")
_OF_LIST: Final = regex(
    rf"(?:multi_tensor_apply_kernel<.*?Functor\w*|CatArrayBatchedCopy\w*)<({_NAMED})\b"
)
"""The first type argument of what a kernel for lists of tensors applies, and of a concatenation.

Source: ``aten/src/ATen/native/cuda/MultiTensorApply.cuh``, ``ForeachFunctors.cuh``, ``Shape.cu``.
"""


@lru_cache(maxsize=65536)
def kernel_element_bytes(kernel: str) -> int | None:
    """Return the bytes of an element of a kernel for lists of tensors, or None for others."""
    if (opaque := _OPAQUE.search(kernel)) and "CatArray" in kernel:
        return int(opaque[1])
    match = _OF_LIST.search(kernel)
    return ELEMENT_BYTES[match[1]] if match else None


@dataclass(frozen=True)
class OpInputs:
    """The inputs of one call of an operator, in the order of its schema.

    Attributes:
        shapes: The shape of a tensor; the shapes of a list of tensors; ``()`` for anything else.
        types: The type of each tensor's elements, or the types of a list of tensors if they were
            recorded; ``TensorList``, ``Scalar``, ``ScalarList`` or empty for others.
        values: The values of inputs that are not tensors, as text; empty where not recorded.
    """

    shapes: tuple[Shape | tuple[Shape, ...], ...]
    types: tuple[str | tuple[str, ...], ...]
    values: tuple[str, ...] = ()

    def shape(self, place: int) -> Shape | None:
        """Return the shape of the tensor at a place, or None without a tensor there.

        A tensor with zero dimensions has the shape ``()``, and so has an input that is not one: the
        type tells them apart.
        """
        if place >= len(self.shapes) or self.element_bytes(place) is None:
            return None
        shape = self.shapes[place]
        return None if any(isinstance(size, tuple) for size in shape) else shape  # type: ignore[return-value]

    def element_bytes(self, place: int) -> int | None:
        """Return the bytes of an element of the tensor at a place, or None if unknown."""
        kind = self.types[place] if place < len(self.types) else ""
        return ELEMENT_BYTES.get(kind) if isinstance(kind, str) else None

    @cached_property
    def lists(self) -> tuple[tuple[Shape, ...], ...]:
        """Return the shapes of every input that is a list of tensors."""
        return tuple(
            tuple(member for member in shape if isinstance(member, tuple))
            for shape, kind in zip(self.shapes, self.types, strict=False)
            if kind == _LIST or isinstance(kind, tuple)
        )

    @cached_property
    def tensors(self) -> tuple[tuple[Shape, int | None], ...]:
        """Return shape and bytes per element of every input tensor, including lists."""
        tensors: list[tuple[Shape, int | None]] = []
        for place, (shape, kind) in enumerate(zip(self.shapes, self.types, strict=False)):
            if isinstance(kind, tuple):
                sizes = (*map(ELEMENT_BYTES.get, kind), *[None] * len(shape))
                pairs = zip(shape, sizes, strict=False)
                tensors += [(member, size) for member, size in pairs if isinstance(member, tuple)]
            # The types within a list may not be recorded.
            elif kind == _LIST or any(isinstance(size, tuple) for size in shape):
                tensors += [(member, None) for member in shape if isinstance(member, tuple)]
            elif self.element_bytes(place) is not None:
                tensors.append((shape, self.element_bytes(place)))  # type: ignore[arg-type]
        return tuple(tensors)

    def value(self, place: int) -> object:
        """Return an input that is not a tensor: a number, a truth value, a list, or None."""
        # torch writes truth values as Python does, and all else as JSON.
        text = self.values[place] if place < len(self.values) else ""
        try:
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except ValueError:
            return None


def parse_inputs(dims: str, types: str, values: str) -> OpInputs | None:
    """Parse the JSON of an operator's inputs, or return None if it is not torch's.

    Args:
        dims: ``Input Dims``.
        types: ``Input type``.
        values: ``Concrete Inputs``; empty without any.
    """
    try:
        sizes = json.loads(dims)
        names = json.loads(types) if types else []
        texts = json.loads(values) if values else []
        if not all(isinstance(column, list) for column in (sizes, names, texts)):
            return None
        shapes = tuple(map(_parse_shape, sizes))
    except (ValueError, TypeError, RecursionError):
        return None
    return OpInputs(shapes, tuple(map(_parse_type, names)), tuple(map(str, texts)))


def _parse_type(written: object) -> str | tuple[str, ...]:
    return tuple(map(str, written)) if isinstance(written, list) else str(written)


def _parse_shape(written: object) -> Shape | tuple[Shape, ...]:
    """Parse the shape of a tensor, or the shapes of a list of tensors.

    Raises:
        TypeError: If it is neither.
    """
    if not isinstance(written, list):
        raise TypeError
    if written and all(isinstance(member, list) for member in written):
        return tuple(_parse_sizes(member) for member in written)
    return _parse_sizes(written)


def _parse_sizes(written: list[object]) -> Shape:
    # A truth value is an int as well, but not a size.
    if not all(type(size) is int and size >= 0 for size in written):
        raise TypeError
    return tuple(written)  # type: ignore[arg-type]


def n_elements(shape: Shape) -> int:
    """Return the number of elements of a tensor."""
    return prod(shape)


def broadcast(shapes: list[Shape]) -> Shape:
    """Return the shape that some shapes are broadcast to.

    No program has sizes that do not fit. Of such sizes the larger one is taken.
    """
    width = max(map(len, shapes), default=0)
    padded = [(1,) * (width - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))
