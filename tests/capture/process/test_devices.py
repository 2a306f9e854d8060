"""The GPUs of a machine are found without asking the driver."""

from pathlib import Path

import pytest

from profkit.capture.process import devices


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine with one GPU: its folder of the driver, and its device files."""
    gpu = tmp_path / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 118\n")
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "_NVIDIA_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(devices, "_DEVICE_FILES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.usefixtures("machine")
def test_a_gpu_that_nothing_uses_has_a_name() -> None:
    assert devices.find_unused_gpus() == ["NVIDIA H200"]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("setting", "n_found"), [("0", 1), ("", 0), ("-1", 0)])
def test_a_hidden_gpu_is_none(monkeypatch: pytest.MonkeyPatch, setting: str, n_found: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert len(devices.find_unused_gpus()) == n_found


@pytest.mark.usefixtures("machine")
def test_a_gpu_beside_one_that_is_used_is_not_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "modules_in_use", lambda: iter(["torch.cuda"]))
    assert devices.find_unused_gpus() == []


def test_a_container_without_the_gpu_has_none(machine: Path) -> None:
    (machine / "nvidia0").unlink()
    assert devices.find_unused_gpus() == []


def test_a_machine_without_the_driver_has_none(machine: Path) -> None:
    (machine / "gpus" / "0000:01:00.0" / "information").unlink()
    assert devices.find_unused_gpus() == []
