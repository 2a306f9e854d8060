"""Traces that tests read."""

import os

from profkit.model.trace import Trace
from profkit.readers.open import load


def load_trace(path: str | os.PathLike[str], *, limit_bytes: int | None = None) -> Trace:
    """Load a file that is a trace."""
    loaded = load(path, limit_bytes=limit_bytes)
    assert isinstance(loaded, Trace)
    return loaded
