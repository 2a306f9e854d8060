"""On a real device: snapshots, the peak, out-of-memory errors, and memory of other processes."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import profkit
from profkit.capture.memory.cuda.driver_bytes import device_bytes
from profkit.model.memory_summary import SnapshotDevice

pytestmark = pytest.mark.gpu

MIB = 1 << 20
STEPS = 12


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    """No memory of an earlier test is reserved."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def device_of(report: profkit.Report | None) -> SnapshotDevice:
    """Return the only device of a report."""
    assert report is not None
    assert report.summary.memory is not None
    (device,) = report.summary.memory.devices
    return device


def test_peak_allocated_and_reserved_bytes_agree_with_torch(tmp_path: Path) -> None:
    retained = []
    with profkit.memory("steps", dir=str(tmp_path), quiet=True) as m:
        for _ in range(STEPS):
            retained.append(torch.empty(MIB, device="cuda", dtype=torch.uint8))
            torch.empty(64 * MIB, device="cuda", dtype=torch.uint8).add_(1)
            m.step()
        allocated, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        reserved = torch.cuda.memory_reserved()

    device = device_of(m.report)
    assert device.allocated_bytes == allocated
    assert device.reserved_bytes == reserved
    assert device.at_peak_bytes == peak

    (first, *_) = device.top_sites
    assert first.bytes == STEPS * MIB
    assert first.location.file is not None
    assert Path(first.location.file).name == Path(__file__).name
    del retained


def test_the_history_is_off_after_the_block(tmp_path: Path) -> None:
    with profkit.memory(dir=str(tmp_path), quiet=True) as m:
        torch.empty(MIB, device="cuda")
        m.step()
    n_entries = len(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.empty(MIB, device="cuda")
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == n_entries


def test_an_out_of_memory_error_is_torchs_own_and_has_a_finding(tmp_path: Path) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    filler = torch.empty(512 * MIB, device="cuda", dtype=torch.uint8)
    torch.cuda.set_per_process_memory_fraction(2048 * MIB / total)
    retained = []

    @profkit.memory("train", dir=str(tmp_path), quiet=True)
    def train() -> None:
        retained.append(torch.empty(1024 * MIB, device="cuda", dtype=torch.uint8))
        retained.append(torch.empty(1024 * MIB, device="cuda", dtype=torch.uint8))

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        train()
    (path,) = (tmp_path / "train").glob("*.snapshot.pickle.gz")
    report = profkit.analyze(path)
    (failed,) = device_of(report).oom
    assert failed.bytes == 1024 * MIB
    assert failed.location is not None
    assert failed.location.function == "train"
    assert any(finding.name == "out-of-memory" for finding in report.findings)
    assert len(retained) == 1
    del filler


def test_the_bytes_of_each_process_come_from_the_driver() -> None:
    tensor = torch.empty(256 * MIB, device="cuda", dtype=torch.uint8)
    (current,) = (
        device for device in device_bytes() if device.device == torch.cuda.current_device()
    )
    free, total = torch.cuda.mem_get_info()
    assert (current.total_bytes, current.torch_bytes) == (total, torch.cuda.memory_reserved())
    assert current.free_bytes == pytest.approx(free, abs=64 * MIB)

    smi = shutil.which("nvidia-smi")
    if smi is None or current.process_bytes is None:
        pytest.skip("neither nvidia-smi nor NVML lists processes here")
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run([smi, *query], capture_output=True, text=True, check=True).stdout
    process_rows = [line.split(",") for line in listed.splitlines() if "N/A" not in line]
    used = {int(pid): int(mib) for pid, mib in process_rows}
    assert current.process_bytes == pytest.approx(used[os.getpid()] * MIB, abs=2 * MIB)
    del tensor
