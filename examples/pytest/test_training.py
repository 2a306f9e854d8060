"""Run with ``pytest examples/pytest``: fails if a step waits for a GPU, or memory grows."""

from typing import TYPE_CHECKING

import pytest
import torch
from training import batches, classifier, train_step

if TYPE_CHECKING:
    from profkit.integrations.pytest.recorder import Recorder


@pytest.mark.profkit(syncs=0, graph_breaks=0, peak="1 MiB", findings="warning")
def test_a_step_waits_for_no_gpu(profkit_trace: "Recorder") -> None:
    """Limits on each step of a loop."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in profkit_trace.steps(batches(8)):
        train_step(model, optimizer, batch)


@pytest.mark.profkit(growth=0)
def test_training_retains_no_memory() -> None:
    """Memory is monitored from optimizer step to optimizer step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(40):
        train_step(model, optimizer, batch)


@pytest.mark.profkit(syncs=0, peak="1 MiB")
def test_inference_waits_for_no_gpu() -> None:
    """Limits on the whole test."""
    with torch.inference_mode():
        classifier()(batches(1)[0][0])
