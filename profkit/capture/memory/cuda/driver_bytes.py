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
    """The memory of every device that this process uses; none before it initializes CUDA.

    Never raises, and creates no context on a device that the process does not use.

    Args:
        limits: Bytes that this process may use of a device, where known.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return ()

    # A handler of the program runs after the block, where what it raises is not caught.
    with signals.held():
        devices = [_of(torch, device, limits) for device in range(torch.cuda.device_count())]
    return tuple(device for device in devices if device is not None)


def _of(torch: Any, device: int, limits: Mapping[int, int]) -> DeviceBytes | None:  # noqa: ANN401  (the module)
    try:
        torch_bytes = int(torch.cuda.memory_reserved(device))
        # Querying the driver about a device creates a context there, which takes memory itself.
        if not torch_bytes and device != torch.cuda.current_device():
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    except Exception:  # noqa: BLE001  (whatever torch and the driver raise: then it is not known)
        return None
    own, others = _by_process(torch, device)
    return DeviceBytes(
        device=device,
        total_bytes=int(total_bytes),
        free_bytes=int(free_bytes),
        torch_bytes=torch_bytes,
        process_bytes=own,
        others_bytes=others,
        limit_bytes=limits.get(device),
    )


def _by_process(torch: Any, device: int) -> tuple[int | None, int | None]:  # noqa: ANN401
    """Bytes of this process and of all others on NVML's list; None if unknown."""
    try:
        if torch.version.hip:
            return None, None
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        index = torch.cuda._get_nvml_device_index(device)  # noqa: SLF001  (knows CUDA_VISIBLE_DEVICES)
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        used = {
            int(process.pid): process.usedGpuMemory
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }
    except Exception:  # noqa: BLE001  (no NVML, no driver, no permission, MIG: then it is not known)
        return None, None
    own = used.pop(os.getpid(), None)
    if own is None:
        return None, None
    if None in used.values():
        return int(own), None
    return int(own), sum(map(int, used.values()))
