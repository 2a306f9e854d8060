"""Workers of a DataLoader sample themselves, and their parent reads what they have seen."""

import json
import multiprocessing
import multiprocessing.spawn
import os
import time
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from profkit.capture.recording import worker_samples
from profkit.model.capture_info import LoaderWorkers

LOOP = worker._worker_loop


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while in one function."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return augment(index)


class Broken(Slow):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise ValueError(index)


def augment(index: int) -> torch.Tensor:
    end_s = time.monotonic() + 0.02
    while time.monotonic() < end_s:
        index += 1
    return torch.zeros(3)


@pytest.fixture(autouse=True)
def _sampling() -> Iterator[None]:
    worker_samples.begin()
    yield
    worker_samples.end()
    assert worker._worker_loop is LOOP


def loaded(dataset: Dataset[torch.Tensor], **options: Any) -> list[torch.Tensor]:  # noqa: ANN401
    return list(DataLoader(dataset, batch_size=4, num_workers=2, **options))


def read() -> LoaderWorkers:
    samples = worker_samples.read()
    assert samples is not None
    return samples


def test_the_function_that_takes_the_time_is_found() -> None:
    assert len(loaded(Slow(), multiprocessing_context="fork")) == 10
    samples = read()
    assert samples.n_workers == 2
    in_function = {
        (Path(function.place[0]).name, function.place[2]): function.ns
        for function in samples.functions
    }
    # On a busy machine a sample of torch's own code may stand for as long as all others.
    in_function.pop(("", ""), None)
    assert max(in_function, key=in_function.__getitem__) == (Path(__file__).name, "augment")
    assert (
        sum(function.ns for function in samples.functions)
        <= samples.fetching_ns
        <= samples.sampled_ns
    )


def test_workers_of_later_epochs_are_added() -> None:
    loaded(Slow(), multiprocessing_context="fork")
    n_before = read().n_samples
    loaded(Slow(), multiprocessing_context="fork")
    assert read().n_workers == 4
    assert read().n_samples > n_before


def test_an_error_of_the_dataset_reaches_the_program() -> None:
    with pytest.raises(ValueError, match="in DataLoader worker process"):
        loaded(Broken(), multiprocessing_context="fork")


def test_a_spawned_worker_finds_torchs_own_function_where_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = worker._worker_loop
    assert ForkingPickler.loads(ForkingPickler.dumps(kept)) is not LOOP
    with monkeypatch.context() as patch:
        # Another Python, which may have no profkit.
        patch.setattr(multiprocessing.spawn, "get_executable", lambda: "/usr/bin/python")
        pickled = ForkingPickler.dumps(kept)
    worker_samples.end()
    assert ForkingPickler.loads(pickled) is LOOP
    assert ForkingPickler.loads(ForkingPickler.dumps(kept)) is LOOP


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_is_not_forked_is_sampled(method: str) -> None:
    assert len(loaded(Slow(), multiprocessing_context=method)) == 10
    names = {function.place[2] for function in read().functions}
    assert "augment" in names


def test_how_busy_workers_are_is_told_of_the_sampled_steps() -> None:
    second = 1_000_000_000
    in_fetch = (("/torch/utils/data/_utils/fetch.py", 30, "fetch"), (__file__, 50, "augment"))
    waits = (("/torch/utils/data/_utils/worker.py", 3, "_worker_loop"),)
    spent = {"n": 1, "ns": second, "waiting_ns": 0, "in_call_ns": 0}
    # Busy for 20 seconds, then idle for 20, such as while a profiler starts.
    samples = [[int(number >= 20), (number + 1) * second, spent] for number in range(40)]
    line = json.dumps([[[in_fetch, 0], [waits, 0]], samples])
    (Path(worker_samples._state.folder) / "1.jsonl").write_text(line + "\n")

    assert (read().fetching_ns, read().sampled_ns) == (20 * second, 40 * second)
    samples_of_steps = worker_samples.read([(0, 15 * second), (25 * second, 30 * second)])
    assert samples_of_steps is not None
    busy_ns, sampled_ns = samples_of_steps.fetching_ns, samples_of_steps.sampled_ns
    assert (busy_ns, sampled_ns) == (15 * second, 20 * second)
    few = worker_samples.read([(0, 5 * second)])
    assert few is not None
    assert few.sampled_ns == 40 * second


def test_workers_sample_no_more_after_the_end() -> None:
    samples = worker_samples._WorkerSamples(worker_samples._state.folder)
    samples.begin()
    worker_samples.end()
    samples._written_ns = 0
    deadline_s = time.monotonic() + 20
    while samples._sampler.is_on and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not samples._sampler.is_on
    assert worker_samples.read() is None


def test_a_forked_child_leaves_the_files_of_its_parent() -> None:
    folder = Path(worker_samples._state.folder)
    child = multiprocessing.get_context("fork").Process(target=worker_samples.end)
    child.start()
    child.join()
    assert folder.is_dir()
    worker_samples.end()
    assert not folder.exists()


def test_what_a_worker_has_written_in_part_is_not_read() -> None:
    folder = Path(worker_samples._state.folder)
    (folder / f"{os.getpid()}.jsonl").write_text("[[")
    assert worker_samples.read() is None


def test_who_has_kept_the_function_gets_torchs_own_after_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = worker._worker_loop
    worker_samples.end()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "_worker_loop", kept)
    assert len(loaded(Slow(), multiprocessing_context="fork")) == 10
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
