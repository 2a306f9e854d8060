"""Advice names the interface with which a recording was made."""

from pathlib import Path

import pytest

from profkit.engine.families.recording_advice import record_later
from profkit.model.capture_info import CaptureInfo, StepKind
from profkit.testing import TraceBuilder
from tests.traces import read_context

RUN = "Record later steps: `profkit run --wait 10`."
TRACE = "Record later steps: `profkit.trace(..., wait=2, warmup=1, active=3)`."


@pytest.mark.parametrize(
    ("steps", "advice"),
    [("optimizer", RUN), ("module", RUN), ("user", TRACE), ("trainer", TRACE), (None, TRACE)],
)
def test_it_names_the_interface(tmp_path: Path, steps: StepKind | None, advice: str) -> None:
    capture = None if steps is None else CaptureInfo(version="1", name="train", steps=steps)
    builder = TraceBuilder(capture=capture)
    with builder.step():
        builder.compute("aten::mm", 1_000)
    ctx = read_context(builder, tmp_path)
    assert record_later(ctx) == advice
