"""The machine and the program, as a capture writes them into its trace."""

import contextlib
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Final

from profkit._version import __version__
from profkit.capture.process import devices, launch
from profkit.model.capture_info import (
    DEBUG_SETTINGS,
    CaptureInfo,
    DeviceMismatch,
    HostThreads,
    StepKind,
)
from profkit.patterns import regex

_NVIDIA_VERSION: Final = Path("/sys/module/nvidia/version")
_AMD_VERSION: Final = Path("/sys/module/amdgpu/version")
_CPUS: Final = Path("/proc/cpuinfo")
_HALF_FLAGS: Final = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"},
    "float16": {"avx512_fp16", "amx_fp16", "avx_ne_convert", "asimdhp"},
}
"""Instructions that convert or multiply, by type: torch or oneDNN uses any of them."""
_COMMIT: Final = regex(r"[0-9a-f]{40}([0-9a-f]{24})?")


class ProcessFacts:
    """What is known of this process's program.

    Attributes:
        mismatch: The error that ends what is recorded, noted by
            :mod:`profkit.capture.recording.device_mismatch`; the next recording that is written
            takes it.
    """

    mismatch: DeviceMismatch | None = None


state: Final = ProcessFacts()


def describe(name: str, steps: StepKind) -> CaptureInfo:
    """Describe this process, its machine and its torch, for the capture of that name."""
    import torch

    rank, world_size = ranks()
    ended_by, state.mismatch = state.mismatch, None
    return CaptureInfo(
        version=__version__,
        name=name,
        steps=steps,
        torch=str(torch.__version__),
        python=platform.python_version(),
        cuda=torch.version.cuda or getattr(torch.version, "hip", None),
        driver=driver_version(),
        devices=device_names(),
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        argv=list(sys.argv),
        threads=host_threads(),
        mismatch=ended_by,
        processor=processor(),
        half_types=find_half_types(),
        unused_gpus=devices.find_unused_gpus(),
        revision=revision(Path.cwd()),
        settings={
            name: os.environ[name]
            for name, values in DEBUG_SETTINGS.items()
            if os.environ.get(name) in values
        },
    )


def host_threads() -> HostThreads:
    """Return the threads and processes of the program as they are now.

    Source: torchrun sets ``LOCAL_WORLD_SIZE`` (torch.distributed.run, "Environment Variables").
    """
    import torch

    processes = sys.modules.get("multiprocessing.process")
    n_ranks = 1
    with contextlib.suppress(KeyError, ValueError):
        n_ranks = max(1, int(os.environ["LOCAL_WORLD_SIZE"]))
    return HostThreads(
        n_cores=n_cores(),
        n_threads=torch.get_num_threads(),
        n_ranks=n_ranks,
        # active_children() would wait for those that have ended, which is the program's to do.
        n_workers=len(getattr(processes, "_children", ())),
    )


def n_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_distributed() -> bool:
    """Return whether this process has joined a process group of ``torch.distributed``."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def ranks() -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks of a distributed job; None and None outside one.

    Source: torchrun sets ``RANK`` and ``WORLD_SIZE`` (torch.distributed.run, "Environment
    Variables").
    """
    if is_distributed():
        distributed = sys.modules["torch.distributed"]
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return launch.launched_rank() or (None, None)


def processor() -> str | None:
    """Return the name of the processor, or None."""
    return _read_cpu("model name") or platform.processor() or None


def find_half_types() -> list[str] | None:
    """Return the types in half precision that the processor multiplies; None if it is not known.

    Source: flags of x86 and features of arm64 in ``arch/*/kernel/cpu`` of the Linux kernel.
    """
    written = _read_cpu("flags") or _read_cpu("Features")
    flags = set((written or "").split())
    return [name for name, known in _HALF_FLAGS.items() if known & flags] if flags else None


def _read_cpu(key: str) -> str | None:
    """Return what Linux says of the first processor, or None."""
    with contextlib.suppress(OSError), _CPUS.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip() or None
    return None


def revision(folder: Path) -> str | None:
    """Return the git commit that is checked out in a folder or one around it, or None.

    No process is started for it: the program is not to wait for one.

    Source: ``gitrepository-layout`` in git's documentation.
    """
    with contextlib.suppress(OSError, ValueError):
        for checkout in (folder, *folder.parents):
            git = checkout / ".git"
            if not git.exists():
                continue

            if git.is_file():  # of a worktree or a submodule
                git = checkout / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
            # A worktree has a HEAD of its own, and its branches in the folder of the repository.
            common = git / "commondir"
            shared = git / common.read_text(encoding="utf-8").strip() if common.exists() else git
            return _find_commit(git, shared, (git / "HEAD").read_text(encoding="utf-8").strip())
    return None


def _find_commit(git: Path, shared: Path, head: str) -> str | None:
    """Find the commit of ``HEAD``; branches are a file each, or lines of ``packed-refs``."""
    name = head.partition("ref:")[2].strip()
    if not name:
        return head if _COMMIT.fullmatch(head) else None

    # A branch that is in both has its newer commit in the file.
    for place in (git / name, shared / name):
        if place.is_file():
            commit = place.read_text(encoding="utf-8").strip()
            return commit if _COMMIT.fullmatch(commit) else None

    with contextlib.suppress(FileNotFoundError):
        for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines():
            commit, _, packed = line.partition(" ")
            if packed == name and _COMMIT.fullmatch(commit):
                return commit
    return None


def device_names() -> list[str]:
    """Name the devices, without initializing a runtime that the program does not use."""
    names: list[str] = []
    for module in devices.modules_in_use():
        with contextlib.suppress(RuntimeError, AssertionError):
            names += [module.get_device_name(i) for i in range(module.device_count())]
    return names


def driver_version() -> str | None:
    """Return the version of the GPU's kernel driver, or None."""
    for path in (_NVIDIA_VERSION, _AMD_VERSION):
        with contextlib.suppress(OSError):
            return path.read_text().strip() or None
    return None
