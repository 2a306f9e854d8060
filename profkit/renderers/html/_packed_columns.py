"""Columns of integers as short text: byte planes, gzip, base64."""

import base64
import gzip
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.memory_series import LiveGroups

_LEVEL: Final = 6
MAX_PLAIN: Final = 500
"""Groups, nodes or blocks that are not compressed."""


def split_byte_planes(values: npt.NDArray[np.integer[Any]]) -> tuple[bytes, int]:
    """Return the lowest bytes of all numbers, then the second lowest, up to the highest used.

    Similar bytes are then adjacent, which compresses well.

    Args:
        values: Numbers of 0 or more. Shape ``(k,)``.

    Returns:
        The bytes, and how many bytes each number has, at least 1.
    """
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 8))
    if width == 1:
        return values.astype(np.uint8).tobytes(), width
    # Little-endian on any machine: the page expects the lowest bytes first.
    by_number = np.ascontiguousarray(values.astype("<i8", copy=False)).view(np.uint8)
    return by_number.reshape(-1, 8)[:, :width].T.tobytes(), width


def pack_columns(
    columns: Sequence[npt.NDArray[np.integer[Any]]], *, plain: bool = False
) -> dict[str, Any]:
    """Return columns of numbers as ``base.js`` reads them.

    Args:
        columns: The columns, of any lengths.
        plain: Skip gzip, for browsers without ``DecompressionStream``.

    Returns:
        ``n``: numbers in each column; ``widths``: bytes of each of its numbers; ``text``: all
        columns in base64; ``plain``.
    """
    parts = [split_byte_planes(column) for column in columns]
    content = b"".join(part for part, _ in parts)
    if not plain:
        content = gzip.compress(content, _LEVEL, mtime=0)
    return {
        "n": [len(column) for column in columns],
        "widths": [width for _, width in parts],
        "text": base64.b64encode(content).decode(),
        "plain": plain,
    }


def pack_lives(lives: LiveGroups) -> dict[str, Any]:
    """Return groups of blocks for ``lives.js``: group, first, last minus first, n, bytes."""
    columns = (lives.group, lives.first, lives.last - lives.first, lives.n, lives.n_bytes)
    return pack_columns(columns, plain=len(lives.n) <= MAX_PLAIN)
