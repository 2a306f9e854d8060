"""The time of starting and ending loader workers, over the iterators of a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as torch_loader

from profkit.capture.memory.monitor.worker_starts import WorkerStarts

ITERATOR: Any = torch_loader._MultiProcessingDataLoaderIter
N_EPOCHS = 3

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def starts() -> Iterator[WorkerStarts]:
    """Return what times the workers of this process meanwhile."""
    timed = WorkerStarts()
    originals = ITERATOR.__init__, ITERATOR._shutdown_workers
    restore = timed.begin(ITERATOR)
    yield timed
    restore()
    assert (ITERATOR.__init__, ITERATOR._shutdown_workers) == originals


def run_epochs(*, persistent: bool) -> int:
    loader = DataLoader(TensorDataset(torch.zeros(4)), num_workers=1, persistent_workers=persistent)
    return sum(len(list(loader)) for _ in range(N_EPOCHS))


def test_each_iterator_but_the_first_is_a_restart_of_its_line(starts: WorkerStarts) -> None:
    assert run_epochs(persistent=False) == 4 * N_EPOCHS
    restarts = starts.find_restarts()
    assert restarts is not None
    assert restarts.n == N_EPOCHS - 1
    assert restarts.ns > 0
    assert Path(restarts.frame.file) == Path(__file__)
    assert restarts.frame.function in {"run_epochs", "<genexpr>"}


def test_workers_that_stay_are_none(starts: WorkerStarts) -> None:
    run_epochs(persistent=True)
    assert starts.find_restarts() is None
