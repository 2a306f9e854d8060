"""What the tests of callbacks share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.capture.process import console
from profkit.capture.recording import current, recording_writer


@pytest.fixture
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was recorded and no warning was printed; files are the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROFKIT_DIR", str(tmp_path / "traces"))
    for cache in (current.n_recorded, recording_writer._known_lines, console._printed):
        cache.clear()
    yield
    assert current.state.session is None, "a test left a recording open"
