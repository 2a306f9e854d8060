"""How the ranks of a job find each other, and agree on the steps that they record."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.capture.process import environment, files, signals
from profkit.capture.process.launch import is_alive, launched_rank
from profkit.capture.recording import shared_steps
from profkit.capture.recording.shared_steps import SharedSteps
from profkit.capture.run import job_end
from profkit.capture.run.job import RankOfJob, RankState
from profkit.capture.run.rank_actions import RankPhase
from profkit.capture.run.rank_failure import Failure
from profkit.capture.run.torchrun import is_torchrun, run_on_every_rank, with_profkit
from profkit.errors import UsageError
from profkit.readers.flight_recorder import read_dump


def ranks_of_job(folder: Path, n: int) -> list[RankOfJob]:
    return [RankOfJob(folder, "job", rank, n) for rank in range(n)]


def in_background(
    rank: RankOfJob, recorded: list[str], max_wait_s: float = 60
) -> Callable[[], list[RankState]]:
    """End a rank while others go on; returns a function that waits for what it reports on."""
    states: list[RankState] = []

    def wait() -> None:
        states.extend(job_end.end_rank(rank, recorded, max_wait_s=max_wait_s))

    thread = threading.Thread(target=wait)
    thread.start()

    def end() -> list[RankState]:
        thread.join(20)
        assert not thread.is_alive()
        return states

    return end


def failure(text: str = "bad batch", file: str = "", line: int = 0) -> Failure:
    return Failure(time.time_ns(), "ValueError", text, file, line)


def write(folder: Path, rank: int, **changes: object) -> None:
    """Change what is written about a rank."""
    path = folder / ".ranks-job" / str(rank)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def gone() -> int:
    """Return the number of a process that has ended."""
    code = "import os; print(os.getpid())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return int(run.stdout)


needs_posix = pytest.mark.skipif(os.name != "posix", reason="processes are only known on POSIX")


def test_rank_0_waits_until_the_others_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank0, rank1, rank2 = ranks_of_job(tmp_path, 3)
    end = in_background(rank0, ["a.json"])
    assert job_end.end_rank(rank2, [], "Nothing was recorded.") == [], "rank 1 will be the last"
    assert job_end.end_rank(rank1, ["b.json"]) == []
    assert [(state.rank, state.files, state.no_recording_reason) for state in end()] == [
        (0, ("a.json",), ""),
        (1, ("b.json",), ""),
        (2, (), "Nothing was recorded."),
    ]
    assert capsys.readouterr().err == "profkit: rank 2: Nothing was recorded.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_has_failed_leaves_at_once_and_the_last_one_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    began_s = time.monotonic()
    rank0.fail(failure(file=str(Path.cwd() / "train.py"), line=20))
    assert job_end.end_rank(rank0, ["a.json"]) == []
    rank1.fail(Failure(time.time_ns(), "RuntimeError", "Connection closed by peer"))
    states = job_end.end_rank(rank1, ["b.json"])
    assert time.monotonic() - began_s < 0.5
    assert [state.files for state in states] == [("a.json",), ("b.json",)]
    cause = "profkit: the job failed: rank 0 raised ValueError: bad batch (train.py:20).\n"
    assert capsys.readouterr().err == cause
    assert list(tmp_path.iterdir()) == []


def test_rank_0_that_waits_does_not_do_so_any_more_when_another_one_fails(tmp_path: Path) -> None:
    rank0, rank1, rank2 = ranks_of_job(tmp_path, 3)
    end = in_background(rank0, ["a.json"])
    rank1.fail(failure())
    assert job_end.end_rank(rank1, ["b.json"]) == []
    assert end() == [], "rank 2 goes on"
    assert [state.rank for state in job_end.end_rank(rank2, ["c.json"])] == [0, 1, 2]


def test_ranks_that_are_all_killed_leave_one_report_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = ranks_of_job(tmp_path, 3)
    ends = [job_end.end_rank(rank, [f"{rank.rank}.json"], is_killed=True) for rank in ranks]
    assert [len(states) for states in ends] == [0, 0, 3]
    assert capsys.readouterr().err == "profkit: the job failed: rank 0 was ended by SIGTERM.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_waits_when_sigterm_arrives_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    monkeypatch.setattr(signals, "is_pending", lambda: True)
    assert job_end.end_rank(rank0, ["a.json"]) == []
    assert len(job_end.end_rank(rank1, [], is_killed=True)) == 2


@needs_posix
def test_when_rank_0_has_died_the_others_report(
    tmp_path: Path, gone: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _, rank1, rank2 = ranks_of_job(tmp_path, 3)
    assert job_end.end_rank(rank1, []) == [], "rank 2 will be the last"
    write(tmp_path, 0, pid=gone)
    assert [(state.rank, state.phase) for state in job_end.end_rank(rank2, ["b.json"])] == [
        (0, RankPhase.DIED),
        (1, RankPhase.LEFT),
        (2, RankPhase.ENDED),
    ]
    cause, gap, *_ = capsys.readouterr().err.splitlines()
    assert cause.startswith("profkit: the job failed: rank 0 ended without a Python exception: ")
    assert gap == "profkit: rank 0 died; what was recorded until then is in the report."
    (death,) = tmp_path.iterdir()
    record = read_dump(str(death))
    assert record is not None
    assert (record.rank, record.failure is not None and record.failure.has_died) == (0, True)


def test_a_rank_that_has_ended_well_does_not_wait_for_rank_0(tmp_path: Path) -> None:
    """Closing a rank's connections must not wait for rank 0, which may wait for that."""
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    began_s = time.monotonic()
    assert job_end.end_rank(rank1, []) == []
    assert time.monotonic() - began_s < 0.5
    assert len(job_end.end_rank(rank0, [])) == 2
    rank1.leave()
    assert list(tmp_path.iterdir()) == [], "nothing else is left"


