"""``profkit doctor`` checks machines."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from profkit.capture.process.doctor import KNOWN_VARIABLES, DeviceFacts, Facts, Line, examine
from profkit.cli.doctor import format_page
from profkit.cli.main import main

ROOT = Path(__file__).parents[2]
GPU = DeviceFacts("NVIDIA H200", 141 << 30, "sm_90", current=True)
HEALTHY = Facts(
    python=(3, 11, 7),
    system="Linux x86_64",
    torch="2.13.0",
    built_for="CUDA 12.8",
    archs=("sm_80", "sm_90", "compute_90"),
    devices=(GPU,),
    cudnn="cuDNN 91002",
    gpus=("NVIDIA H200",),
    driver="570.86",
    driver_cuda=(12, 8),
    kineto=True,
    records_devices=True,
    free_bytes=1 << 40,
    n_cores=16,
    n_threads=16,
    packages={"tensorboard": "2.21.0", "torch-tb-profiler": "0.4.3"},
)


def troubles(facts: Facts) -> list[Line]:
    return [line for line in examine(facts) if line.status != "ok"]


def the_trouble(**changes: object) -> Line:
    (line,) = troubles(replace(HEALTHY, **changes))  # type: ignore[arg-type]
    assert line.fix
    return line


def test_a_healthy_machine_has_no_problems_and_names_its_device() -> None:
    assert troubles(HEALTHY) == []
    texts = {line.topic: line.text for line in examine(HEALTHY)}
    assert texts["cuda:0"] == "NVIDIA H200, 141 GiB, sm_90, current"
    assert texts["driver"] == "driver 570.86, runs CUDA up to 12.8, cuDNN 91002"


def test_a_machine_without_a_gpu_is_healthy() -> None:
    facts = replace(HEALTHY, built_for=None, devices=(), gpus=(), driver=None, driver_cuda=None)
    assert troubles(facts) == []


def test_a_cpu_build_of_torch_on_a_machine_with_a_gpu_is_a_problem() -> None:
    line = the_trouble(built_for=None, devices=(), archs=())
    assert line.status == "problem"
    assert "built for the CPU" in line.text


@pytest.mark.parametrize("version", ["2.5.1", "2.1.0+cu121", "1.13.1"])
def test_a_torch_that_cannot_be_recorded_with_is_a_problem(version: str) -> None:
    line = the_trouble(torch=version)
    assert (line.topic, line.status) == ("PyTorch", "problem")
    assert version in line.text


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0a0+git1234", "3.0.0", "unknown"])
def test_a_torch_that_is_not_known_to_be_too_old_is_not_a_problem(version: str) -> None:
    assert troubles(replace(HEALTHY, torch=version)) == []


def test_an_outdated_driver_is_a_problem() -> None:
    line = the_trouble(devices=(), driver_cuda=(11, 4), driver="470.1")
    assert line.status == "problem"
    assert "470.1 runs CUDA up to 11.4" in line.text
    assert "CUDA 12.8" in line.text


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_devices_are_a_problem(value: str) -> None:
    line = the_trouble(devices=(), visible=("CUDA_VISIBLE_DEVICES", value))
    assert line.fix == "Unset CUDA_VISIBLE_DEVICES."


def test_a_visible_device_that_does_not_exist_is_a_problem() -> None:
    line = the_trouble(devices=(), visible=("CUDA_VISIBLE_DEVICES", "7"))
    assert "'7' names no GPU" in line.text


def test_another_failure_of_a_gpu_is_reported_with_torchs_message() -> None:
    line = the_trouble(devices=(), device_error="RuntimeError: CUDA unknown error")
    assert "CUDA unknown error" in line.text


@pytest.mark.parametrize(
    ("arch", "archs", "runs"),
    [
        ("sm_90", ("sm_90",), True),
        ("sm_86", ("sm_80",), True),
        ("sm_80", ("sm_86",), False),
        ("sm_120", ("sm_90", "compute_90"), True),
        ("sm_120", ("sm_90",), False),
        ("sm_37", ("sm_50", "sm_90"), False),
        ("sm_90", ("sm_90a",), True),
        ("sm_100", ("sm_90a", "compute_90a"), False),
        ("gfx942:sramecc+:xnack-", ("gfx90a", "gfx942"), True),
        ("gfx1030", ("gfx942",), False),
    ],
)
def test_a_device_needs_code_for_its_architecture(
    arch: str, archs: tuple[str, ...], *, runs: bool
) -> None:
    facts = replace(HEALTHY, devices=(replace(GPU, arch=arch),), archs=archs)
    assert (troubles(facts) == []) is runs


def test_a_missing_torch_is_a_problem_and_the_only_one() -> None:
    line = the_trouble(torch=None, torch_error="ImportError: libc10.so", n_threads=None)
    assert (line.topic, line.status) == ("PyTorch", "problem")
    assert "libc10.so" in line.text


@pytest.mark.parametrize(
    ("changes", "topic", "status"),
    [
        ({"python": (3, 8, 1)}, "Python", "problem"),
        ({"kineto": False}, "profiler", "problem"),
        ({"records_devices": False}, "profiler", "problem"),
        ({"injectors": ("CUDA_INJECTION64_PATH",)}, "profiler", "note"),
        ({"folder_error": "Permission denied"}, "traces", "problem"),
        ({"free_bytes": 1 << 20}, "traces", "note"),
        ({"n_threads": 64}, "cores", "note"),
        ({"n_threads": 1, "omp_threads": "1"}, "cores", "note"),
        ({"packages": {"tensorboard": None}}, "TensorBoard", "note"),
        ({"plugin_error": "ImportError: pkg_resources"}, "TensorBoard", "note"),
        ({"tab_error": "no installed package provides it"}, "TensorBoard", "note"),
        ({"variables": {"PROFKIT_DRI": "x"}}, "environment", "note"),
        ({"variables": {"PROFKIT": "0"}}, "environment", "note"),
    ],
)
def test_each_problem_has_its_topic_and_fix(
    changes: dict[str, object], topic: str, status: str
) -> None:
    line = the_trouble(**changes)
    assert (line.topic, line.status) == (topic, status)


def test_the_page_shows_fixes_and_counts_the_problems() -> None:
    target = {"width": 80, "color": False}
    lines = examine(replace(HEALTHY, kineto=False, folder_error="Permission denied"))
    shown = format_page(lines, target)
    assert "2 problems to solve." in shown
    assert "→ Set PROFKIT_DIR to a writable folder." in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "Ready. Next: profkit demo" in format_page(examine(HEALTHY), target)


def test_this_machine_can_be_examined(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code == (0 if document["ready"] else 1)
    topics = {line["topic"]: line for line in document["lines"]}
    assert topics["PyTorch"]["status"] == "ok"
    assert "built for" in topics["PyTorch"]["text"]
    assert main(["doctor"]) == code
    assert "PyTorch" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_fails_the_doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_DIR", "/proc/nowhere")
    assert main(["doctor"]) == 1
    assert "/proc/nowhere cannot be written" in capsys.readouterr().out


def test_the_tensorboard_tab_is_checked_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from profkit.capture.process import machine

    assert machine._find_tab_error() == ""
    monkeypatch.setattr(machine, "entry_points", lambda **_: ())
    assert machine._find_tab_error() == "no installed package provides it"


def test_every_documented_variable_is_known() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    documented = {
        name
        for page in [*pages, ROOT / "README.md"]
        for name in re.findall(r"PROFKIT_[A-Z]+", page.read_text(encoding="utf-8"))
    }
    # Click's own, for completion in a shell
    assert documented - {"PROFKIT_COMPLETE"} <= KNOWN_VARIABLES
