"""Blocks, functions and loops, recorded in this process."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from isal import igzip_threaded

import profkit
from profkit.capture.recording import current, harmless_kinds
from profkit.capture.recording.trace import IDLE
from profkit.errors import UsageError

Opened = Callable[[str | None], dict[str, Any]]


def work() -> torch.Tensor:
    """Return a few operators."""
    return (torch.ones(4, 4) @ torch.ones(4, 4)).sum()


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def annotations(trace: dict[str, Any]) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]


def ops(trace: dict[str, Any]) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]


def test_the_trace_of_a_block_has_its_name_and_the_cost_of_recording(
    tmp_path: Path, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    with profkit.trace("a step") as t:
        work()
    trace = opened(t.path)
    assert Path(str(t.path)).parent == tmp_path / "traces" / "a_step"
    assert annotations(trace) == ["a step"]
    assert "aten::matmul" in ops(trace)

    about = trace["profkit"]
    assert about["name"] == "a step"
    assert about["steps"] == "entry"
    assert about["torch"] == torch.__version__
    assert about["pid"] == os.getpid()
    assert about["cost"]["n_events"] == sum(e["ph"] == "X" for e in trace["traceEvents"])
    assert min(about["cost"][key] for key in ("start_ns", "stop_ns", "write_ns")) > 0
    assert about["cost"]["overhead_ratio"] > 0
    assert "Python calls" in about["cost"]["overhead_basis"]

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"profkit analyze {t.path}" in printed.err


def test_quiet_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with profkit.trace("one", quiet=True):
        work()
    monkeypatch.setenv("PROFKIT_QUIET", "1")
    with profkit.trace("two"):
        work()
    assert capsys.readouterr().err == ""


def test_each_part_can_be_turned_off(opened: Opened) -> None:
    with profkit.trace("bare", stacks=False, shapes=False, memory=False) as t:
        work()
    trace = opened(t.path)
    assert not {"with_stack", "record_shapes", "profile_memory"} & set(trace)
    assert trace["profkit"]["lines"] is None
    assert "aten::matmul" in ops(trace)


def test_a_name_is_recorded_up_to_its_limit_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(100_000):
        with profkit.trace("step", limit=2):
            pass
    assert len(list_files(tmp_path)) == 2
    assert capsys.readouterr().err.count("its limit") == 1
    assert current.n_recorded == {"step": 3}
    beyond = profkit.trace("step", limit=2)
    assert beyond is profkit.trace("step", limit=2)
    assert beyond.path == str(max(list_files(tmp_path)))
    assert beyond.report is not None
    assert beyond.report.source.path == beyond.path
    assert profkit.trace("other") is not IDLE


def test_later_recordings_have_no_stacks_and_the_source_lines_of_the_first(opened: Opened) -> None:
    traces = []
    for _ in range(2):
        with profkit.trace("step") as t:
            work()
        traces.append(opened(t.path))
    first, second = traces
    assert [trace["profkit"]["lines"]["same_window"] for trace in traces] == [True, False]
    assert first["profkit"]["lines"]["frames"] == second["profkit"]["lines"]["frames"]
    assert any(e.get("cat") == "python_function" for e in first["traceEvents"])
    assert not any(e.get("cat") == "python_function" for e in second["traceEvents"])


def test_a_nested_block_is_a_region_without_a_file(tmp_path: Path, opened: Opened) -> None:
    with profkit.trace("outer") as outer, profkit.trace("inner") as inner:
        work()
    assert inner.path is None
    assert annotations(opened(outer.path)) == ["outer", "inner"]
    assert len(list_files(tmp_path)) == 1
    assert "inner" not in current.n_recorded


def test_a_loop_of_steps_within_recorded_steps_is_not_a_region(opened: Opened) -> None:
    with profkit.trace("outer", warmup=1, active=1) as outer:
        for _ in profkit.steps(range(4), "inner", wait=0):
            work()
            outer.step()
    trace = opened(outer.path)
    assert "inner" not in annotations(trace), "it would be left open where the steps end"
    assert not harmless_kinds._find_open_kinds()


def test_a_name_beyond_its_limit_is_still_a_region_in_another_block(opened: Opened) -> None:
    for _ in range(3):
        with profkit.trace("inner", limit=1):
            work()
    with profkit.trace("outer") as outer, profkit.trace("inner", limit=1):
        work()
    assert "inner" in annotations(opened(outer.path))


def test_the_users_exception_is_raised_and_the_trace_is_written(opened: Opened) -> None:
    error = ValueError("mine")
    block = profkit.trace("fails")

    def fails() -> None:
        with block:
            work()
            raise error

    with pytest.raises(ValueError, match="mine") as caught:
        fails()
    assert caught.value is error
    trace = opened(block.path)
    assert trace["profkit"]["stopped_by"] == "ValueError"
    assert "aten::matmul" in ops(trace)


def test_another_thread_is_not_recorded_meanwhile(tmp_path: Path) -> None:
    paths: list[str | None] = []

    def other() -> None:
        with profkit.trace("other") as t:
            work()
        paths.append(t.path)

    with profkit.trace("main") as t:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        work()
    assert paths == [None]
    assert list_files(tmp_path) == [Path(str(t.path))]
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert paths[1] is not None, "a thread records when no other does"


def test_concurrent_threads_record_one_trace_at_a_time(tmp_path: Path) -> None:
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def enter() -> None:
        start.wait()
        try:
            for _ in range(3):
                with profkit.trace("step", limit=2, stacks=False, quiet=True):
                    work()
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is a failure)
            errors.append(error)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert 1 <= len(list_files(tmp_path)) <= 2


def test_a_profiler_that_is_already_running_is_not_disturbed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.profiler.profile() as users:
        for _ in range(2):
            with profkit.trace("step") as t:
                work()
    assert t.path is None
    assert list_files(tmp_path) == []
    assert any(event.key == "aten::matmul" for event in users.key_averages())
    printed = capsys.readouterr().err
    assert printed.count("warning") == 1
    assert "Another torch profiler is running" in printed


def test_a_profiler_that_the_program_starts_inside_ends_the_recording(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    with profkit.trace("step") as t:
        work()
        with torch.profiler.profile() as users:
            torch.ones(3).exp()
    assert [event.key for event in users.key_averages()].count("aten::exp") == 1
    trace = opened(t.path)
    assert trace["profkit"]["stopped_by"] == "another profiler"
    assert "aten::matmul" in ops(trace)
    assert "aten::exp" not in ops(trace)
    assert "the recording of “step” ends there" in capsys.readouterr().err
    with torch.profiler.profile() as again:
        work()
    assert again.key_averages()


def test_a_profiler_in_its_warm_up_is_not_disturbed(tmp_path: Path) -> None:
    users = torch.profiler.profile()
    users.prepare_trace()
    with profkit.trace("step", limit=9) as t:
        work()
    assert t.path is None
    assert list_files(tmp_path) == []
    users.start_trace()
    work()
    users.stop_trace()
    assert [event.key for event in users.key_averages()].count("aten::matmul") == 1
    with profkit.trace("step", limit=9) as t:
        work()
    assert t.path is not None


def test_a_profiler_that_begins_during_a_warm_up_is_not_disturbed() -> None:
    with profkit.trace("step", warmup=2, active=1) as t:
        for _ in range(2):
            work()
            t.step()
        with torch.profiler.profile() as users:
            work()
        for _ in range(4):
            work()
            t.step()
    assert t.path is None
    assert [event.key for event in users.key_averages()].count("aten::matmul") == 1


def test_torch_and_the_signals_are_unchanged_after_a_block() -> None:
    kinds = (torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile)
    before = [dict(vars(kind)) for kind in kinds]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    with profkit.trace("step"):
        assert vars(kinds[0])["_prepare_trace"] is not before[0]["_prepare_trace"]
        work()
    assert [dict(vars(kind)) for kind in kinds] == before
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers


def test_a_python_profiler_of_the_program_is_left_alone(opened: Opened) -> None:
    def count(_frame: object, _event: str, _argument: object) -> None:
        pass

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with profkit.trace("step") as t:
            work()
        assert sys.getprofile() is count
    finally:
        sys.setprofile(before)
    assert opened(t.path)["profkit"].get("lines") is None


def test_a_full_disk_is_one_warning_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to_full_disk = igzip_threaded.open("/dev/full", "wb", threads=1)
    monkeypatch.setattr(igzip_threaded, "open", lambda *_, **__: to_full_disk)
    with profkit.trace("step") as t:
        outcome = work()
    assert outcome.item() == 64
    assert t.path is None
    assert list_files(tmp_path) == []
    printed = capsys.readouterr().err
    assert "No space left on device" in printed
    assert "dir= or PROFKIT_DIR" in printed


def test_a_folder_without_write_permission_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *_args: object, **_kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for _ in range(2):
        with profkit.trace("step") as t:
            work()
    assert t.path is None
    printed = capsys.readouterr().err
    assert printed.count("warning") == 1
    assert "Permission denied" in printed


def test_a_folder_that_is_a_file_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with profkit.trace("step", dir=str(tmp_path / "file")) as t:
        work()
    assert t.path is None
    assert "warning" in capsys.readouterr().err


def test_a_block_can_be_reused(opened: Opened) -> None:
    block = profkit.trace("again")
    paths = []
    for _ in range(2):
        with block:
            work()
        paths.append(block.path)
    assert len(set(paths)) == 2
    assert all(opened(path)["profkit"]["name"] == "again" for path in paths)


def test_the_report_is_created_from_the_file() -> None:
    with profkit.trace("step") as t:
        work()
    assert t.report is not None
    assert t.report is t.report
    assert t.report.source.path == t.path
    assert [step.name for step in t.report.summary.steps] == ["step"]


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(UsageError, match="no argument dri"):
        profkit.trace("x", dri="typo")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="must be a string"):
        profkit.trace(3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="empty"):
        profkit.trace("x", ops=False, device=False)


def test_nothing_is_recorded_without_the_required_device(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with profkit.trace("step", only="cuda") as t:
        work()
    assert t.path is None
    assert profkit.trace("step", only="cuda") is IDLE
    assert list_files(tmp_path) == []


def test_with_recording_off_a_function_is_returned_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(current.state, "is_on", False)
    assert profkit.trace(work) is work
    assert profkit.trace("step")(work) is work
    with profkit.trace("step", wait=1, active=1) as t:
        t.step()
    assert t.path is None
    assert t.report is None
