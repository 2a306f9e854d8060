"""The allocator's history is recorded while a block runs and written completely."""

import gzip
import pickle
import pickletools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.memory.cuda import history
from profkit.capture.process import files
from profkit.capture.recording import current
from profkit.errors import CaptureError
from profkit.model.snapshot import MemorySnapshot
from tests.capture.memory.fake_cuda import GIB, FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return fake


def loaded(path: Path) -> MemorySnapshot:
    snapshot = profkit.load(path)
    assert isinstance(snapshot, MemorySnapshot)
    return snapshot


def test_history_is_recorded_inside_the_block_with_python_stacks_and_a_limit(
    cuda: FakeCuda,
) -> None:
    with history.HistoryRecording():
        assert cuda.is_on
        enabled, context, stacks, max_entries, *_ = cuda.requests[-1]
    assert (enabled, context, stacks, max_entries) == ("all", "all", "python", 100_000)
    assert not cuda.is_on


def test_a_recording_of_the_latest_has_stacks_of_allocations_alone(cuda: FakeCuda) -> None:
    with history.HistoryRecording(extent=history.LATEST):
        enabled, context, stacks, max_entries, *_ = cuda.requests[-1]
    assert (enabled, context, stacks, max_entries) == ("all", "alloc", "python", 2000)
    assert not cuda.is_on


def test_a_longer_recording_within_a_short_one_makes_that_longer(cuda: FakeCuda) -> None:
    with history.HistoryRecording(extent=history.LATEST):
        cuda.allocate()
        with history.HistoryRecording():
            cuda.allocate()
            assert cuda.requests[-1][1:4] == ("all", "python", 100_000)
        assert cuda.is_on
        assert len(cuda.entries) == 2
        torch.cuda.memory._record_memory_history(max_entries=9)
        assert cuda.entries == []  # the program's own begins anew
    assert cuda.is_on


def test_a_history_takes_more_memory_until_it_is_full(cuda: FakeCuda) -> None:
    cuda.n_allocated = 10_000
    assert not history.is_filling()
    with history.HistoryRecording(extent=history.LATEST):
        assert history.is_filling()
        for _ in range(history.LATEST.max_entries):
            cuda.allocate()
        assert not history.is_filling()
        cuda.n_allocated = 0  # the program has reset the counters
        assert not history.is_filling()


def test_history_recorded_by_the_program_is_not_turned_off(cuda: FakeCuda) -> None:
    torch.cuda.memory._record_memory_history(max_entries=9)
    cuda.allocate()
    with history.HistoryRecording():
        cuda.allocate()
    assert cuda.is_on
    assert len(cuda.entries) == 2
    assert len(cuda.requests) == 1


def test_history_that_the_program_turned_off_stays_off(cuda: FakeCuda) -> None:
    with history.HistoryRecording():
        torch.cuda.memory._record_memory_history(None)
        assert not cuda.is_on
        n_requests = len(cuda.requests)
    assert len(cuda.requests) == n_requests
    with history.HistoryRecording():
        assert not cuda.is_on


def test_a_history_that_the_program_turns_on_has_only_what_happens_since(cuda: FakeCuda) -> None:
    switch = torch._C._cuda_record_memory_history
    with history.HistoryRecording():
        cuda.allocate(1)
        torch.cuda.memory._record_memory_history(max_entries=9)
        cuda.allocate(2)
        assert cuda.requests[-1][3] == 9
    assert cuda.is_on
    assert [entry["size"] for entry in cuda.entries] == [2]
    assert torch._C._cuda_record_memory_history is switch


def test_nested_recording_leaves_the_outer_one_running(cuda: FakeCuda) -> None:
    with history.HistoryRecording():
        with history.HistoryRecording():
            pass
        assert cuda.is_on
        assert len(cuda.requests) == 1


def test_recording_waits_until_the_program_initializes_cuda(cuda: FakeCuda) -> None:
    cuda.is_initialized = False
    with history.HistoryRecording():
        assert cuda.requests == []
        cuda.initialize()
        assert cuda.is_on


def test_cuda_initialized_after_the_block_is_not_recorded(cuda: FakeCuda) -> None:
    cuda.is_initialized = False
    with history.HistoryRecording():
        pass
    cuda.initialize()
    assert cuda.requests == []