def test_rank_0_leaves_the_report_to_a_rank_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_end, "_TELL_AFTER_S", 0.2)
    rank0, rank1, rank2 = ranks_of_job(tmp_path, 3)
    assert job_end.end_rank(rank0, ["a.json"], max_wait_s=0.6) == []
    assert capsys.readouterr().err.splitlines() == [
        "profkit: waiting for ranks 1, 2 to end, for at most 1 s.",
        "profkit: the last of ranks 1, 2 to end will report on the job.",
    ]
    assert job_end.end_rank(rank2, ["c.json"]) == []
    assert len(job_end.end_rank(rank1, ["b.json"])) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_rank_on_another_machine_that_goes_on_is_named_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_end, "MAX_WAIT_LONG_S", 0.6)
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    write(tmp_path, 1, host="elsewhere")
    assert len(job_end.end_rank(rank0, ["a.json"])) == 2
    assert capsys.readouterr().err == "profkit: rank 1 did not end within 1 s.\n"
    assert job_end.end_rank(rank1, ["b.json"]) == [], "there is a report"
    assert list(tmp_path.iterdir()) == []


def test_a_rank_on_another_machine_is_waited_for_a_second_in_a_job_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_end, "MAX_WAIT_FAILED_S", 0.2)
    rank0, _ = ranks_of_job(tmp_path, 2)
    write(tmp_path, 1, host="elsewhere")
    rank0.fail(failure())
    assert [state.phase for state in job_end.end_rank(rank0, [])] == [
        RankPhase.FAILED,
        RankPhase.ELSEWHERE,
    ]


def test_a_rank_that_has_not_begun_is_waited_for_until_some_time_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_end, "MAX_START_S", 0.2)
    first = RankOfJob(tmp_path, "job", 0, 2)
    assert len(job_end.end_rank(first, ["a.json"])) == 1
    assert "rank 1 did not write to" in capsys.readouterr().err
    other_machine = RankOfJob(tmp_path, "job", 1, 2)
    assert job_end.end_rank(other_machine, ["b.json"]) == [], "rank 0 reports elsewhere"
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_records_nothing_and_leaves_does_not_keep_the_folder(tmp_path: Path) -> None:
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    job_end.drop_rank(rank0, Failure(time.time_ns(), exit_code=2))
    assert list(tmp_path.iterdir())
    job_end.drop_rank(rank1)
    assert list(tmp_path.iterdir()) == []


