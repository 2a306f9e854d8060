"""A program that listens, here the process of the tests: questions, steps, recordings."""

import contextlib
import errno
import os
import selectors
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

import profkit
from profkit.capture.live import listener, recorder, server
from profkit.capture.live.endpoint import Conversation, Endpoint
from profkit.capture.live.listener import NotListening, ProgramListener
from profkit.capture.live.search import find_listening, locate_program
from profkit.capture.process import own_threads, program_profilers
from profkit.capture.recording import current
from profkit.errors import CaptureError
from profkit.model.trace import Trace
from profkit.readers.open import load
from tests.step_counts import count_steps

FIGURES = {"ask": "figures", "after": 0}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[ProgramListener]:
    opened = profkit.listen("job", dir=tmp_path)
    assert isinstance(opened, ProgramListener)
    yield opened
    opened.stop()


def ask(listening: ProgramListener, **question: object) -> dict[str, Any]:
    with Conversation(find_listening(str(listening.folder))) as conversation:
        (answer,) = conversation.ask(question, 10.0).values()
        return answer


def n_steps(listening: ProgramListener) -> int:
    return int(ask(listening, **FIGURES)["n_steps"])


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def test_only_this_user_can_ask(listening: ProgramListener) -> None:
    (process,) = find_listening(str(listening.folder))
    (file,) = listening.folder.iterdir()
    modes = [stat.S_IMODE(Path(path).stat().st_mode) for path in (file, process.socket)]
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(Path(process.socket).parent.stat().st_mode) == 0o700
    listening.stop()
    assert not file.exists()
    assert not Path(process.socket).parent.exists()


def test_a_second_call_returns_the_same_one(listening: ProgramListener, tmp_path: Path) -> None:
    assert profkit.listen("other", dir=tmp_path) is listening
    assert repr(listening) == f"<profkit.listen: {tmp_path / 'job'}>"


def test_it_is_off_with_profkit_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listener, "IS_ON", False)
    off = profkit.listen("job", dir=tmp_path)
    off.step()
    off.stop()
    assert isinstance(off, NotListening)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").write_text("a file")
    assert isinstance(profkit.listen("job", dir=tmp_path), NotListening)
    assert "the program runs without it" in capsys.readouterr().err


def test_a_temporary_folder_with_too_long_a_path_for_a_socket_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("scheduler" * 12)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    opened = profkit.listen("job", dir=tmp_path)
    assert isinstance(opened, ProgramListener)
    try:
        assert ask(opened, ask="identity")["pid"] == os.getpid()
        assert list(long.iterdir()) == []
    finally:
        opened.stop()


def test_without_any_socket_the_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(server, "_SHORT_FOLDER", str(tmp_path / "none either"))
    assert isinstance(profkit.listen("job", dir=tmp_path), NotListening)
    assert f"no socket in {tmp_path / 'none'}" in " ".join(capsys.readouterr().err.split())