def test_an_allocator_without_history_causes_one_warning(
    cuda: FakeCuda, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda.fails = True
    with history.HistoryRecording():
        pass
    assert capsys.readouterr().err.count("cudaMallocAsync does not yet support") == 1


def test_nothing_is_recorded_when_profkit_is_off(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current.state, "is_on", False)
    with history.HistoryRecording():
        pass
    assert cuda.requests == []


def test_without_cuda_nothing_is_recorded_or_queued() -> None:
    if hasattr(torch._C, "_cuda_record_memory_history"):
        pytest.skip("this torch is built for CUDA")
    before = len(torch.cuda._queued_calls)
    with history.HistoryRecording():
        assert not history.is_recording()
    assert len(torch.cuda._queued_calls) == before


def test_a_dump_is_a_pickle_of_protocol_4_of_plain_data(cuda: FakeCuda, tmp_path: Path) -> None:
    with history.HistoryRecording():
        cuda.allocate(2048)
        path = history.dump(tmp_path / "deep" / "a.snapshot.pickle.gz", {0: 40 * GIB})
    content = gzip.decompress(path.read_bytes())
    protocols = [
        argument for code, argument, _ in pickletools.genops(content) if code.name == "PROTO"
    ]
    assert protocols == [4]

    data: dict[str, Any] = pickle.loads(content)  # noqa: S301  (written a moment ago)
    assert next(entry["size"] for entry in data["device_traces"][0]) == 2048
    (driver,) = loaded(path).driver
    assert (driver.torch_bytes, driver.free_bytes) == (3 * GIB, 70 * GIB)
    assert driver.limit_bytes == 40 * GIB
    assert driver.others_bytes is None
    assert [file.name for file in path.parent.iterdir()] == ["a.snapshot.pickle.gz"]


def test_a_dump_has_allocation_sites(cuda: FakeCuda, tmp_path: Path) -> None:
    with history.HistoryRecording():
        cuda.allocate(2048)
        snapshot = loaded(history.dump(tmp_path / "a.snapshot.pickle.gz"))
    (frame,) = snapshot.stacks.of(int(snapshot.history.stack[0]))
    assert (frame.file, frame.line, frame.function) == ("train.py", 3, "step")


def test_a_dump_without_history_is_an_error(cuda: FakeCuda, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="history is not recorded") as caught:
        history.dump(tmp_path / "a.snapshot.pickle.gz")
    assert caught.value.hint
    assert not cuda.requests
    assert not list(tmp_path.iterdir())


def test_a_dump_of_a_history_without_allocations_is_an_error(
    cuda: FakeCuda, tmp_path: Path
) -> None:
    with history.HistoryRecording():
        for _ in range(2):  # the first attempt is recorded too, but is no allocation
            with pytest.raises(CaptureError, match="no CUDA memory was allocated or freed"):
                history.dump(tmp_path / "a.snapshot.pickle.gz")
    assert not cuda.entries
    assert not list(tmp_path.iterdir())


def test_a_dump_before_the_program_uses_cuda_is_an_error(cuda: FakeCuda, tmp_path: Path) -> None:
    cuda.is_initialized = False
    with pytest.raises(CaptureError, match="has not used CUDA memory"):
        history.dump(tmp_path / "a.snapshot.pickle.gz")


def test_a_failed_dump_leaves_no_file_behind(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pickle, "dump", full)
    with history.HistoryRecording():
        cuda.allocate()
        with pytest.raises(OSError, match="No space left"):
            history.dump(tmp_path / "a.snapshot.pickle.gz")
    assert not list(tmp_path.iterdir())


def test_a_snapshot_has_the_name_of_its_trace() -> None:
    beside = files.beside("traces/x/host_1_rank2.17.pt.trace.json.gz", history.SUFFIX)
    assert beside == Path("traces/x/host_1_rank2.17.snapshot.pickle.gz")


@pytest.mark.gpu
def test_on_a_gpu_the_snapshot_has_the_allocation_site_of_a_tensor(tmp_path: Path) -> None:
    with history.HistoryRecording():
        kept = torch.zeros(1 << 20, device="cuda")
        snapshot = loaded(history.dump(tmp_path / "a.snapshot.pickle.gz"))
    assert not history.is_recording()
    table = snapshot.history
    rows = [row for row in range(len(table)) if table.address[row] == kept.data_ptr()]
    frames = snapshot.stacks.of(int(table.stack[rows[0]]))
    assert any(frame.file == __file__ for frame in frames)
    assert snapshot.driver[0].torch_bytes >= kept.nbytes
