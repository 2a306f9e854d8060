"""How the memory of CUDA devices is divided among PyTorch, this process and other processes.

NVML's list of processes is read through ``nvidia-ml-py``, the package that torch itself uses.
Without it, on ROCm, or if the list has no entry for this process id (as in many containers), the
parts of this and other processes are unknown.

Source: ``torch.cuda.mem_get_info``, ``torch.cuda.list_gpu_processes``;
``nvmlDeviceGetComputeRunningProcesses`` in NVIDIA's NVML API reference (a process's memory may be
"not available", as on WSL; it counts a process once, graphics or compute).
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from profkit.capture.process import signals
from profkit.model.device_bytes import DeviceBytes

NO_LIMITS: Final[Mapping[int, int]] = {}


def device_bytes(limits: Mapping[int, int] = NO_LIMITS) -> tuple[DeviceBytes, ...]:
    """Return the memory of every device that this process uses; none before CUDA is initialized.

    Never raises, and creates no context on a device that the process does not use.

    Args:
        limits: Bytes that this process may use of a device, where known.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return ()

    # A handler of the program runs after the block, where what it raises is not caught.
    with signals.held():
        devices = [
            _read_device(torch, device, limits) for device in range(torch.cuda.device_count())
        ]
    return tuple(device for device in devices if device is not None)


def _read_device(
    torch: Any,  # noqa: ANN401  (the module)
    device: int,
    limits: Mapping[int, int],
) -> DeviceBytes | None:
    """Return how a device's memory is divided, or None where it is unused or unknown."""
    try:
        torch_bytes = int(torch.cuda.memory_reserved(device))
        # Querying the driver about a device creates a context there, which takes memory itself.
        if not torch_bytes and device != torch.cuda.current_device():
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    except Exception:  # noqa: BLE001  (whatever torch and the driver raise: then it is not known)
        return None

    process_bytes, others_bytes = _read_processes(torch, device)

    return DeviceBytes(
        device=device,
        total_bytes=int(total_bytes),
        free_bytes=int(free_bytes),
        torch_bytes=torch_bytes,
        process_bytes=process_bytes,
        others_bytes=others_bytes,
        limit_bytes=limits.get(device),
    )


def _read_processes(torch: Any, device: int) -> tuple[int | None, int | None]:  # noqa: ANN401
    """Read from NVML the bytes of this process and of all others; None where unknown."""
    try:
        if torch.version.hip:
            return None, None

        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()

        # NVML numbers all devices of the machine, torch those in CUDA_VISIBLE_DEVICES.
        index = torch.cuda._get_nvml_device_index(device)  # noqa: SLF001  (not public)
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        used_bytes = {
            int(process.pid): process.usedGpuMemory
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }
    except Exception:  # noqa: BLE001  (no NVML, no driver, no permission, MIG: then it is not known)
        return None, None

    # In a container, NVML lists the ids that processes have outside of it.
    process_bytes = used_bytes.pop(os.getpid(), None)
    if process_bytes is None:
        return None, None
    if None in used_bytes.values():
        return int(process_bytes), None
    return int(process_bytes), sum(map(int, used_bytes.values()))