def stale(folder: Path, pid: int, path: Path) -> Path:
    """Return the files that a killed program leaves behind."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return Endpoint("old", socket.gethostname(), pid, str(path), 1).write(folder)


def test_a_killed_program_does_not_listen_if_another_process_has_its_number(
    listening: ProgramListener,
) -> None:
    with tempfile.TemporaryDirectory() as short:
        file = stale(listening.folder, os.getppid(), Path(short, "profkit-old", "socket"))
        assert [process.pid for process in find_listening(str(listening.folder))] == [os.getpid()]
        with pytest.raises(CaptureError, match="No program listens"):
            find_listening(str(file.rename(listening.folder.parent / file.name)))


def test_the_next_program_removes_the_socket_of_one_that_was_killed(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:
        left, foreign = (Path(short, name, "socket") for name in ("profkit-old", "other"))
        stale(tmp_path / "job", os.getppid(), left)
        stale(tmp_path / "job", 1, foreign)
        opened = profkit.listen("job", dir=tmp_path)
        opened.stop()
        assert not left.parent.exists()
        assert foreign.exists()  # not one of profkit's folders
    assert list((tmp_path / "job").iterdir()) == []


def test_a_program_of_another_user_is_said_to_be_that(
    listening: ProgramListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = listening.folder.iterdir()
    file.write_text("")  # nor can its contents be read
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != file)
    with pytest.raises(CaptureError, match="is another user's"):
        find_listening(str(listening.folder))


def test_steps_of_the_leading_optimizer_are_counted(listening: ProgramListener) -> None:
    generator, discriminator = sgd(), sgd()
    for _ in range(20):
        generator.step()
        discriminator.step()
    assert n_steps(listening) == 20
    for _ in range(5):
        generator.step()
    assert n_steps(listening) == 25


def test_own_steps_come_before_steps_of_optimizers(listening: ProgramListener) -> None:
    optimizer = sgd()
    for _ in range(3):
        optimizer.step()
    for _ in range(4):
        optimizer.step()
        listening.step()
    answer = ask(listening, **FIGURES)
    assert (answer["n_steps"], answer["steps"]) == (4, "user")


def test_steps_of_another_thread_do_not_count(listening: ProgramListener) -> None:
    sgd().step()
    thread = threading.Thread(target=sgd().step)
    thread.start()
    thread.join()
    assert n_steps(listening) == 1


def test_batches_are_steps_without_an_optimizer_and_their_wait_is_known(
    listening: ProgramListener,
) -> None:
    for _batch in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(10))):
        pass
    answer = ask(listening, **FIGURES)
    assert answer["steps"] == "loader"
    assert answer["n_steps"] == 8  # of eleven waits for a batch, the first three only tell
    waits = answer["waits_ns"]
    assert waits == sorted(waits)
    assert 0 < waits[-1] - waits[0] < answer["ends_ns"][-1] - answer["ends_ns"][0]


def test_threads_of_profkit_have_no_stack(listening: ProgramListener) -> None:
    is_over = threading.Event()
    before = [name for name, _calls in ask(listening, ask="stacks")["stacks"]]
    own_threads.start(lambda: is_over.wait(60.0))
    try:
        names = [name for name, _calls in ask(listening, ask="stacks")["stacks"]]
    finally:
        is_over.set()
    assert "MainThread" in names
    assert names == before


def test_a_stack_ends_with_the_innermost_call(listening: ProgramListener) -> None:
    release, is_there = threading.Event(), threading.Event()

    def hangs() -> None:
        is_there.set()
        release.wait()

    thread = threading.Thread(target=hangs, name="stuck")
    thread.start()
    is_there.wait()
    stacks = dict(ask(listening, ask="stacks")["stacks"])
    release.set()
    thread.join()
    functions = [function for _, _, function in stacks["stuck"]]
    assert functions[functions.index("hangs") + 1] == "wait"
    assert "profkit" not in stacks, "the thread that answers is left out"
    assert stacks["MainThread"][-1][2] != "stacks"


class NoFileLeft:
    """A socket of a process that may open no more files."""

    def accept(self) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_who_asks_while_the_program_has_no_file_left_is_answered_later(
    listening: ProgramListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its thread, which has just been started, waits on the real socket once it has answered.
    assert "n_steps" in ask(listening, **FIGURES)
    with monkeypatch.context() as limited, selectors.DefaultSelector() as selector:
        limited.setattr(listening._server, "_socket", NoFileLeft())
        listening._server._accept(selector)
        assert not selector.get_map()
    assert "n_steps" in ask(listening, **FIGURES)


def test_who_does_not_read_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SEND_LIMIT_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = server.Client(ours)
        for _ in range(100):
            client.answer({"text": "x" * 100_000})
        assert client.is_gone
        began = time.monotonic()
        client.answer({"text": "x" * 100_000})
        assert time.monotonic() - began < 0.04


def test_an_unknown_question_is_answered(listening: ProgramListener) -> None:
    assert "another version" in ask(listening, ask="weather")["error"]
    assert "failed" in ask(listening, ask="record", steps="many")["error"]
    assert ask(listening, ask="identity")["pid"] == os.getpid()


@contextlib.contextmanager
def recording(
    listening: ProgramListener, n: int = 2, *, memory: bool = False
) -> Iterator["Future[dict[str, Any]]"]:
    """Ask for a recording in another thread, and yield its answer."""
    question = {"ask": "record", "id": "1", "steps": n, "memory": memory}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, listening, **question)
        while listening._recorder.request is None and not answer.done():
            pass
        yield answer


def test_the_next_steps_are_recorded_and_the_optimizer_is_left_as_it_was(
    listening: ProgramListener,
) -> None:
    optimizer = sgd()
    scheduler = StepLR(optimizer, 10)
    own_step = optimizer.step
    with recording(listening, memory=True) as answer:
        for _ in range(12):
            optimizer.step()
            scheduler.step()

    files = answer.result()["files"]
    assert optimizer.step == own_step
    assert len({file.partition(".pt.trace")[0].partition(".memory")[0] for file in files}) == 1

    report = profkit.analyze(files)
    assert count_steps(report.summary) == 2
    assert [Path(file).parent for file in files] == [listening.folder] * 2
    assert n_steps(listening) == 12
    assert current.state.session is None


def test_a_second_recording_is_refused_while_one_is_under_way(listening: ProgramListener) -> None:
    optimizer = sgd()
    with recording(listening) as answer:
        second = ask(listening, ask="record", id="2", steps=1, memory=False)
        for _ in range(12):
            optimizer.step()
    assert second["error"].startswith("another recording is under way")
    assert not answer.result()["stopped_by"]


def test_the_programs_own_recording_comes_first(listening: ProgramListener, tmp_path: Path) -> None:
    with profkit.trace("own", dir=tmp_path, quiet=True):
        answer = ask(listening, ask="record", id="1", steps=1, memory=False)
    assert answer["error"] == "the program is recording “own” itself"


def test_the_programs_own_profiler_comes_first(
    listening: ProgramListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_profilers, "is_open", lambda: True)
    with recording(listening) as answer:
        for _ in range(3):
            listening.step()
    assert "the program uses a profiler itself" in answer.result()["error"]


def test_a_recording_that_fails_leaves_nothing_open(
    listening: ProgramListener,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_arguments: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(current, "open_session", fails)
    n_listeners = len(current.step_listeners)
    with recording(listening, memory=True) as answer:
        for _ in range(3):
            listening.step()
    assert answer.result()["error"] == "recording failed: no memory"
    assert "has failed. MemoryError: no memory" in capsys.readouterr().err
    assert (listening._recorder.request, len(current.step_listeners)) == (None, n_listeners)


def test_a_recording_that_nobody_waits_for_any_more_does_not_begin(
    listening: ProgramListener,
) -> None:
    with Conversation(find_listening(str(listening.folder))) as conversation:
        question = {"ask": "record", "id": "1", "steps": 1, "memory": False}
        assert conversation.ask(question, 0.2) == {}
    while not listening._recorder.request.is_cancelled:  # type: ignore[union-attr]
        pass
    listening.step()
    assert listening._recorder.request is None
    assert [path.name for path in listening.folder.glob("*.gz")] == []


def test_what_was_recorded_is_written_when_the_program_ends(listening: ProgramListener) -> None:
    with recording(listening, 100) as answer:
        for _ in range(10):
            listening.step()
        listening.end("exit")
    (file,) = answer.result()["files"]
    assert answer.result()["stopped_by"] == "exit"
    trace = load(file)
    assert isinstance(trace, Trace)
    assert len(trace.events) > 0


def test_who_asked_is_told_that_no_step_ends_and_the_next_one_ends_the_recording(
    listening: ProgramListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_LEAST_S", 2.0)
    with recording(listening, 100) as answer:
        for _ in range(12):
            torch.ones(8).sum()
            listening.step()
        until_s = time.monotonic() + 20
        while not answer.done() and time.monotonic() < until_s:
            time.sleep(0.01)

    assert "has not ended the recorded steps in time" in answer.result()["error"]

    listening.step()
    assert (listening._recorder.request, current.state.session) == (None, None)
    (file,) = Path(listening.folder).glob("*.trace.json.gz")
    assert count_steps(profkit.analyze(str(file)).summary) > 1

    with recording(listening, 2) as answer:  # and the next one can be triggered
        for _ in range(10):
            listening.step()
    assert not answer.result()["stopped_by"]


def test_a_request_that_was_given_up_makes_way_for_the_next(listening: ProgramListener) -> None:
    requests = listening._recorder
    near_end, far_end = socket.socketpair()

    with near_end, far_end:
        first, second = server.Client(near_end), server.Client(far_end)
        assert requests.begin("1", 3, first, memory=False) is None
        assert "another recording is under way" in str(requests.begin("2", 3, second, memory=False))
        given_up = requests.request
        assert given_up is not None
        requests.cancel(first)
        given_up.is_at_step_end = True  # which may begin it
        assert "another recording is under way" in str(requests.begin("2", 3, second, memory=False))
        given_up.is_at_step_end = False
        assert requests.begin("2", 3, second, memory=False) is None
        requests._close(given_up)  # by a step that had ended just before
        assert requests.request is not None
        assert requests.request.client is second
        requests._close(requests.request)


def test_too_many_steps_are_refused(listening: ProgramListener) -> None:
    answer = ask(listening, ask="record", id="1", steps=10**6, memory=False)
    assert answer["error"] == "a recording has 1 to 100 steps"


def test_a_forked_child_leaves_it_to_its_parent(listening: ProgramListener) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if listener._state.listener is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ask(listening, ask="identity")["pid"] == os.getpid()


def endpoint(folder: Path, **changes: object) -> Path:
    values = {
        "job": "a",
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "socket": "/none",
        "began_ns": 1,
    }
    return Endpoint(**{**values, **changes}).write(folder)  # type: ignore[arg-type]


def test_where_nothing_listens_an_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="No program listens in"):
        find_listening(str(tmp_path))


def test_a_process_that_is_gone_is_named_and_its_file_is_removed(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gone = endpoint(tmp_path, pid=pid)
    with pytest.raises(CaptureError, match=f"process {pid} does not listen any more"):
        find_listening(str(tmp_path))
    endpoint(tmp_path)
    assert not gone.exists()


def test_of_two_programs_one_can_be_chosen(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listens:
        path = str(Path(short, "socket"))
        listens.bind(path)
        listens.listen()
        first = endpoint(tmp_path / "train", socket=path)
        endpoint(tmp_path / "train", job="b", pid=os.getppid(), socket=path)
        with pytest.raises(CaptureError, match="2 programs listen in") as caught:
            find_listening(str(tmp_path))
        assert str(first) in caught.value.hint
        assert [process.job for process in find_listening(str(first))] == ["a"]


def test_a_program_is_found_by_its_name_and_by_a_process_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_DIR", str(tmp_path))
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listens:
        path = str(Path(short, "socket"))
        listens.bind(path)
        listens.listen()
        endpoint(tmp_path / "train", socket=path)
        endpoint(tmp_path / "eval", job="b", pid=os.getppid(), socket=path)
        train = str(tmp_path / "train")
        assert locate_program("train") == locate_program(str(os.getpid())) == train
        with pytest.raises(CaptureError, match="2 programs listen in") as caught:
            find_listening(locate_program(None))
        assert caught.value.hint == "Name one of them: eval, train."


def test_a_process_that_runs_without_listening_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_DIR", str(tmp_path))
    with pytest.raises(CaptureError, match=f"Process {os.getpid()} runs and does not listen in"):
        locate_program(str(os.getpid()))

    script = tmp_path / "runs_on.py"
    script.write_text("import time; print(flush=True); time.sleep(60)")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        expected = f"No program named runs_on listens, but process {process.pid} runs runs_on."
        try:
            with pytest.raises(CaptureError) as caught:
                locate_program("runs_on")
        finally:
            process.kill()
    assert str(caught.value).startswith(expected)
    with pytest.raises(CaptureError, match="There is no process"):
        locate_program(str(process.pid))


def test_a_process_that_does_not_answer_has_failed() -> None:
    process = Endpoint("a", socket.gethostname(), os.getpid(), "/none", 1)
    with Conversation([process]) as conversation:
        assert conversation.ask({"ask": "identity"}, 1.0) == {}
    assert list(conversation.failed.values()) == ["cannot be reached (No such file or directory)"]
