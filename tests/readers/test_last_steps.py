"""Last steps that are written are read again, whatever was written over, cut off or made up."""

import os
import random
from pathlib import Path

import pytest

from profkit.api import last_steps
from profkit.capture.live.last_steps_file import LastStepsFile
from profkit.cli.main import main
from profkit.errors import DamagedFileError, NotATraceError
from profkit.readers.last_steps.layout import ERROR_AT, HEADER_AT, SIZE, STACKS, STEPS, TABLE_AT
from profkit.readers.last_steps.read import Error, Header, read_last_steps

MS = 1_000_000
BEGAN = 1_700_000_000 * 10**9
MAIN = (("/app/train.py", 10, "<module>"), ("/app/train.py", 4, "step"))


def header(**changes: object) -> Header:
    values = {"name": "train", "host": "a", "pid": 7, "rank": None, "world_size": None,
              "argv": ["train.py"], "torch": "2.13.0", "began_ns": BEGAN}  # fmt: skip
    return Header(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> LastStepsFile:
    return LastStepsFile(tmp_path / "train" / "a_7.1.laststeps", header())


def test_the_last_steps_are_those_that_fit(file: LastStepsFile) -> None:
    for number in range(1, 5001):
        file.step(BEGAN + number * 10 * MS, number * MS)
    process = read_last_steps(file.path)
    assert (process.n_steps, len(process.steps)) == (5000, STEPS.size)
    assert process.steps[0].number == 5000 - STEPS.size + 1
    assert {each.dur_ns for each in process.steps[1:]} == {10 * MS}
    assert {each.data_wait_ns for each in process.steps[1:]} == {MS}
    assert process.steps[0].dur_ns is None  # when the step before it ended is written over


def test_a_system_that_reserves_no_space_has_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS and Windows
    path = tmp_path / "a.laststeps"
    LastStepsFile(path, header()).step(BEGAN + MS, 0)
    assert read_last_steps(path).n_steps == 1
    monkeypatch.setattr(os, "write", lambda _file, data: len(data) // 2)
    with pytest.raises(OSError, match="No space left"):
        LastStepsFile(tmp_path / "b.laststeps", header())
    assert not (tmp_path / "b.laststeps").exists()


def test_a_stack_lasts_over_the_samples_that_have_it(file: LastStepsFile) -> None:
    for place in range(5):
        now_ns = BEGAN + place * 100 * MS
        file.stack(1, "MainThread", MAIN, now_ns)
        file.stack(2, "loader", (*MAIN, ("/app/data.py", place, "read")), now_ns)
    process = read_last_steps(file.path)
    first, second = process.last_stacks
    assert (first.thread, first.n_samples, first.last_ns - first.first_ns) == (
        "MainThread", 5, 400 * MS
    )  # fmt: skip
    assert [(each.file, each.line, each.function) for each in first.calls] == list(MAIN)
    assert (second.calls[-1].line, second.n_samples) == (4, 1)
    assert len(process.stacks) == 6


def test_a_thread_that_hangs_is_known_after_others_have_filled_ring_and_table(
    file: LastStepsFile,
) -> None:
    n = 3 * STACKS.size
    for place in range(n):
        now_ns = BEGAN + place * MS
        file.stack(1, "MainThread", MAIN, now_ns)
        file.stack(2, "busy", ((f"/app/{place:0100}.py", 1, "f"),), now_ns)
    process = read_last_steps(file.path)
    main, busy = process.last_stacks
    assert (main.first_ns, main.n_samples) == (BEGAN, n)
    assert [each.function for each in main.calls] == ["<module>", "step"]
    assert busy.calls[0].file == f"/app/{n - 1:0100}.py"
    # What the table has no room for any more is unknown, and never that of another stack.
    texts = [each.calls[0].file for each in process.stacks if each.thread == "busy" and each.calls]
    assert len(set(texts)) == len(texts) > 1000
    assert texts == sorted(texts)


def test_a_thread_that_has_ended_was_nowhere_at_the_end(file: LastStepsFile) -> None:
    file.stack(2, "ended", MAIN, BEGAN)
    file.threads_are([1])
    file.stack(1, "MainThread", MAIN, BEGAN + MS)
    assert [each.thread for each in read_last_steps(file.path).last_stacks] == ["MainThread"]


def test_unknown_sizes_are_none(file: LastStepsFile) -> None:
    file.memory(BEGAN + 1, 1 << 30, -1, -1)
    (memory,) = read_last_steps(file.path).memory
    assert (memory.host_rss_bytes, memory.allocated_bytes) == (1 << 30, None)


def test_a_long_error_and_command_line_are_shortened(tmp_path: Path) -> None:
    file = LastStepsFile(tmp_path / "long.laststeps", header(argv=["x" * 10_000] * 100))
    frames: list[tuple[str, int | None, str]] = [("/app/a.py" * 100, 1, "f")] * 100
    file.error(Error("exception", "ValueError", "no " * 10_000, "MainThread", BEGAN, frames))
    process = read_last_steps(file.path)
    assert process.error is not None
    assert (process.state, process.error.type) == ("exception", "ValueError")
    assert process.error.message.startswith("no no")


def test_a_record_that_was_not_written_to_its_end_is_left_out(file: LastStepsFile) -> None:
    for number in (1, 2, 3):
        file.step(BEGAN + number * MS, 0)
    data = bytearray(file.path.read_bytes())
    place = STEPS.at(3) + STEPS.record.size - 8
    data[place : place + 8] = bytes(8)
    file.path.write_bytes(data)
    process = read_last_steps(file.path)
    assert (process.n_steps, process.n_skipped) == (2, 1)


def test_what_is_none_or_incomplete_is_an_error(file: LastStepsFile, tmp_path: Path) -> None:
    data = file.path.read_bytes()
    other = tmp_path / "other.laststeps"
    other.write_bytes(b"{}")
    with pytest.raises(NotATraceError):
        read_last_steps(other)
    for damaged in (data[:-1], data[:20], data[:HEADER_AT] + bytes(8) + data[HEADER_AT + 8 :]):
        other.write_bytes(damaged)
        with pytest.raises(DamagedFileError):
            read_last_steps(other)


def test_made_up_contents_are_left_out(file: LastStepsFile, tmp_path: Path) -> None:
    for place in range(20):
        file.step(BEGAN + place * MS, 0)
        file.stack(1, "MainThread", (("/app/train.py", place, "step"),), BEGAN + place * MS)
        file.memory(BEGAN + place * MS, 1, 2, 3)
    file.error(Error("exception", "ValueError", "\x1b[2J", "MainThread", BEGAN))
    data = file.path.read_bytes()
    other = tmp_path / "other.laststeps"
    chosen = random.Random(0)  # noqa: S311
    for _ in range(12):
        changed = bytearray(data)
        for _ in range(200):
            start = chosen.choice((ERROR_AT, STEPS.start, STACKS.start, TABLE_AT))
            changed[start + chosen.randrange(2000)] = chosen.randrange(256)
        other.write_bytes(changed)
        for format_ in ("text", "json", "chrome"):
            import profkit

            profkit.render(last_steps(other), format_)
    other.write_bytes(data[: STEPS.start] + chosen.randbytes(SIZE - STEPS.start))
    assert read_last_steps(other).steps == ()


def test_the_ranks_of_the_latest_job_are_shown_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, began_ns in enumerate((BEGAN, BEGAN + 10**12)):
        for rank in (0, 1):
            about = header(rank=rank, world_size=2, began_ns=began_ns, pid=10 * job + rank)
            file = LastStepsFile(tmp_path / f"a_{job}_rank{rank}.laststeps", about)
            file.step(began_ns + MS, 0)
            file.stack(1, "MainThread", (*MAIN, ("/app/train.py", 20 + rank, "f")), began_ns + MS)
            file.stack(2, "loader", MAIN, began_ns + MS)
            if rank:
                error = Error("exception", "ValueError", "no", "MainThread", began_ns + 2 * MS)
                file.error(error)
    assert [each.pid for each in last_steps(tmp_path).processes] == [10, 11]
    assert main(["analyze", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Rank 1 raised ValueError 1.00 ms after the end of step 1." in shown
    assert "Exception of rank 1" in shown
    assert "ranks 0, 1: loader" in shown or "ranks 0 and 1: loader" in shown
    assert "rank 0: MainThread" in shown


def test_a_line_that_each_step_comes_back_to_is_not_where_the_thread_has_been_since(
    file: LastStepsFile,
) -> None:
    import profkit

    file.step(BEGAN, 0)
    for place in range(5):
        file.stack(1, "MainThread", MAIN, BEGAN + (1 + place * 100) * MS)
    hung = profkit.render(last_steps(file.path), "text").decode()
    assert "at /app/train.py:4 (step), for 400 ms." in " ".join(hung.split())
    file.step(BEGAN + 350 * MS, 0)
    ran = " ".join(profkit.render(last_steps(file.path), "text").decode().split())
    assert "at /app/train.py:4 (step), in all samples of the last 400 ms." in ran


def test_it_is_exported_as_a_trace(file: LastStepsFile, tmp_path: Path) -> None:
    import json

    for place in range(4):
        file.step(BEGAN + (place + 1) * 10 * MS, 0)
        file.stack(1, "MainThread", (*MAIN, ("/app/a.py", place // 2, "f")), BEGAN + place * MS)
    file.memory(BEGAN + MS, 5, -1, -1)
    out = tmp_path / "out.json"
    assert main(["export", str(file.path), "--to", "chrome", "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    slices = [(each["name"], each["ts"], each["dur"]) for each in events if each["ph"] == "X"]
    assert ("step 4", 30_000, 10_000) in slices
    assert ("f (/app/a.py:0)", 0, 2_000) in slices  # until the next stack was seen
    assert ("step (/app/train.py:4)", 0, 3_000) in slices
    assert [each["args"] for each in events if each["ph"] == "C"] == [{"bytes": 5}]
