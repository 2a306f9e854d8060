"""Whether a machine is ready to train and to profile, from facts about it alone.

:mod:`profkit.capture.process.machine` collects the facts, so that any machine can be checked on any
other.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.units import format_bytes

Status = Literal["ok", "note", "problem"]

_MIN_PYTHON: Final = (3, 11)
_MIN_TORCH: Final = (2, 6)
_MIN_FREE_BYTES: Final = 1 << 30
"""A trace of a few steps takes about 10 MB, its uncompressed text about 200 MB."""
KNOWN_VARIABLES: Final = frozenset(
    f"PROFKIT{ending}" for ending in ("", "_CACHE", "_DEBUG", "_DIR", "_LISTEN", "_QUIET")
)
"""Settings by environment variables."""


@dataclass(frozen=True)
class DeviceFacts:
    """A device as torch reports it.

    Attributes:
        name: Such as ``NVIDIA H200``.
        total_bytes: Its memory.
        arch: Its architecture, such as ``sm_90`` or ``gfx942``.
    """

    name: str
    total_bytes: int
    arch: str
    current: bool = False


@dataclass(frozen=True)
class Facts:
    """Facts about a machine.

    Attributes:
        torch: PyTorch's version, or None when it cannot be imported.
        built_for: ``CUDA 12.8``, ``ROCm 6.4``, or None for a CPU-only build.
        archs: Architectures that the build has kernels for.
        device_error: torch's error when it finds no device.
        cudnn: Version of cuDNN or MIOpen.
        gpus: Names of the GPUs that the operating system lists.
        driver_cuda: The newest CUDA that the driver supports, as (major, minor).
        visible: ``CUDA_VISIBLE_DEVICES`` or ``HIP_VISIBLE_DEVICES``: its name and value.
        kineto: Whether torch's profiler can record.
        records_devices: Whether it can record devices.
        injectors: Environment variables by which CUDA loads another tool.
        folder: The folder for traces.
        folder_error: Why it is not writable.
        free_bytes: Free space there.
        n_cores: Cores that this process may use.
        n_threads: Threads of torch's operators.
        omp_threads: ``OMP_NUM_THREADS``.
        packages: Versions of tensorboard and torch-tb-profiler; None for a missing one.
        plugin_error: Why TensorBoard cannot load the profiler's plugin.
        tab_error: Why it does not show profkit's own tab.
        variables: Environment variables that begin with ``PROFKIT``.
    """

    python: tuple[int, int, int]
    system: str = ""
    torch: str | None = None
    torch_error: str = ""
    built_for: str | None = None
    archs: tuple[str, ...] = ()
    device_error: str = ""
    devices: tuple[DeviceFacts, ...] = ()
    cudnn: str | None = None
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    visible: tuple[str, str] | None = None
    kineto: bool = False
    records_devices: bool = False
    injectors: tuple[str, ...] = ()
    folder: str = "traces"
    folder_error: str = ""
    free_bytes: int = 0
    n_cores: int = 1
    n_threads: int | None = None
    omp_threads: str | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)
    plugin_error: str = ""
    tab_error: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """The result of one check.

    Attributes:
        topic: What was checked.
        text: The result.
        fix: The remedy, or empty.
    """

    topic: str
    status: Status
    text: str
    fix: str = ""


def examine(facts: Facts) -> tuple[Line, ...]:
    """Check a machine; the results are in the order of the page."""
    has_torch = facts.torch is not None
    return (
        *_check_basics(facts),
        *(_check_devices(facts) if has_torch else ()),
        *(_check_profiling(facts) if has_torch else ()),
        *_check_surroundings(facts),
    )


def _ok(topic: str, text: str) -> Line:
    return Line(topic, "ok", text)


def _note(topic: str, text: str, fix: str) -> Line:
    return Line(topic, "note", text, fix)


def _problem(topic: str, text: str, fix: str) -> Line:
    return Line(topic, "problem", text, fix)


def _check_basics(facts: Facts) -> Iterator[Line]:
    python = ".".join(map(str, facts.python))
    if facts.python < _MIN_PYTHON:
        yield _problem("Python", f"Python {python} is too old.", "Install Python 3.11 or newer.")
    else:
        yield _ok("Python", " on ".join(filter(None, (python, facts.system))))

    if facts.torch is None:
        text = f"PyTorch cannot be imported: {facts.torch_error}"
        fix = "Install it as shown at https://pytorch.org/get-started/locally."
        yield _problem("PyTorch", text, fix)
    elif _is_older(facts.torch, _MIN_TORCH):
        yield _problem("PyTorch", f"PyTorch {facts.torch} is too old.", "Install 2.6 or newer.")
    else:
        yield _ok("PyTorch", f"{facts.torch}, built for {facts.built_for or 'the CPU'}")


def _is_older(version: str, minimum: tuple[int, int]) -> bool:
    """Return whether a version, such as ``2.13.0+cpu``, is certain to be older than another one."""
    # A version without numbers, as of some builds from source, is not called old.
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < minimum


def _check_devices(facts: Facts) -> Iterator[Line]:
    if not facts.devices:
        yield _explain_no_device(facts)
        return

    for number, device in enumerate(facts.devices):
        yield _check_device(facts, number, device)

    versions = [f"driver {facts.driver}"] if facts.driver else []
    if facts.driver_cuda:
        versions.append("runs CUDA up to {}.{}".format(*facts.driver_cuda))
    if facts.cudnn:
        versions.append(facts.cudnn)
    if versions:
        yield _ok("driver", ", ".join(versions))


def _check_device(facts: Facts, number: int, device: DeviceFacts) -> Line:
    topic = f"cuda:{number}"
    current = ", current" if device.current else ""
    text = f"{device.name}, {format_bytes(device.total_bytes)}, {device.arch}{current}"
    if facts.archs and not _can_run_on(device.arch, facts.archs):
        text += f": this PyTorch build has kernels for {', '.join(facts.archs)} only."
        fix = "Install a build of PyTorch for this architecture, usually a newer one."
        return _problem(topic, text, fix)
    return _ok(topic, text)


def _can_run_on(arch: str, archs: tuple[str, ...]) -> bool:
    """Return whether a build has code for a device.

    Binary code runs on its own major architecture and higher minor versions; ``compute_`` code is
    compiled for anything newer. Code with a letter at the end (``sm_90a``) runs on that one only.

    Source: "Binary Compatibility" and "PTX Compatibility" in the CUDA C++ Programming Guide.
    """
    if not arch.startswith("sm_"):
        # ROCm: features of the build may follow the name, as in `gfx90a:sramecc+:xnack-`.
        return any(arch.partition(":")[0] == built.partition(":")[0] for built in archs)

    wanted = _number(arch)
    for built in archs:
        has = _number(built)
        is_specific = not built[-1].isdigit()
        if is_specific or has > wanted:
            fits = has == wanted
        else:
            fits = built.startswith("compute_") or has // 10 == wanted // 10
        if fits:
            return True
    return False


def _number(arch: str) -> int:
    return int("".join(char for char in arch.partition("_")[2] if char.isdigit()) or 0)


def _explain_no_device(facts: Facts) -> Line:
    """Explain why torch finds no GPU, by the most certain cause."""
    gpus = ", ".join(facts.gpus)
    if not facts.gpus and not facts.driver:
        return _ok("GPU", "No GPU found; programs run on the CPU.")

    if facts.built_for is None:
        text = f"This machine has a GPU ({gpus}), but PyTorch is built for the CPU."
        fix = "Install a CUDA or ROCm build: see https://pytorch.org/get-started/locally."
        return _problem("GPU", text, fix)
    if facts.visible is not None:
        name, value = facts.visible
        # An empty value and -1 are how a program is made to run on the CPU.
        if not value.strip() or value.strip() == "-1":
            return _problem("GPU", f"{name}={value!r} hides every GPU.", f"Unset {name}.")
        text = f"{name}={value!r} names no GPU of this machine ({gpus})."
        fix = f"Unset {name}, or use one that `nvidia-smi -L` or `rocm-smi` lists."
        return _problem("GPU", text, fix)

    built = facts.built_for.partition(" ")[2].partition(".")[0]
    if facts.driver_cuda and built.isdecimal() and facts.driver_cuda[0] < int(built):
        runs = "{}.{}".format(*facts.driver_cuda)
        driver = f"The driver {facts.driver or ''} runs CUDA up to {runs}"
        newest = facts.driver_cuda[0]
        fix = f"Update the driver, or install a build of PyTorch for CUDA {newest}."
        return _problem("GPU", f"{driver}, and PyTorch is built for {facts.built_for}.", fix)

    error = f" Its error: {facts.device_error}" if facts.device_error else ""
    text = f"This machine has a GPU ({gpus}), but PyTorch cannot use it.{error}"
    fix = "Check that `nvidia-smi` or `rocm-smi` works, and restart after a driver update."
    return _problem("GPU", text, fix)


def _check_profiling(facts: Facts) -> Iterator[Line]:
    if not facts.kineto:
        text = "This PyTorch is built without Kineto: it cannot record."
        yield _problem("profiler", text, "Install an official build.")
    elif facts.devices and not facts.records_devices:
        text = "torch.profiler records the CPU, but not the GPU."
        fix = "Install a build of PyTorch with CUPTI (CUDA) or roctracer (ROCm)."
        yield _problem("profiler", text, fix)
    else:
        yield _ok("profiler", f"records the CPU{' and the GPU' if facts.devices else ''}")

    for name in facts.injectors:
        text = f"{name} is set: another tool may be using the GPU's profiler."
        fix = "Run without it: only one of the two can record the GPU."
        yield _note("profiler", text, fix)


def _check_surroundings(facts: Facts) -> Iterator[Line]:
    yield _check_threads(facts)
    yield _check_folder(facts)
    yield _check_tensorboard(facts)

    for name, value in sorted(facts.variables.items()):
        if name not in KNOWN_VARIABLES:
            text = f"{name} is set, but profkit has no such setting."
            yield _note("environment", text, "Check the spelling.")
        elif name == "PROFKIT" and value == "0":
            yield _note("environment", "PROFKIT=0: recording is off.", "Unset PROFKIT.")
        else:
            yield _ok("environment", f"{name}={value}")


def _check_folder(facts: Facts) -> Line:
    free = format_bytes(facts.free_bytes)
    if facts.folder_error:
        text = f"{facts.folder} cannot be written: {facts.folder_error}."
        return _problem("traces", text, "Set PROFKIT_DIR to a writable folder.")
    if facts.free_bytes < _MIN_FREE_BYTES:
        fix = "Free some space, or set PROFKIT_DIR to another folder."
        return _note("traces", f"Only {free} is free in {facts.folder}.", fix)
    return _ok("traces", f"{facts.folder}, {free} free")


def _check_threads(facts: Facts) -> Line:
    threads = facts.n_threads
    text = f"{facts.n_cores} for this process" + (f", {threads} used by PyTorch" if threads else "")

    if threads and threads > facts.n_cores:
        fix = f"Set OMP_NUM_THREADS={facts.n_cores}: more threads than cores slow each other down."
        return _note("cores", text, fix)
    if facts.omp_threads == "1" and facts.n_cores > 1:
        fix = "Unset it, unless several processes share this machine (torchrun sets it)."
        return _note("cores", f"{text}, because OMP_NUM_THREADS=1", fix)
    return _ok("cores", text)


def _check_tensorboard(facts: Facts) -> Line:
    missing = [name for name, version in facts.packages.items() if version is None]
    if missing:
        text = f"{' and '.join(missing)} missing: no timeline in TensorBoard."
        return _note("TensorBoard", text, f"pip install {' '.join(missing)}")

    if facts.plugin_error:
        text = f"Its profiler plugin fails to load: {facts.plugin_error}."
        return _note("TensorBoard", text, "pip install --upgrade torch-tb-profiler")

    versions = ", ".join(f"{name} {version}" for name, version in facts.packages.items())
    if facts.tab_error:
        text = f"{versions}, but without the Profkit tab: {facts.tab_error}."
        return _note("TensorBoard", text, "Reinstall profkit in TensorBoard's environment.")
    return _ok("TensorBoard", f"{versions}, with the Profkit tab")
