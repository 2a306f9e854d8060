"""Whole numbers as short text: each in as few bytes as it needs, packed, and then as base64."""

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.model.events import Int64s

_BITS = 7
_LEVEL = 6


def varints(values: Int64s) -> bytes:
    """Numbers of 0 or more, seven bits a byte, the lowest first; the last byte of each is < 128.

    Args:
        values: The numbers. Shape ``(k,)``.

    Source: "Variable Byte Integers" as in DWARF's ULEB128 (DWARF 5, section 7.6).
    """
    rest = values.astype(np.uint64)
    n_bytes = np.ones(len(rest), dtype=np.int64)
    larger = rest >> np.uint64(_BITS)
    while larger.any():
        n_bytes += larger > 0
        larger >>= np.uint64(_BITS)
    end = np.cumsum(n_bytes)
    place = end - n_bytes
    found = np.zeros(int(end[-1]) if len(end) else 0, dtype=np.uint8)
    here = np.arange(len(rest))
    while len(here):
        low = (rest[here] & np.uint64(0x7F)).astype(np.uint8)
        rest[here] >>= np.uint64(_BITS)
        more = rest[here] > 0
        found[place[here]] = low | (more.astype(np.uint8) << _BITS)
        place[here] += 1
        here = here[more]
    return found.tobytes()


def packed(columns: Sequence[Int64s | npt.NDArray[Any]], *, plain: bool = False) -> dict[str, Any]:
    """Columns of numbers as the scripts of the page read them.

    Args:
        columns: The columns, of any lengths.
        plain: Not to zip them, for browsers that cannot unzip.

    Returns:
        ``bytes``, the length of each column; ``text``, all of them in base64; ``plain``.
    """
    parts = [varints(np.asarray(column)) for column in columns]
    together = b"".join(parts)
    if not plain:
        together = gzip.compress(together, _LEVEL, mtime=0)
    return {
        "bytes": [len(part) for part in parts],
        "text": base64.b64encode(together).decode(),
        "plain": plain,
    }
