"""Whole numbers as short text: their bytes sorted by place, packed, and then as base64."""

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_LEVEL = 6


def planes(values: npt.NDArray[np.integer[Any]]) -> tuple[bytes, int]:
    """The lowest bytes of all numbers, then the next ones, as far as any number has one.

    So what is alike is side by side: the high bytes of numbers of one size, which pack well.

    Args:
        values: Numbers of 0 or more. Shape ``(k,)``.

    Returns:
        The bytes, and how many each number has, at least 1.
    """
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 8))
    by_number = np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, 8)
    return by_number[:, :width].T.tobytes(), width


def packed(
    columns: Sequence[npt.NDArray[np.integer[Any]]], *, plain: bool = False
) -> dict[str, Any]:
    """Columns of numbers as ``columns.js`` reads them.

    Args:
        columns: The columns, of any lengths.
        plain: Not to zip them, for browsers that cannot unzip.

    Returns:
        ``n``, how many numbers each column has; ``widths``, how many bytes each of its numbers;
        ``text``, all of them in base64; ``plain``.
    """
    parts = [planes(column) for column in columns]
    together = b"".join(part for part, _ in parts)
    if not plain:
        together = gzip.compress(together, _LEVEL, mtime=0)
    return {
        "n": [len(column) for column in columns],
        "widths": [width for _, width in parts],
        "text": base64.b64encode(together).decode(),
        "plain": plain,
    }
