"""Collects the facts about this machine that :mod:`profkit.capture.process.doctor` evaluates."""

import contextlib
import ctypes
import importlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Final

from profkit.capture.process import devices, environment
from profkit.capture.process.doctor import DeviceFacts, Facts
from profkit.folders import traces_folder

_INJECTORS: Final = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")
"""Set by Nsight Systems and by other tools that CUDA loads."""
_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_AMD: Final = Path("/dev/kfd")


def gather() -> Facts:
    """Gather the facts about this machine. Imports torch; nothing is allocated on a device."""
    folder, folder_error, free_bytes = _check_folder()
    packages = {name: _find_version(name) for name in ("tensorboard", "torch-tb-profiler")}
    try:
        torch_facts = _gather_torch_facts()
    except Exception as error:  # noqa: BLE001  (a broken install raises anything)
        torch_facts = {"torch_error": _one_line(error)}

    return Facts(
        python=sys.version_info[:3],
        system=f"{platform.system()} {platform.machine()}",
        gpus=_list_gpus(),
        driver=environment.driver_version(),
        driver_cuda=_read_driver_cuda(),
        visible=next(((name, os.environ[name]) for name in _VISIBLE if name in os.environ), None),
        injectors=tuple(name for name in _INJECTORS if os.environ.get(name)),
        folder=folder,
        folder_error=folder_error,
        free_bytes=free_bytes,
        n_cores=environment.n_cores(),
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        packages=packages,
        plugin_error=_find_plugin_error() if all(packages.values()) else "",
        tab_error=_find_tab_error() if packages["tensorboard"] else "",
        variables={key: os.environ[key] for key in os.environ if key.startswith("PROFKIT")},
        **torch_facts,
    )


def _gather_torch_facts() -> dict[str, Any]:
    """Gather what :class:`~profkit.capture.process.doctor.Facts` has from torch."""
    import torch
    from torch.profiler import ProfilerActivity, supported_activities

    hip = getattr(torch.version, "hip", None)
    built_for = (
        f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else None
    )

    cuda_devices: tuple[DeviceFacts, ...] = ()
    device_error = ""
    try:
        if torch.cuda.is_available():
            cuda_devices = tuple(
                _describe_device(torch, number) for number in range(torch.cuda.device_count())
            )
        elif built_for:
            # For its error: `is_available()` gives none.
            torch.cuda.init()
    except Exception as error:  # noqa: BLE001  (a driver fails in many ways)
        device_error = _one_line(error)

    cudnn = torch.backends.cudnn.version() if built_for else None
    return {
        "torch": str(torch.__version__),
        "built_for": built_for,
        "archs": tuple(torch.cuda.get_arch_list()),
        "devices": cuda_devices,
        "device_error": device_error,
        "cudnn": f"{'MIOpen' if hip else 'cuDNN'} {cudnn}" if cudnn else None,
        "kineto": bool(torch.profiler.kineto_available()),
        "records_devices": ProfilerActivity.CUDA in supported_activities(),
        "n_threads": int(torch.get_num_threads()),
    }


def _describe_device(torch: Any, number: int) -> DeviceFacts:  # noqa: ANN401  (the module)
    device = torch.cuda.get_device_properties(number)
    arch = (
        getattr(device, "gcnArchName", "")
        if torch.version.hip
        else f"sm_{device.major}{device.minor}"
    )
    current = number == torch.cuda.current_device()
    return DeviceFacts(str(device.name), int(device.total_memory), arch, current)


def _list_gpus() -> tuple[str, ...]:
    """List the GPUs that their kernel drivers name, whether torch can use them or not."""
    names = devices.read_nvidia_gpus()
    # A container may have the device without the driver's folder in /proc.
    if not names and Path("/dev/nvidiactl").exists():
        names.append("an NVIDIA GPU")
    if _AMD.exists():
        names.append("an AMD GPU")
    return tuple(names)


def _read_driver_cuda() -> tuple[int, int] | None:
    """Read the newest CUDA version that the driver supports.

    Source: ``cuDriverGetVersion`` in the CUDA Driver API reference: 1000 * major + 10 * minor.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    number = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return number.value // 1000, number.value % 1000 // 10
    return None


def _check_folder() -> tuple[str, str, int]:
    """Return the folder for traces, why it is not writable (or empty), and its free bytes."""
    folder = traces_folder()
    existing = Path(folder).absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent

    # By writing: permissions alone do not show a file system that is full or read-only.
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        return folder, "", shutil.disk_usage(existing).free
    except OSError as error:
        return folder, error.strerror or str(error), 0


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _find_plugin_error() -> str:
    """Return why TensorBoard cannot load the profiler's plugin, or an empty text."""
    return _catch_error(lambda: importlib.import_module("torch_tb_profiler.plugin"))


def _find_tab_error() -> str:
    """Return why TensorBoard does not show profkit's own tab, or an empty text."""
    plugins = entry_points(group="tensorboard_plugins", name="profkit")
    if not plugins:
        return "no installed package provides it"
    return next(filter(None, (_catch_error(plugin.load) for plugin in plugins)), "")


def _catch_error(load: Callable[[], object]) -> str:
    """Return the error that TensorBoard gets when it loads something, or an empty text."""
    try:
        load()
    except Exception as error:  # noqa: BLE001  (whatever it is)
        return _one_line(error)
    return ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
