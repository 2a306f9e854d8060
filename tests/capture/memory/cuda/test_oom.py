"""When CUDA runs out of memory a snapshot is written, and the program's error is unchanged."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.memory.cuda import history, oom
from profkit.capture.process import files
from profkit.model.snapshot import Action, MemorySnapshot
from tests.capture.memory.fake_cuda import GIB, FakeCuda

ROOT = Path(__file__).parents[4]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setattr(oom, "_attached", set())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return fake


def test_one_snapshot_is_written_and_the_error_propagates(
    cuda: FakeCuda, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with oom.OomMonitor(str(tmp_path), "train") as monitor:
        cuda.allocate(4096)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 99 bytes"):
            cuda.run_out(99)
    (path,) = (tmp_path / "train").iterdir()
    assert monitor.path == str(path)
    assert path.name.endswith(history.SUFFIX)
    snapshot = profkit.load(path)
    assert isinstance(snapshot, MemorySnapshot)
    assert snapshot.history.action.tolist()[:2] == [Action.ALLOC, Action.OOM]
    assert snapshot.driver[0].limit_bytes == 80 * GIB
    assert f"profkit analyze {path}" in capsys.readouterr().err


def test_a_program_that_catches_several_errors_gets_one_snapshot(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    with oom.OomMonitor(str(tmp_path), "train") as monitor:
        for n_bytes in (3 * GIB, 2 * GIB, GIB):
            with pytest.raises(torch.OutOfMemoryError):
                cuda.run_out(n_bytes)
    assert monitor.path is not None
    assert len(list((tmp_path / "train").iterdir())) == 1


def test_each_rank_writes_a_file_of_its_own(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with oom.OomMonitor(str(tmp_path), "train") as monitor, pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert monitor.path is not None
    assert "_rank3." in monitor.path


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_of_the_observer_does_not_replace_the_programs_error(
    cuda: FakeCuda,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: BaseException,
) -> None:
    def broken(*_: object) -> Path:
        raise fault

    monkeypatch.setattr(history, "dump", broken)
    with oom.OomMonitor(str(tmp_path), "train") as monitor, pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert monitor.path is None
    assert "no snapshot was written" in capsys.readouterr().err


def test_the_observer_is_attached_once_and_only_after_the_history_is_on(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_when_attached: list[bool] = []

    def attach(observer: Any) -> None:  # noqa: ANN401
        on_when_attached.append(cuda.is_on)
        cuda.observers.append(observer)

    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attach, raising=False)
    for _ in range(3):
        with oom.OomMonitor(str(tmp_path), "train"):
            pass
    assert on_when_attached == [True]


def test_no_snapshot_is_written_after_the_block(cuda: FakeCuda, tmp_path: Path) -> None:
    with oom.OomMonitor(str(tmp_path), "train"):
        pass
    with pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert not list(tmp_path.iterdir())


def test_a_relative_folder_is_resolved_when_the_block_begins(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    cuda.is_initialized = False
    with oom.OomMonitor("out", "train") as monitor:
        monkeypatch.chdir(elsewhere)
        cuda.initialize()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert monitor.path is not None
    assert Path(monitor.path).parent == tmp_path / "out" / "train"


def test_a_monitor_inside_a_recording_begins_when_cuda_is_initialized(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    cuda.is_initialized = False
    with history.HistoryRecording(), oom.OomMonitor(str(tmp_path), "train") as monitor:
        cuda.initialize()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert monitor.path is not None


def test_a_monitor_that_ended_before_cuda_was_initialized_writes_nothing(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    cuda.is_initialized = False
    with history.HistoryRecording():
        with oom.OomMonitor(str(tmp_path), "train") as monitor:
            pass
        cuda.initialize()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert monitor.path is None


def test_without_cuda_the_program_runs_unchanged(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "from profkit.capture.memory.cuda import oom\n"
        "with oom.OomMonitor(sys.argv[1], 'train') as monitor:\n"
        "    print(torch.ones(3).sum().item(), monitor.path)\n"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", program, str(tmp_path)],
        text=True,
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert output == "3.0 None\n"
    assert not list(tmp_path.iterdir())


GREEDY = """
import sys
import torch
from profkit.capture.memory.cuda import oom

with oom.OomMonitor(sys.argv[1], "train", quiet=True):
    kept = [torch.zeros(1 << 20, device="cuda")]
    _, total = torch.cuda.mem_get_info()
    torch.empty(2 * total, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.gpu
def test_on_a_gpu_the_program_ends_with_its_own_error_and_leaves_a_snapshot(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", GREEDY, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 1
    assert "OutOfMemoryError" in finished.stderr.splitlines()[-1]

    (path,) = (tmp_path / "train").glob(f"*{history.SUFFIX}")
    report = profkit.analyze(path)
    assert report.summary.memory is not None
    (error,) = report.summary.memory.devices[0].oom
    assert error.bytes > 1 << 30
    assert files.safe_name(path.name) == path.name
