"""The facts about each run, stored in ``rows.json`` beside the recordings."""

import datetime as dt
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

import profkit
from examples.gpu.recording.kept import digest_of
from profkit.capture.process.files import atomic_path
from profkit.capture.process.machine import gather

ROOT: Final = Path(__file__).parents[3]
PROGRAMS: Final = ROOT / "examples" / "gpu"
EXPECTED: Final[dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
ROOMS: Final = ("capture", "index", "readers", "model")
"""Packages that a recording depends on. Reports are created again each time."""
OVERHEAD: Final = ROOT / "benchmarks" / "capture_overhead.py"
CURED: Final = "_cured"


@dataclass(frozen=True)
class Run:
    """One program, with its problem or fixed, without profkit and under it.

    Attributes:
        digest: Of the program, its arguments, the machine, and profkit's recording code.
        bare_ms: Step time of each run without profkit, in milliseconds.
        watched_ms: The same under ``profkit run``, over all timed steps.
        failure: Empty, or how the first failed run ended.
        too_large: Files that are too large.
    """

    digest: str
    date: str
    machine: dict[str, Any]
    arguments: list[str]
    bare_ms: list[float] = field(default_factory=list)
    watched_ms: float | None = None
    failure: str = ""
    too_large: list[str] = field(default_factory=list)

    @property
    def best_ms(self) -> float | None:
        """Return the shortest step time without profkit, in milliseconds."""
        return min(self.bare_ms, default=None)


class Rows:
    """All runs, in one file that is always complete.

    Args:
        folder: The folder of all recordings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "rows.json"
        self._lock = threading.Lock()
        stored = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.runs = {name: Run(**facts) for name, facts in stored.get("runs", {}).items()}
        self.overhead: dict[str, Any] = stored.get("overhead", {})

    def put(self, name: str, run: Run) -> None:
        """Store a run.

        Args:
            name: The program, with the suffix ``_cured`` for the fixed one.
        """
        with self._lock:
            self.runs[name] = run
            self._write()

    def put_overhead(self, overhead: dict[str, Any]) -> None:
        """Store the overhead of recording, with digest, date and machine."""
        with self._lock:
            self.overhead = overhead
            self._write()

    def _write(self) -> None:
        runs = {name: asdict(self.runs[name]) for name in sorted(self.runs)}
        text = json.dumps({"runs": runs, "overhead": self.overhead}, indent=1) + "\n"
        with atomic_path(self._path) as partial:
            Path(partial).write_text(text, encoding="utf-8")


def machine() -> dict[str, Any]:
    """This machine: its GPU, driver, versions."""
    facts = gather()
    gpu = next((device.name for device in facts.devices if device.current), None)
    return {
        "gpu": gpu,
        "driver": _driver() or facts.driver if gpu else None,
        "cuda": torch.version.cuda,
        "torch": facts.torch,
        "python": platform.python_version(),
        "system": facts.system,
        "cores": facts.n_cores,
        "profkit": profkit.__version__,
    }


def _driver() -> str | None:
    """Version of NVIDIA's driver, from ``nvidia-smi``."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip().partition("\n")[0] or None


def settings() -> dict[str, str]:
    """Return the environment variables of programs: those of this process without profkit's."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PROFKIT")}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    return environment


def options_of(name: str) -> list[str]:
    """Return the options of ``profkit run`` with which a program is recorded."""
    options: list[str] = EXPECTED[name].get("options", [])
    return options


def digest(name: str, arguments: list[str], on: dict[str, Any]) -> str:
    """Return a digest of everything that a run depends on.

    Args:
        name: The program.
        on: The machine.
    """
    rooms = [ROOT / "profkit" / room for room in ROOMS]
    files = [PROGRAMS / f"{name}.py", PROGRAMS / "measured.py", PROGRAMS / "recording" / "gate.py"]
    return digest_of(*files, *rooms, json.dumps([options_of(name), arguments, on], sort_keys=True))


def today() -> str:
    """Return the date."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def missing(name: str, device: str) -> list[str]:
    """Return what a program needs and this machine does not have.

    Args:
        device: Where it would run.
    """
    return [need for need in EXPECTED[name]["needs"] if not HAS[need](device)]


def _has_cuda(device: str) -> bool:
    return device.startswith("cuda") and torch.cuda.is_available()


def _has_compiler(device: str) -> bool:
    if device.startswith("cuda"):
        return importlib.util.find_spec("triton") is not None
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def _has_gloo(_device: str) -> bool:
    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def _has_nccl(_device: str) -> bool:
    return torch.distributed.is_available() and torch.distributed.is_nccl_available()


HAS: Final = {
    "cuda": _has_cuda,
    "compile": _has_compiler,
    "gloo": _has_gloo,
    "nccl": _has_nccl,
}
"""For each possible need of a program, whether a machine has it."""
