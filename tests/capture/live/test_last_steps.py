"""The last steps of a program are in a file that is there however the program ends."""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import profkit
from profkit.api import last_steps as read
from profkit.capture.live import last_steps
from profkit.capture.live.last_steps import LastStepsRecorder
from profkit.cli.main import main
from profkit.model.last_steps import ProcessEnd
from tests.processes import start_forked

PROGRAM = """\
import os, sys, time, torch
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
def train(n):
    for _ in range(n):
        optimizer.step()
def hang():
    time.sleep(0.4)
    os.kill(os.getpid(), 9)
train(12)
if sys.argv[1] == "hang":
    hang()
raise ValueError("no such batch")
"""


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[LastStepsRecorder]:
    opened = last_steps.begin("job", tmp_path / "traces" / "job")
    assert opened is not None
    yield opened
    opened.end()


def process_in(folder: Path) -> ProcessEnd:
    (process,) = read(folder).processes
    return process


def ends_by(folder: Path, end: Callable[[], object]) -> tuple[int, ProcessEnd]:
    """The wait status of a child that makes three steps and ends somehow, and what it left."""
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        opened = last_steps.begin("job", folder)
        assert opened is not None
        for _ in range(3):
            opened.step()
        time.sleep(0.3)
        end()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return status, process_in(folder)


@pytest.mark.parametrize(
    ("end", "number"), [(os.abort, signal.SIGABRT), (lambda: os.kill(os.getpid(), 9), 9)]
)
def test_a_process_that_is_killed_leaves_its_steps_and_stacks(
    end: Callable[[], object], number: int, tmp_path: Path
) -> None:
    status, process = ends_by(tmp_path, end)
    assert os.WTERMSIG(status) == number
    assert (process.state, process.error, process.n_steps) == ("killed", None, 3)
    (main_stack,) = [each for each in process.last_stacks if each.thread == "MainThread"]
    assert main_stack.calls[-1].function == "ends_by"
    assert process.memory[-1].host_rss_bytes


def test_sigterm_ends_it_as_without(tmp_path: Path) -> None:
    status, process = ends_by(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert process.error is not None
    assert (process.state, process.error.type) == ("signal", "SIGTERM")


def test_a_normal_end_leaves_nothing(steps: LastStepsRecorder, tmp_path: Path) -> None:
    assert steps.path.exists()
    steps.end()
    assert list(tmp_path.iterdir()) == []


def test_steps_of_an_optimizer_are_those_of_the_file(steps: LastStepsRecorder) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(20)))
    for _ in loader:
        time.sleep(0.002)
        optimizer.step()
    process = process_in(steps.path.parent)
    assert process.n_steps == 20
    times = [each.dur_ns for each in process.steps if each.dur_ns is not None]
    waits = [each.data_wait_ns for each in process.steps if each.data_wait_ns is not None]
    assert len(times) == 19
    assert min(times) > 2_000_000
    assert all(0 < wait < step for wait, step in zip(waits, times, strict=True))


def test_an_uncaught_exception_is_written_before_the_programs_own_hook(
    steps: LastStepsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    steps._hooks.remove()
    monkeypatch.setattr(sys, "excepthook", lambda *about: shown.append(about[1]))
    steps._hooks.install()
    error = ValueError("no such batch")
    try:
        raise error
    except ValueError:
        sys.excepthook(*sys.exc_info())
    steps.end()
    assert shown == [error]
    process = process_in(steps.path.parent)
    assert process.error is not None
    assert (process.state, process.error.message) == ("exception", "no such batch")
    (frame,) = process.error.calls
    assert (frame.file, frame.function) == (__file__, sys._getframe().f_code.co_name)


def test_hooks_that_the_program_sets_later_stay(
    steps: LastStepsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.excepthook

    def own(*_about: object) -> None:
        pass

    monkeypatch.setattr(sys, "excepthook", own)
    steps.end()
    assert sys.excepthook is own
    assert threading.excepthook is not before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_of_a_thread_is_known_if_the_program_is_killed(
    steps: LastStepsRecorder,
) -> None:
    def fails() -> None:
        raise KeyError("row 7")

    thread = threading.Thread(target=fails, name="prefetch")
    thread.start()
    thread.join()
    process = process_in(steps.path.parent)
    assert process.error is not None
    assert (process.error.thread, process.error.type) == ("prefetch", "KeyError")
    steps.end()
    assert not steps.path.exists()  # the program has ended normally all the same


def test_a_forked_child_leaves_the_file_to_its_parent(steps: LastStepsRecorder) -> None:
    steps.step()
    pid = os.fork()
    if pid == 0:
        steps.step()
        steps.end(ValueError())
        os._exit(0 if steps.path.exists() and not last_steps._open else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    process = process_in(steps.path.parent)
    assert (process.n_steps, process.error) == (1, None)


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").write_text("a file")
    assert last_steps.begin("job", tmp_path / "job") is None
    assert "the last steps cannot be retained" in capsys.readouterr().err


def test_a_listening_program_can_retain_its_steps(tmp_path: Path) -> None:
    listening = profkit.listen("job", dir=tmp_path, last_steps=True)
    listening.step()
    process = process_in(tmp_path)
    assert process.n_steps == 1
    listening.stop()
    assert list(tmp_path.rglob("*.laststeps")) == []


def test_a_run_that_hangs_and_is_killed_is_analyzed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    ended = start_forked(
        tmp_path, "-m", "profkit", "run", "--no-leaks", "--no-trace", "train.py", "hang"
    )
    assert ended.code == -9
    assert main(["analyze", str(tmp_path / "traces" / "train")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert " ended abruptly " in out
    assert "after the end of step 12: it was killed, crashed, or called `os._exit`." in out
    assert "train.py:7 (hang), for " in out


@pytest.mark.slow
def test_a_run_that_raises_says_where_its_last_steps_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    ended = start_forked(tmp_path, "-m", "profkit", "run", "train.py", "raise")
    assert ended.code == 1
    (line,) = [each for each in ended.err.splitlines() if "the steps before the exception" in each]
    process = process_in(Path(tmp_path, line.rpartition(" ")[2]).parent)
    assert process.error is not None
    assert [each.function for each in process.error.calls] == ["<module>"]
    off = start_forked(
        tmp_path, "-m", "profkit", "run", "--no-last-steps", "--dir", "off", "train.py", "raise"
    )
    assert off.code == 1
    assert list((tmp_path / "off").rglob("*.laststeps")) == []
