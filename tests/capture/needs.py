"""Marks of tests that need what not every supported torch has."""

from typing import Final

import pytest

from profkit.capture.process.torch_features import all_threads_setting

HAS_ALL_THREADS: Final = all_threads_setting() is not None

needs_all_threads: Final = pytest.mark.skipif(
    not HAS_ALL_THREADS, reason="this torch cannot record all threads"
)
