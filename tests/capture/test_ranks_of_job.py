"""How the ranks of a job find each other, and agree on the steps that they record."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profkit.capture.process import environment, files
from profkit.capture.process.launch import is_alive, launched_rank
from profkit.capture.recording import shared_steps
from profkit.capture.recording.shared_steps import SharedSteps
from profkit.capture.run.job import RankOfJob
from profkit.capture.run.job_end import takes_over
from profkit.capture.run.torchrun import is_torchrun, with_profkit
from profkit.errors import UsageError


def never(_seconds: float, _pending: list[int]) -> bool:
    raise AssertionError("it waits for ranks that have ended")


def test_a_rank_waits_until_the_others_have_ended(tmp_path: Path) -> None:
    ranks = [RankOfJob(tmp_path, "job", rank, 3) for rank in range(3)]
    seen: list[list[int]] = []

    def until(_seconds: float, pending: list[int]) -> bool:
        seen.append(pending)
        if len(seen) == 2:
            ranks[1].end(["b.json"], "")
            ranks[2].end([], "nothing was recorded.")
        return False

    ranks[0].end(["a.json"])
    states = ranks[0].wait(until)
    assert seen == [[1, 2], [1, 2]]
    assert [(each.rank, each.files, each.why_not) for each in states] == [
        (0, ("a.json",), ""), (1, ("b.json",), ""), (2, (), "nothing was recorded."),
    ]  # fmt: skip
    ranks[0].remove()
    assert list(tmp_path.iterdir()) == []


def test_waiting_ends_when_it_is_told_to(tmp_path: Path) -> None:
    first = RankOfJob(tmp_path, "job", 0, 2)
    first.end([])
    (own,) = first.wait(lambda seconds, pending: seconds >= 0 and pending == [1])
    assert own.rank == 0


def _died(tmp_path: Path, rank: int, **changes: object) -> None:
    """A rank whose process is gone."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, check=True).stdout  # fmt: skip
    RankOfJob(tmp_path, "job", rank, 3)
    path = tmp_path / ".ranks-job" / str(rank)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": int(gone)} | changes))


@pytest.mark.skipif(os.name != "posix", reason="processes are only known on POSIX")
def test_a_rank_that_has_died_is_not_waited_for_and_the_next_one_reports(tmp_path: Path) -> None:
    _died(tmp_path, 0)
    one, two = (RankOfJob(tmp_path, "job", rank, 3) for rank in (1, 2))
    two.end([])
    one.end([])
    assert one.reports()
    assert not two.reports(), "rank 1 is alive"
    assert [each.has_died for each in one.wait(never)] == [True, False, False]


@pytest.mark.skipif(os.name != "posix", reason="processes are only known on POSIX")
def test_the_last_to_end_reports_if_rank_0_dies_then(tmp_path: Path) -> None:
    _, one, two = (RankOfJob(tmp_path, "job", rank, 3) for rank in range(3))
    one.end([])
    assert not takes_over(one, is_killed=False), "rank 2 will be the last"
    two.end(["b.json"])
    assert two.is_last()
    assert not two.reports(), "rank 0 is alive"
    _died(tmp_path, 0)
    assert takes_over(two, is_killed=False), "rank 1 has left"
    assert [each.has_died for each in two.wait(never)] == [True, False, False]


def test_the_last_to_end_leaves_if_rank_0_ends(tmp_path: Path) -> None:
    zero, one = (RankOfJob(tmp_path, "job", rank, 2) for rank in range(2))
    one.end([])
    assert one.is_last()
    zero.end([])
    assert not takes_over(one, is_killed=False)
    zero.remove()
    one.leave()
    assert list(tmp_path.iterdir()) == [], "nothing else is left"


def test_of_two_that_end_at_once_the_first_takes_over(tmp_path: Path) -> None:
    ranks = [RankOfJob(tmp_path, "job", rank, 3) for rank in range(3)]
    for each in ranks[1:]:
        each.end([])
    assert all(each.is_last() for each in ranks[1:])
    _died(tmp_path, 0)
    assert [takes_over(each, is_killed=False) for each in ranks[1:]] == [True, False]


def test_rank_0_reports_and_others_do_not(tmp_path: Path) -> None:
    ranks = [RankOfJob(tmp_path, "job", rank, 2) for rank in range(2)]
    assert [each.reports() for each in ranks] == [True, False]


def test_what_an_earlier_job_has_left_is_not_read(tmp_path: Path) -> None:
    RankOfJob(tmp_path, "job", 1, 2).end(["old.json"])
    time.sleep(0.001)
    first = RankOfJob(tmp_path, "job", 0, 2)
    _died(tmp_path, 1, began_ns=time.time_ns() - 3600 * 10**9)
    assert [each.rank for each in first.wait(lambda *_: True)] == [0]
    (tmp_path / ".ranks-job" / "1").write_text("[]")
    assert [each.rank for each in first.wait(lambda *_: True)] == [0]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    alone = RankOfJob(tmp_path / "file", "job", 0, 1)
    alone.end(["a"])
    assert alone.wait(never)[0].files == ("a",)


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
    assert all(each.is_agreed for each in ranks)


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
    found = [begins(ranks, 1, step, affordable=True) for step in range(1, 14)]
    assert (found[0], found[-1]) == (None, 0)
    assert not ranks[1].is_agreed


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
        "--standalone", "--nproc-per-node", "2", "-m", "profkit", "run", "--wait", "1",
        "train.py", "-m", "--lr", "1",
    ]  # fmt: skip
    given = ["--nnodes=2", "-m", "package.train", "x"]
    assert with_profkit(given, []) == ["--nnodes=2", "-m", "profkit", "run", "-m", "package.train",
                                       "x"]  # fmt: skip
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


def test_a_process_that_has_ended_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_alive(os.getpid())
    monkeypatch.setattr(os, "name", "nt")
    assert is_alive(-5), "where a signal would be sent"