def test_two_ranks_cannot_both_claim_the_report(tmp_path: Path) -> None:
    rank0, rank1 = ranks_of_job(tmp_path, 2)
    assert [rank0.claim_report(), rank1.claim_report()] == [True, False]
    assert not RankOfJob(tmp_path, "job", 0, 2).is_reported, "the next job of this name begins"
    rank1.remove()
    assert not rank0.claim_report()
    assert rank0.is_over


def test_a_failure_names_the_ranks_that_had_failed_before(tmp_path: Path, gone: int) -> None:
    rank0, rank1, rank2 = ranks_of_job(tmp_path, 3)
    write(tmp_path, 2, pid=gone)
    rank1.fail(failure())
    rank0.fail(failure("later"))
    assert rank1.state.failure is not None
    assert rank0.state.failure is not None
    assert rank1.state.failure.after == ((2,) if os.name == "posix" else ())
    assert 1 in rank0.state.failure.after
    rank0.fail(failure("SIGTERM after it"))
    assert rank0.state.failure.message == "later"
    rank1.end(["b.json"])
    state = rank0.read()[1]
    assert state == rank1.state, "all of it is written"
    assert rank2.read()[1] == rank1.state


def test_what_an_earlier_job_has_left_is_not_read(tmp_path: Path) -> None:
    RankOfJob(tmp_path, "job", 1, 2).end(["old.json"])
    time.sleep(0.001)
    first = RankOfJob(tmp_path, "job", 0, 2)
    assert first.read() == [first.state, None]
    write(tmp_path, 1, ended_ns=0, began_ns=time.time_ns() - 3600 * 10**9)
    assert first.read() == [first.state, None]
    for text in ("[]", "{", "{}", '{"failure": 1}'):
        (tmp_path / ".ranks-job" / "1").write_text(text)
        assert first.read() == [first.state, None]


@needs_posix
def test_the_folders_of_killed_jobs_are_removed_by_the_next_one(tmp_path: Path, gone: int) -> None:
    for job, changes in {
        "killed": {"pid": gone},
        "runs": {},
        "elsewhere": {"pid": gone, "host": "elsewhere"},
    }.items():
        RankOfJob(tmp_path, job, 0, 2)
        path = tmp_path / f".ranks-{job}" / "0"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    for name in (".ranks-begins", ".ranks-empty"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".ranks-empty", (0, 0))
    RankOfJob(tmp_path, "next", 0, 2)

    assert {path.name for path in tmp_path.iterdir()} == {
        ".ranks-runs",
        ".ranks-elsewhere",
        ".ranks-begins",
        ".ranks-next",
    }


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rank0, rank1 = (RankOfJob(tmp_path / "file", "job", rank, 2) for rank in range(2))
    rank0.fail(failure())
    assert [state.files for state in job_end.end_rank(rank0, ["a"])] == [("a",)]
    assert job_end.end_rank(rank1, ["b"]) == []


