"""What a capture records of the machine: cores, threads, processes, settings for debugging."""

import multiprocessing
import os
import time

import pytest
import torch

from profkit.capture.process import environment


def test_threads_and_processes_come_from_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    # Workers of another test's loader may just be about to end.
    for earlier in multiprocessing.active_children():
        earlier.join(10)
    before = environment.host_threads().n_workers
    worker = multiprocessing.Process(target=time.sleep, args=(60,))
    worker.start()
    try:
        threads = environment.host_threads()
    finally:
        worker.kill()
        worker.join()
    assert threads.n_workers == before + 1
    assert threads.n_ranks == 3
    assert threads.n_threads == torch.get_num_threads()
    assert 1 <= threads.n_cores <= (os.cpu_count() or 1)


@pytest.mark.parametrize("value", ["", "x", "-2", "0"])
def test_a_number_of_ranks_that_is_none_is_one(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    assert environment.host_threads().n_ranks == 1


def test_only_settings_that_slow_a_program_down_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    monkeypatch.setenv("SECRET", "1")
    settings = environment.describe("run", "whole").settings
    assert settings["CUDA_LAUNCH_BLOCKING"] == "1"
    assert not {"TORCH_DISTRIBUTED_DEBUG", "SECRET"} & settings.keys()
