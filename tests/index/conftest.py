"""Reads built traces, as most tests of relations do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.engine.context import Context
from profkit.testing import TraceBuilder
from tests.traces import read_context


@pytest.fixture
def read(tmp_path: Path) -> Callable[[TraceBuilder], Context]:
    """Return a function that writes a trace and reads it again."""
    return lambda builder: read_context(builder, tmp_path)
