"""Marks of tests that need what not every supported torch has."""

from typing import Final

import pytest
import torch.distributed

from profkit.capture.process.torch_features import all_threads_setting

HAS_ALL_THREADS: Final = all_threads_setting() is not None
HAS_GLOO_RECORDER: Final = torch.distributed.is_available() and hasattr(
    torch._C._distributed_c10d, "_dump_fr_trace_json"
)
"""Whether torch's FlightRecorder keeps the calls of gloo, too."""

needs_all_threads: Final = pytest.mark.skipif(
    not HAS_ALL_THREADS, reason="this torch cannot record all threads"
)
