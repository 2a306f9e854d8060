"""The bytes of objects, and of the blocks in which an allocator gives them.

Sizes are shallow, as ``sys.getsizeof`` returns them, and read through built-in types alone: a class
of the program may define ``__sizeof__``, and is measured as the type that it extends. The values of
an instance's attributes, which ``sys.getsizeof`` omits since Python 3.11, are added.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.holders.attributes import module_of, mro_of
from profkit.capture.process.objects import referents

_SMALL_BYTES: Final = 512
"""Up to this size Python's own allocator has an object's memory, in multiples of 16 bytes; C's has
that of larger ones. Source: ``Objects/obmalloc.c`` (``SMALL_REQUEST_THRESHOLD``, ``ALIGNMENT``)."""
_ALIGNMENT: Final = 16
_HAVE_GC: Final = 1 << 14
"""``Py_TPFLAGS_HAVE_GC``: only ``sys.getsizeof`` adds the collector's header."""
GC_HEADER_BYTES: Final = 16
_DICT_HEADER_BYTES: Final = 16
"""Of instances with managed attributes, which only ``sys.getsizeof`` adds too."""
_MANAGED_DICT: Final = 1 << 4
"""``Py_TPFLAGS_MANAGED_DICT``: attributes are in an array of their own until the ``__dict__`` is
used."""
_VALUES_HEADER_BYTES: Final = 16
_N_EXAMPLES: Final = 8
"""Instances of a class, or up to twice as many, that show the mean size of its attributes."""
BASIC_SIZE: Final = type.__dict__["__basicsize__"]
_WITHOUT_BUFFER: Final = (str, np.ndarray)
"""Strings have their characters in their own block, arrays their data from C's allocator."""
_FLAGS: Final = type.__dict__["__flags__"]
_ITEM_SIZE: Final = type.__dict__["__itemsize__"]
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: created at run time."""

Numbers = npt.NDArray[np.int64]


class TypeTotals(NamedTuple):
    """Objects of one type, or how many more there are.

    Attributes:
        small_bytes: Those in blocks of Python's own allocator.
        n_blocks: Blocks of that allocator, large ones too, which it has from C's.
    """

    n: int = 0
    bytes: int = 0
    small_bytes: int = 0
    n_blocks: int = 0

    def plus(self, other: "TypeTotals", times: int = 1) -> "TypeTotals":
        """Return these totals with others added, or with ``times`` -1 without them."""
        return TypeTotals(*(n + times * more for n, more in zip(self, other, strict=True)))


def size_of(thing: object) -> int:
    """Return the shallow bytes of an object; of an array with its data, unless it is a view."""
    return size_function(type(thing))(thing)


def sizes_of(kind: type, things: list[Any]) -> Numbers:
    """Return the bytes of objects of one type; of the first alone if all have the same size."""
    if not differ_in_size(kind):
        things = things[:1]
    return np.fromiter(map(size_function(kind), things), np.int64, len(things))


def size_function(kind: type) -> Callable[[Any], int]:
    """Return the size function of the first built-in type that a type extends."""
    builtin = _builtin_base(kind)
    if builtin is kind:
        return sys.getsizeof

    # ``sys.getsizeof`` would call the ``__sizeof__`` of the program's class.
    shallow = vars(builtin).get("__sizeof__", object.__sizeof__)
    header = GC_HEADER_BYTES if _FLAGS.__get__(kind) & _HAVE_GC else 0
    header += _DICT_HEADER_BYTES if _has_values(kind) else 0
    return lambda thing: shallow(thing) + header


def differ_in_size(kind: type) -> bool:
    """Tell whether objects of a type may have different sizes."""
    builtin = _builtin_base(kind)
    sized_by = next(cls for cls in mro_of(builtin) if "__sizeof__" in vars(cls))
    return sized_by is not object or bool(_ITEM_SIZE.__get__(builtin))


def _builtin_base(kind: type) -> type:
    """Return the first type of Python or its standard library that a type extends, or itself."""
    return next(cls for cls in mro_of(kind) if _is_builtin(cls))


def _is_builtin(cls: type) -> bool:
    """Tell whether a class was not created by a class statement of the program or a library."""
    if not _FLAGS.__get__(cls) & _HEAP_TYPE:
        return True
    top = module_of(cls).partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__"


def has_buffer(kind: type) -> bool:
    """Tell whether objects of a type have their entries in a block apart, as lists and dicts do."""
    builtin = _builtin_base(kind)
    if any(builtin is base for base in _WITHOUT_BUFFER) or _ITEM_SIZE.__get__(builtin):
        return False
    return differ_in_size(kind)


def buffer_bytes(kind: type, sizes: Numbers) -> Numbers:
    """Return the part of the bytes of objects of one type that is in a block apart."""
    if not has_buffer(kind):
        return np.zeros_like(sizes)
    return np.maximum(sizes - (BASIC_SIZE.__get__(kind) + GC_HEADER_BYTES), 0)


def mean_values_bytes(things: Sequence[object]) -> int:
    """Return the mean bytes of the attribute values of a few instances of one class."""
    examples = things[:: max(1, len(things) // _N_EXAMPLES)]
    return round(sum(map(values_bytes, examples)) / len(examples))


def values_bytes(thing: object) -> int:
    """Return the bytes of the array with the values of an instance's attributes; 0 without one.

    Source: ``Objects/dictobject.c`` of Python 3.11 (``init_inline_values``); measured.
    """
    if not _has_values(type(thing)):
        return 0
    held = referents(thing)
    n = len(held) - 1  # the type
    is_in_dict = any(type(thing) is dict for thing in held[:1])
    return 0 if is_in_dict or n < 1 else _VALUES_HEADER_BYTES + 8 * n + 8 * (n // 6)


def _has_values(kind: type) -> bool:
    """Tell whether instances of a class may have their attributes' values without a dict."""
    return bool(_FLAGS.__get__(kind) & _MANAGED_DICT)


def align(n_bytes: Any) -> Any:  # noqa: ANN401  (a number, or an array of them)
    """Round a number of bytes up to the alignment of Python's allocator."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def small_block_bytes(sizes: Numbers) -> Numbers:
    """Return the bytes that Python's own allocator gives for sizes; 0 where C's does."""
    return np.where(sizes <= _SMALL_BYTES, align(sizes), 0)


def allocated_bytes(n_bytes: int) -> int:
    """Return the bytes that an allocator gives for a number of them."""
    return int(align(n_bytes)) if n_bytes <= _SMALL_BYTES else n_bytes
