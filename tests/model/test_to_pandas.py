"""What a program asks for as a DataFrame is what the columns hold."""

import pickle
from pathlib import Path

import pandas as pd
import pytest

import profkit
from profkit.model.live_memory import LiveMemory, MemorySample
from profkit.model.snapshot import MemorySnapshot

FRAME = {"filename": "train.py", "line": 3, "name": "step"}


@pytest.fixture
def snapshot(tmp_path: Path) -> MemorySnapshot:
    """Two blocks, one of them with a stack, and a history of three entries."""
    path = tmp_path / "s.pickle"
    blocks = [
        {
            "address": 64,
            "size": 512,
            "requested_size": 500,
            "state": "active_allocated",
            "frames": [FRAME, {**FRAME, "line": 9}],
        },
        {"address": 576, "size": 512, "state": "inactive", "frames": []},
    ]
    history = [
        {"action": "alloc", "addr": 64, "size": 512, "stream": 1, "time_us": 7, "frames": [FRAME]},
        {"action": "oom", "size": 9, "device_free": 5, "stream": 0},
        {"action": "of a later version", "addr": 1, "size": 9, "stream": 0},
    ]
    segment = {"device": 1, "address": 64, "total_size": 1024, "blocks": blocks}
    data = {"segments": [segment], "device_traces": [[], history]}
    path.write_bytes(pickle.dumps(data))

    loaded = profkit.load(path)
    assert isinstance(loaded, MemorySnapshot)
    return loaded


def test_blocks_of_a_snapshot_come_with_device_state_and_line(snapshot: MemorySnapshot) -> None:
    blocks = snapshot.to_pandas()
    assert blocks["device"].tolist() == [1, 1]
    assert blocks["n_bytes"].tolist() == [512, 512]
    assert blocks["state"].tolist() == ["allocated", "inactive"]
    assert blocks["line"].tolist() == [3, pd.NA]
    assert blocks["file"].fillna("").tolist() == ["train.py", ""]
    assert blocks["requested_bytes"].isna().tolist() == [False, True]


def test_a_history_comes_with_actions_and_lines(snapshot: MemorySnapshot) -> None:
    history = snapshot.to_pandas("history")
    assert history["action"].tolist() == ["alloc", "oom", "other"]
    assert history["time_us"].isna().tolist() == [False, True, True]
    assert history["function"].fillna("").tolist() == ["step", "", ""]


def test_samples_of_a_monitored_program_have_missing_values() -> None:
    looks = (
        MemorySample(1, 5, tensor_bytes={"cpu": 3, "cuda:0": 4}),
        MemorySample(2, 9, host_rss_bytes=1 << 40),
    )
    table = LiveMemory("train", "user", 2, 4, looks).to_pandas()
    assert table["tensor_bytes"].tolist() == [7, pd.NA]
    assert table["host_rss_bytes"].tolist() == [pd.NA, 1 << 40]
    assert table["step"].tolist() == [1, 2]