@pytest.mark.parametrize(
    ("rank", "world_size", "found"),
    [("1", "4", (1, 4)), ("4", "4", None), ("x", "4", None), ("-1", "4", None)],
)
def test_the_launcher_tells_the_rank(
    monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str, found: tuple[int, int] | None
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    assert launched_rank() == found
    monkeypatch.delenv("RANK")
    assert launched_rank() is None


def test_files_are_named_by_job_restart_and_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ranks", lambda: (3, 8))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "my/job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert "_my_job_restart2_rank3." in files.trace_file(tmp_path).name
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    name = files.trace_file(tmp_path).name
    assert f"{os.getpid()}_restart2_rank3." in name
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert f"{os.getpid()}_rank3." in files.trace_file(tmp_path).name


class Store:
    """A store of torch.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[SharedSteps]:
    """Two ranks in one process: the number of the rank is that of the last call."""
    store = Store()
    monkeypatch.setattr(shared_steps, "_store", lambda: store)
    # Each look at the clock takes 0.1 ms, and each step 20 ms.
    looks = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) / 1e4)
    return [SharedSteps("train"), SharedSteps("train")]


def begins(ranks: list[SharedSteps], rank: int, step: int, *, affordable: bool) -> int | None:
    for _ in range(200):
        time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "ranks", lambda: (rank, len(ranks)))
        return ranks[rank].begins(step, is_affordable=affordable)


def test_all_ranks_record_the_steps_that_rank_0_chooses(ranks: list[SharedSteps]) -> None:
    begun: list[list[int]] = [[], []]
    for step in range(1, 20):
        for rank in (1, 0):
            if begins(ranks, rank, step, affordable=bool(rank) or step > 4) is not None:
                begun[rank].append(step)
    assert begun[0][0] == begun[1][0] == 6, "both have been told before"
    assert all(rank._begin is not None for rank in ranks)


def test_a_slow_store_is_written_earlier(
    ranks: list[SharedSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks may ask it only every 100 ms or so, which are five steps."""
    slow = Store()
    write = slow.set

    def set_slowly(key: str, value: str) -> None:
        for _ in range(10):
            time.monotonic()
        write(key, value)

    monkeypatch.setattr(slow, "set", set_slowly)
    monkeypatch.setattr(shared_steps, "_store", lambda: slow)
    begun = next(s for s in range(1, 20) if begins(ranks, 0, s, affordable=True) is not None)
    assert begun == 1 + 6


def test_a_rank_that_learns_it_late_joins_in_the_middle(ranks: list[SharedSteps]) -> None:
    for step in range(1, 8):
        begins(ranks, 0, step, affordable=True)
    assert begins(ranks, 1, 7, affordable=False) == 5


def test_without_rank_0_a_rank_decides_by_itself(ranks: list[SharedSteps]) -> None:
    begun = [begins(ranks, 1, step, affordable=True) for step in range(1, 14)]
    assert (begun[0], begun[-1]) == (None, 0)
    assert ranks[1]._begin is None


def test_without_a_store_each_rank_decides_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise RuntimeError("Broken pipe")

    for store in (lambda: None, gone):
        monkeypatch.setattr(shared_steps, "_store", store)
        alone = [SharedSteps("train"), SharedSteps("train")]
        assert begins(alone, 1, 1, affordable=True) == 0
        assert begins(alone, 1, 2, affordable=False) is None
    assert begins([SharedSteps("train")], 0, 1, affordable=True) == 0


def test_torchrun_starts_profkit_on_every_rank(tmp_path: Path) -> None:
    given = ["--standalone", "--nproc-per-node", "2", "train.py", "-m", "--lr", "1"]

    assert with_profkit(given, ["--wait", "1"]) == [
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "profkit",
        "run",
        "--wait",
        "1",
        "train.py",
        "-m",
        "--lr",
        "1",
    ]

    given = ["--nnodes=2", "-m", "package.train", "x"]
    assert with_profkit(given, []) == [
        "--nnodes=2",
        "-m",
        "profkit",
        "run",
        "-m",
        "package.train",
        "x",
    ]
    with pytest.raises(UsageError, match="not Python"):
        with_profkit(["--no-python", "./a.out"], [])

    script = tmp_path / "torchrun"
    assert is_torchrun(str(script), "script")
    script.write_text("print(1)")
    assert not is_torchrun(str(script), "script")

    script.write_text("from torch.distributed.run import main")
    assert is_torchrun(str(script), "script")
    assert is_torchrun("torch.distributed.run", "module")
    assert not is_torchrun("torch.distributed.run", "code")


@needs_posix
def test_torchrun_removes_what_killed_ranks_have_left(
    tmp_path: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    RankOfJob(tmp_path / "train", "job", 0, 2)
    path = tmp_path / "train" / ".ranks-job" / "0"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": gone}))
    monkeypatch.setattr("torch.distributed.run.main", lambda _words: sys.exit(3))
    monkeypatch.setattr(sys, "argv", ["torchrun"])
    error = run_on_every_rank(["train.py"], [], str(tmp_path))
    assert isinstance(error, SystemExit)
    assert error.code == 3
    assert list((tmp_path / "train").iterdir()) == []
    run_on_every_rank(["train.py"], [], str(tmp_path / "none"))


def test_a_process_that_has_ended_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_alive(os.getpid())
    monkeypatch.setattr(os, "name", "nt")
    assert is_alive(-5), "where a signal would be sent"
