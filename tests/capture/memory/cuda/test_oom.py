"""When CUDA's memory runs out: a snapshot is there, and the program's error is its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture import files
from profkit.capture.memory.cuda import history, oom
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


def test_one_snapshot_is_written_and_the_error_passes(
    cuda: FakeCuda, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with oom.watch(str(tmp_path), "train") as watched:
        cuda.allocate(4096)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 99 bytes"):
            cuda.run_out(99)
    (path,) = (tmp_path / "train").iterdir()
    assert watched.path == str(path)
    assert path.name.endswith(history.SUFFIX)
    snapshot = profkit.load(path)
    assert isinstance(snapshot, MemorySnapshot)
    assert snapshot.history.action.tolist()[:2] == [Action.ALLOC, Action.OOM]
    assert snapshot.driver[0].limit_bytes == 80 * GIB
    assert f"profkit analyze {path}" in capsys.readouterr().err


def test_a_program_that_catches_the_error_and_goes_on_gets_one_snapshot(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    with oom.watch(str(tmp_path), "train") as watched:
        for n_bytes in (3 * GIB, 2 * GIB, GIB):
            with pytest.raises(torch.OutOfMemoryError):
                cuda.run_out(n_bytes)
    assert watched.n_seen == 3
    assert len(list((tmp_path / "train").iterdir())) == 1


def test_each_rank_has_a_file_of_its_own(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with oom.watch(str(tmp_path), "train") as watched, pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert watched.path is not None
    assert "_rank3." in watched.path


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_whatever_goes_wrong_the_error_of_the_program_wins(
    cuda: FakeCuda,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: BaseException,
) -> None:
    def broken(*_: object) -> Path:
        raise fault

    monkeypatch.setattr(history, "dump", broken)
    with oom.watch(str(tmp_path), "train") as watched, pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert watched.path is None
    assert "no snapshot of it was written" in capsys.readouterr().err


def test_the_observer_is_attached_once_and_after_the_history_is_on(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_when_attached: list[bool] = []

    def attach(observer: Any) -> None:  # noqa: ANN401
        on_when_attached.append(cuda.is_on)
        cuda.observers.append(observer)

    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attach, raising=False)
    for _ in range(3):
        with oom.watch(str(tmp_path), "train"):
            pass
    assert on_when_attached == [True]


def test_after_the_block_running_out_of_memory_is_the_program_s_alone(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    with oom.watch(str(tmp_path), "train"):
        pass
    with pytest.raises(torch.OutOfMemoryError):
        cuda.run_out(GIB)
    assert not list(tmp_path.iterdir())


def test_the_folder_is_the_one_that_was_meant_when_the_block_began(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    cuda.is_started = False
    with oom.watch("out", "train") as watched:
        monkeypatch.chdir(elsewhere)
        cuda.start()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert watched.path is not None
    assert Path(watched.path).parent == tmp_path / "out" / "train"


def test_a_watch_within_a_recording_is_told_when_cuda_starts(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    cuda.is_started = False
    with history.recording(), oom.watch(str(tmp_path), "train") as watched:
        cuda.start()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert watched.path is not None


def test_a_watch_that_ended_before_cuda_started_sees_nothing(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    cuda.is_started = False
    with history.recording():
        with oom.watch(str(tmp_path), "train") as watched:
            pass
        cuda.start()
        with pytest.raises(torch.OutOfMemoryError):
            cuda.run_out(GIB)
    assert watched.path is None


def test_without_cuda_a_watched_program_runs_as_ever(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "from profkit.capture.memory import oom\n"
        "with oom.watch(sys.argv[1], 'train') as watched:\n"
        "    print(torch.ones(3).sum().item(), watched.path)\n"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", program, str(tmp_path)],
        text=True,
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert said == "3.0 None\n"
    assert not list(tmp_path.iterdir())


GREEDY = """
import sys
import torch
from profkit.capture.memory import oom

with oom.watch(sys.argv[1], "train", quiet=True):
    kept = [torch.zeros(1 << 20, device="cuda")]
    _, total = torch.cuda.mem_get_info()
    torch.empty(2 * total, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.gpu
def test_on_a_gpu_the_program_dies_of_its_own_error_and_leaves_a_snapshot(tmp_path: Path) -> None:
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
    (ran_out,) = report.summary.memory.devices[0].oom
    assert ran_out.bytes > 1 << 30
    assert files.safe_name(path.name) == path.name
