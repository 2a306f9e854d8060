"""Each test begins as a fresh process would: nothing recorded, no warning printed."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.capture.process import console
from profkit.capture.recording import current
from profkit.capture.recording.recording_writer import _known_lines

Opened = Callable[[str | None], dict[str, Any]]


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PROFKIT_DIR", str(tmp_path / "traces"))
    monkeypatch.setattr(current.state, "is_on", True)
    for cache in (current.n_recorded, current._is_present, _known_lines, console._printed):
        cache.clear()
    yield
    assert current.state.session is None, "a test left a capture open"


@pytest.fixture
def opened() -> Opened:
    """Reads a trace file."""

    def read(path: str | None) -> dict[str, Any]:
        assert path is not None, "no trace was written"
        trace: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
        return trace

    return read
