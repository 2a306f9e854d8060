"""Work is done elsewhere, one thing after the other, and what it breaks stays broken alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.integrations.tensorboard.analysis_queue import AnalysisQueue, Task, TaskState
from profkit.integrations.tensorboard.cache import ResultCache, default_folder, key_of

WORKER = """
import os, pathlib, sys, time
folder, *words = sys.argv[1:]
if words[0] == "write":
    pathlib.Path(folder, "answer.json").write_text(words[1])
elif words[0] == "hold":
    while not os.path.exists(words[1]):
        time.sleep(0.01)
elif words[0] == "die":
    os.kill(os.getpid(), 9)
elif words[0] == "log":
    with open(words[1], "a") as file:
        file.write(words[2])
else:
    sys.exit("no such word: " + words[0])
"""


@pytest.fixture
def store(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "cache")


@pytest.fixture
def analyst(
    store: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AnalysisQueue]:
    (tmp_path / "a_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = AnalysisQueue(store, n_processes=1, longest_s=20, worker="a_worker")
    yield made
    made.close()


def settled(analyst: AnalysisQueue, key: str) -> TaskState:
    deadline = time.monotonic() + 60
    while (state := analyst.state(key)).stage in {"queued", "analyzing"}:
        assert time.monotonic() < deadline, state
        time.sleep(0.01)
    return state


def test_what_was_worked_out_is_there_for_the_next_server(
    analyst: AnalysisQueue, store: ResultCache, tmp_path: Path
) -> None:
    assert analyst.state("k").stage == "waiting"
    assert analyst.ask(Task("k", ("write", "{}")), urgent=False).stage == "queued"
    assert settled(analyst, "k").stage == "ready"
    assert store.read("k", "answer.json") == b"{}"
    assert store.read("k", "no-such-file") is None
    assert AnalysisQueue(ResultCache(tmp_path / "cache")).state("k").stage == "ready"


def test_a_process_that_dies_or_complains_is_a_failure_that_can_be_tried_again(
    analyst: AnalysisQueue, store: ResultCache
) -> None:
    analyst.ask(Task("dead", ("die",)), urgent=False)
    assert "signal 9" in settled(analyst, "dead").message
    analyst.ask(Task("odd", ("odd",)), urgent=False)
    assert "no such word: odd" in settled(analyst, "odd").message
    assert analyst.ask(Task("odd", ("write", "{}")), urgent=True).stage == "failed"
    assert analyst.ask(Task("odd", ("write", "{}")), urgent=True, again=True).stage == "queued"
    assert settled(analyst, "odd").stage == "ready"
    assert not list(store.folder.glob("draft-*"))


def test_what_takes_too_long_is_given_up(store: ResultCache, tmp_path: Path) -> None:
    (tmp_path / "slow_worker.py").write_text(WORKER)
    sys.path.insert(0, str(tmp_path))
    try:
        slow = AnalysisQueue(store, n_processes=1, longest_s=0.3, worker="slow_worker")
        slow.ask(Task("slow", ("hold", str(tmp_path / "never"))), urgent=False)
        assert "given up" in settled(slow, "slow").message
        slow.close()
    finally:
        sys.path.remove(str(tmp_path))


def test_what_somebody_waits_for_comes_before_all_else(
    analyst: AnalysisQueue, tmp_path: Path
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    analyst.ask(Task("first", ("hold", str(gate))), urgent=False)
    while analyst.state("first").stage != "analyzing":
        time.sleep(0.01)
    analyst.ask(Task("a", ("log", str(log), "a")), urgent=False)
    analyst.ask(Task("b", ("log", str(log), "b")), urgent=False)
    analyst.ask(Task("c", ("log", str(log), "c")), urgent=True)
    analyst.ask(Task("b", ("log", str(log), "b")), urgent=True)
    gate.touch()
    for key in "abc":
        assert settled(analyst, key).stage == "ready"
    assert log.read_text() == "bca"


def test_the_worker_ends_when_the_server_is_gone() -> None:
    code = (
        "import time; from profkit.integrations.tensorboard import worker; "
        "worker._end_with_parent(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline() == b"up\n"
        worker.stdin.close()
        assert worker.wait(30) == 1


def test_closing_ends_what_is_under_way(analyst: AnalysisQueue, tmp_path: Path) -> None:
    analyst.ask(Task("held", ("hold", str(tmp_path / "never"))), urgent=False)
    while analyst.state("held").stage != "analyzing":
        time.sleep(0.01)
    analyst.close()
    assert f"signal {signal.SIGKILL.value}" in settled(analyst, "held").message


def test_the_cache_forgets_what_was_not_read_for_longest(tmp_path: Path) -> None:
    store = ResultCache(tmp_path, limit_bytes=2500)
    for number, name in enumerate("abc"):
        draft = store.draft()
        (draft / "report.json").write_bytes(b"x" * 1000)
        store.keep(draft, name)
        os.utime(tmp_path / name, (number, number))
    assert not store.has("a")
    store.read("b", "report.json")
    draft = store.draft()
    (draft / "report.json").write_bytes(b"x" * 1000)
    store.keep(draft, "d")
    assert [name for name in "abcd" if store.has(name)] == ["b", "d"]


def test_the_cache_goes_elsewhere_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    store = ResultCache(tmp_path / "file" / "cache")
    assert store.folder.is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "profkit" / "tensorboard"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder().is_absolute()


def test_a_key_changes_with_every_part_and_with_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {key_of("a", "b"), key_of("ab"), key_of("a", "c"), key_of("\udcff")}
    assert len(keys) == 4
    before = key_of("a")
    monkeypatch.setattr("profkit.__version__", "9.9")
    assert key_of("a") != before


def test_one_process_is_always_free_for_what_somebody_waits_for(
    store: ResultCache, tmp_path: Path, analyst: AnalysisQueue
) -> None:
    analyst.close()
    two = AnalysisQueue(store, longest_s=20, worker="a_worker")
    gate = tmp_path / "gate"
    try:
        two.ask(Task("held", ("hold", str(gate))), urgent=False)
        two.ask(Task("behind", ("write", "{}")), urgent=False)
        two.ask(Task("wanted", ("write", "{}")), urgent=True)
        assert settled(two, "wanted").stage == "ready"
        assert two.state("held").stage == "analyzing"
        assert two.state("behind").stage == "queued"
        gate.touch()
        assert settled(two, "behind").stage == "ready"
    finally:
        two.close()
