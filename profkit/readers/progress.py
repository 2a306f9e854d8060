"""How far a file has been read, for whoever waits for it."""

import os
from collections.abc import Callable
from typing import Any, BinaryIO

OnProgress = Callable[[int, int], None]
"""Is told how many bytes of a file have been read, as it is packed, and how many it has.

The second is 0 where that is not known. An archive may be read twice, so the first can go back.
"""


class ProgressReads:
    """A file that tells after each read how far it has come.

    Args:
        raw: The file.
        seen: Whom to tell.
    """

    def __init__(self, raw: BinaryIO, on_progress: OnProgress) -> None:
        self._raw = raw
        self._seen = on_progress
        self._n_bytes = n_bytes_of(raw)

    def read(self, n_bytes: int = -1) -> Any:  # noqa: ANN401  (bytes, of whatever class)
        """Read bytes."""
        chunk = self._raw.read(n_bytes)
        self._seen(self._raw.tell(), self._n_bytes)
        return chunk

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (as the file has it)
        return getattr(self._raw, name)


def n_bytes_of(raw: BinaryIO) -> int:
    """How many bytes an open file has; 0 where that is not known, as on some servers.

    Args:
        raw: The file, or what stands for one that is not on this machine.
    """
    try:
        return os.fstat(raw.fileno()).st_size
    except (OSError, AttributeError):  # it is no file of this machine
        return int(getattr(raw, "size", None) or 0)
