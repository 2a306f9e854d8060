"""The driver's memory figures in profkit's snapshots are read and validated."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.model.device_bytes import DeviceBytes
from profkit.model.snapshot import MemorySnapshot

WHOLE = {"device": 1, "total_bytes": 80, "free_bytes": 5, "torch_bytes": 60}


def driver_of(folder: Path, own: object) -> tuple[DeviceBytes, ...]:
    path = folder / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "profkit": own}))
    snapshot = profkit.load(path)
    assert isinstance(snapshot, MemorySnapshot)
    return snapshot.driver


def test_driver_figures_are_read(tmp_path: Path) -> None:
    driver_facts = {"devices": [{**WHOLE, "process_bytes": 63, "others_bytes": None, "later": "?"}]}
    (driver,) = driver_of(tmp_path, driver_facts)
    assert driver == DeviceBytes(1, 80, 5, 60, process_bytes=63)
    assert driver.non_torch_bytes == 3
    assert driver.outside_torch_bytes == 15


@pytest.mark.parametrize(
    "own",
    [
        None,
        17,
        [],
        {"devices": 3},
        {"devices": [None, "x"]},
        {"devices": [{**WHOLE, "torch_bytes": "60"}]},
        {"devices": [{**WHOLE, "free_bytes": -5}]},
        {"devices": [{**WHOLE, "others_bytes": 1.5}]},
        {"devices": [{key: WHOLE[key] for key in ("device", "total_bytes")}]},
    ],
)
def test_invalid_driver_figures_are_ignored(tmp_path: Path, own: Any) -> None:  # noqa: ANN401
    assert driver_of(tmp_path, own) == ()
