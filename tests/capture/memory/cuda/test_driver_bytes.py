"""Device memory is divided among torch, the rest of the process, and other processes."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from profkit.capture.memory.cuda.driver_bytes import device_bytes
from profkit.model.device_bytes import DeviceBytes
from tests.capture.memory.fake_cuda import GIB, FakeCuda

ROOT = Path(__file__).parents[4]
Uses = list[tuple[int, int | None]]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Return a device of 80 GiB, with 70 GiB free and 3 GiB reserved by torch."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "_get_nvml_device_index", lambda device: device + 4)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return fake


def list_processes(monkeypatch: pytest.MonkeyPatch, uses: Uses) -> None:
    """Make NVML list processes on its fifth device."""
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]

    def processes(handle: int) -> list[SimpleNamespace]:
        assert handle == 4
        return [SimpleNamespace(pid=pid, usedGpuMemory=n_bytes) for pid, n_bytes in uses]

    nvml.nvmlDeviceGetComputeRunningProcesses = processes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


@pytest.mark.usefixtures("cuda")
def test_memory_is_divided_among_three_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    list_processes(monkeypatch, [(os.getpid(), 4 * GIB), (1, 5 * GIB), (2, GIB // 2)])
    (device,) = device_bytes()
    assert device == DeviceBytes(
        device=0,
        total_bytes=80 * GIB,
        free_bytes=70 * GIB,
        torch_bytes=3 * GIB,
        process_bytes=4 * GIB,
        others_bytes=5 * GIB + GIB // 2,
    )
    assert device.non_torch_bytes == GIB
    assert device.outside_torch_bytes == 7 * GIB


@pytest.mark.usefixtures("cuda")
def test_without_nvml_only_the_memory_outside_torch_is_known() -> None:
    (device,) = device_bytes()
    assert (device.process_bytes, device.others_bytes, device.non_torch_bytes) == (None, None, None)
    assert device.outside_torch_bytes == 7 * GIB


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("uses", "own", "others"),
    [
        ([(1, GIB)], None, None),  # in a container the process ids are those of the host
        ([(-1, None)], None, None),
        ([(0, GIB), (-1, None)], GIB, None),  # Windows reports no memory per process
        ([(0, None)], None, None),
        ([(0, GIB)], GIB, 0),
    ],
)
def test_memory_that_nvml_does_not_report_is_unknown(
    monkeypatch: pytest.MonkeyPatch, uses: Uses, own: int | None, others: int | None
) -> None:
    list_processes(monkeypatch, [(os.getpid() if pid == 0 else pid, n) for pid, n in uses])
    (device,) = device_bytes()
    assert (device.process_bytes, device.others_bytes) == (own, others)


def test_a_device_that_the_process_does_not_use_is_not_queried(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda.is_initialized
    queried: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GIB if device == 2 else 0)

    def info(device: int) -> tuple[int, int]:
        queried.append(device)
        return GIB, 2 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    assert [device.device for device in device_bytes()] == [0, 2]
    assert queried == [0, 2]


def test_an_error_of_the_driver_is_ignored(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_device: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert cuda.is_initialized
    assert device_bytes() == ()


def test_before_the_program_uses_cuda_nothing_is_reported(cuda: FakeCuda) -> None:
    cuda.is_initialized = False
    assert device_bytes() == ()


def test_torch_is_not_imported() -> None:
    program = (
        "import sys\n"
        "from profkit.capture.memory.cuda.driver_bytes import device_bytes\n"
        "print(device_bytes(), 'torch' in sys.modules)\n"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", program], text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert output == "() False\n"


@pytest.mark.gpu
def test_on_a_gpu_an_allocation_is_attributed_to_torch() -> None:
    torch.cuda.init()
    before = {device.device: device.torch_bytes for device in device_bytes()}
    kept = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda:0")
    (after,) = [device for device in device_bytes() if device.device == 0]
    assert after.torch_bytes - before.get(0, 0) in {0, 64 << 20}
    assert after.torch_bytes >= kept.nbytes
    assert after.free_bytes + after.torch_bytes <= after.total_bytes
    assert after.process_bytes is None or after.process_bytes >= after.torch_bytes
