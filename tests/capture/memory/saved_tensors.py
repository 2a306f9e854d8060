"""Tests of what graphs save, which not every torch shows."""

import pytest

from profkit.capture.process.torch_features import shows_saved_tensors

REASON = "this torch shows saved tensors only by running the program's hooks"
needs_saved_tensors = pytest.mark.skipif(not shows_saved_tensors(), reason=REASON)
