"""A cache in a temporary folder that small files, and those just written, are in too."""

from pathlib import Path

import pytest

from profkit import folders
from profkit.readers import cache


def use_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache everything in a folder; returns that of the entries."""
    monkeypatch.setenv("PROFKIT_CACHE", str(folder))
    monkeypatch.setattr(folders._state, "max_bytes", None)
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 0)
    monkeypatch.setattr(cache, "SETTLED_NS", -(1 << 62))
    return folder / "recordings"
