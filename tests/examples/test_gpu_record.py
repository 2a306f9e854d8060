"""``examples/gpu/record.py``: runs one at a time, rows that outlive a crash, figures as defined."""

import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import capture_overhead
from examples.gpu import record
from examples.gpu.recording import kept, rows, session
from examples.gpu.recording.page import page
from examples.gpu.recording.rows import EXPECTED, PROGRAMS, Rows
from examples.gpu.recording.turns import Ended, Turns

pytestmark = pytest.mark.slow

NAME = "growing_list"
ON_CPU = (*session.ON_CPU, "--steps", "80")
MACHINE: dict[str, Any] = {
    "gpu": "NVIDIA H200", "driver": "570.1", "cuda": "12.8", "torch": "2.13.0",
    "python": "3.11.7", "system": "Linux x86_64", "cores": 16, "profkit": "0.1.0",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the gate, and a torch that is imported at once."""
    shutil.copytree(PROGRAMS / "recording", tmp_path / "examples" / "gpu" / "recording")
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(bool)\n")
    return tmp_path


def turns(place: Path, timeout_s: float = 60) -> Turns:
    return Turns(timeout_s, {"PYTHONPATH": str(place)})


def ran(place: Path, text: str, timeout_s: float = 60) -> Ended:
    (place / "program.py").write_text(text)
    return turns(place, timeout_s).run(["program.py", "an argument"], place)


def test_a_program_runs_as_under_python_and_its_time_is_read(place: Path) -> None:
    (place / "beside.py").write_text("MS = 1.25")
    text = "import beside, sys\nassert sys.argv[1] == 'an argument', sys.argv\n"
    ended = ran(place, text + "print(beside.MS, 'ms per step over 3 steps')")
    assert ended == Ended(1.25)


def test_all_that_a_program_prints_can_be_kept(place: Path) -> None:
    (place / "program.py").write_text("for number in range(20): print('line', number)")
    log = place / "logs" / "program.txt"
    assert turns(place).run(["program.py"], place, log=log) == Ended(None)
    assert log.read_text().splitlines() == [f"line {number}" for number in range(20)]


def test_a_crash_is_told_with_the_last_lines_and_no_folder_of_this_machine(place: Path) -> None:
    ended = ran(place, "print('2.0 ms per step over 3 steps')\nraise ValueError('no such row')")
    assert ended.step_ms == 2.0
    assert ended.failure.startswith("exit code 1: ")
    assert ended.failure.endswith("ValueError: no such row")
    assert str(place) not in ended.failure
    assert not ended.is_hung


def test_a_crash_below_python_is_told_by_its_signal(place: Path) -> None:
    ended = ran(place, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert ended == Ended(None, "ended by SIGSEGV")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(place: Path) -> None:
    text = (
        "import subprocess, sys, time, pathlib\n"
        "other = 'import pathlib, time; time.sleep(2.5); pathlib.Path(\"late\").touch()'\n"
        "subprocess.Popen([sys.executable, '-c', other])\n"
        "print('at it')\ntime.sleep(60)"
    )
    began = time.monotonic()
    ended = ran(place, text, timeout_s=1)
    assert ended == Ended(None, "stopped after 1 s: at it", is_hung=True)
    time.sleep(max(0.0, 3.5 - (time.monotonic() - began)))
    assert not (place / "late").exists()


def test_a_missing_torch_is_a_failure_and_no_wait(place: Path) -> None:
    (place / "torch.py").write_text("raise ImportError('no CUDA libraries')")
    ended = ran(place, "")
    assert ended.failure.startswith("exit code 1: ")
    assert "no CUDA libraries" in ended.failure


def test_no_two_programs_are_timed_at_once_and_a_turn_ends_with_the_time(place: Path) -> None:
    text = (
        "import sys, time\n"
        "log = open(sys.argv[1], 'w')\n"
        "print(time.time(), file=log, flush=True)\n"
        "time.sleep(0.5)\n"
        "print(time.time(), file=log, flush=True)\n"
        "print('1.0 ms per step over 3 steps')\n"
        "time.sleep(1.5)\n"
        "print(time.time(), file=log, flush=True)\n"
    )
    (place / "program.py").write_text(text)
    one_at_a_time = turns(place)
    threads = [
        threading.Thread(target=one_at_a_time.run, args=(["program.py", name], place))
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = sorted([float(line) for line in (place / name).read_text().split()] for name in "ab")

    (_, timed, ended), (began, *_) = spans
    assert timed <= began
    assert began < ended


def test_a_snapshot_is_of_the_moment_after_the_last_step(place: Path) -> None:
    (place / "examples" / "gpu" / "measured.py").write_text(
        "def steps(_):\n    yield from range(3)"
    )
    text = (
        "import measured\n"
        "from profkit.capture.memory.cuda import history\n"
        "held = []\n"
        "history.dump = lambda target: target.write_text(f'{len(held)} are held')\n"
        "for step in measured.steps(None):\n"
        "    held.append(step)\n"
        "held.clear()\n"
        "print('1.0 ms per step over 3 steps')\n"
    )
    (place / "program.py").write_text(text)

    with_profkit = Turns(60, {"PYTHONPATH": f"{place}{os.pathsep}{rows.ROOT}"})
    assert with_profkit.run(["program.py"], place, place / "end.gz") == Ended(1.0)
    assert (place / "end.gz").read_text() == "3 are held"


def test_what_recording_costs_is_measured_once_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_ms = {"no profiler": 2.0, "torch.profiler": 3.0, "profkit.trace": 3.1}
    figures = {"step_ms": step_ms, "to_file_ms": {"torch": 80.0, "profkit": 20.0}}

    def run(_turns: Turns, program: Sequence[str], _folder: Path) -> Ended:
        assert program[0] == str(rows.OVERHEAD)
        Path(program[-1]).write_text(json.dumps(figures))
        return Ended(None)

    monkeypatch.setattr(Turns, "run", run)
    recorded_rows = Rows(tmp_path)
    made = session.Session(recorded_rows, turns(tmp_path), "cuda", MACHINE, tmp_path)
    assert made.record_overhead()
    monkeypatch.setattr(Turns, "run", None)
    assert made.record_overhead()
    text = page([], Rows(tmp_path))
    assert "| profkit.trace | 3.100 | 1.55 |" in text
    assert "| profkit | 20.000 | 0.25 |" in text


def test_the_benchmark_of_recording_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    monkeypatch.setattr(capture_overhead, "STEPS", 2)
    words = ["capture_overhead.py", "--rounds", "1", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", words)
    n_threads = torch.get_num_threads()
    capture_overhead.main()
    torch.set_num_threads(n_threads)
    written = json.loads(figures.read_text())
    assert set(written["to_file_ms"]) == set(written["loop_stop_ms"]) == {"torch", "profkit"}
    assert all(ms > 0 for part in written.values() for ms in part.values())
    assert f"{written['step_ms']['profkit.trace']:.3f} ms per step" in capsys.readouterr().out


def test_a_program_does_not_begin_when_nobody_gives_turns_any_more(place: Path) -> None:
    (place / "program.py").write_text("import pathlib; pathlib.Path('begun').touch()")
    gate = [sys.executable, "examples/gpu/recording/gate.py", "program.py"]
    settings = {"PYTHONPATH": str(place)}
    for said, begins in (("", False), ("go\n", True)):
        subprocess.run(gate, cwd=place, env=settings, input=said, text=True, check=True)
        assert (place / "begun").exists() is begins


class Scripted:
    """Turns that end as they are told, and leave nothing."""

    def __init__(self, *ends: Ended) -> None:
        self.ends = list(ends)
        self.programs: list[Sequence[str]] = []

    def run(self, program: Sequence[str], *_places: Path | None) -> Ended:
        self.programs.append(program)
        return self.ends.pop(0)


def session_of(folder: Path, *ends: Ended) -> tuple[session.Session, Scripted]:
    scripted = Scripted(*ends)
    made = session.Session(Rows(folder), scripted, "cuda", MACHINE, folder)  # type: ignore[arg-type]
    return made, scripted


def test_a_crash_costs_its_own_row_which_is_run_again(tmp_path: Path) -> None:
    crash = Ended(None, "exit code 1: CUDA error")
    made, scripted = session_of(tmp_path, crash, crash)
    assert not made.record(NAME, cured=False)
    assert [program[0] for program in scripted.programs] == [f"examples/gpu/{NAME}.py", "-m"]
    run = Rows(tmp_path).runs[NAME]
    assert run.failure == crash.failure
    assert run.bare_ms == []
    assert not made.is_done(NAME, cured=False)


def test_what_hangs_bare_is_not_tried_under_profkit(tmp_path: Path) -> None:
    made, scripted = session_of(tmp_path, Ended(None, "stopped after 60 s", is_hung=True))
    assert not made.record(NAME, cured=True)
    assert len(scripted.programs) == 1
    assert "--cured" in scripted.programs[0]
    assert Rows(tmp_path).runs[NAME + "_cured"].watched_ms is None


def test_a_run_without_a_recording_or_a_time_is_a_failure(tmp_path: Path) -> None:
    made, _ = session_of(tmp_path, Ended(2.0), Ended(1.5), Ended(3.0))
    assert not made.record(NAME, cured=False)
    run = Rows(tmp_path).runs[NAME]
    assert (run.best_ms, run.watched_ms) == (1.5, 3.0)
    assert run.failure == "FileNotFoundError: profkit run wrote no recording."
    made, _ = session_of(tmp_path, Ended(None), Ended(3.0))
    made.record(NAME, cured=False)
    assert "no step time" in Rows(tmp_path).runs[NAME].failure


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program recorded on this machine's CPU, by the command that does it on a GPU."""
    out = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "N_BARE", 1)
        patch.setattr(session, "ON_CPU", ON_CPU)
        assert record.main([NAME, "--device", "cpu", "--out", str(out), "--at-once", "2"]) == 0
    return out


@pytest.mark.xdist_group("gpu_record")
def test_what_is_recorded_names_the_fault_at_its_line_and_the_cure_is_silent(
    recorded: Path,
) -> None:
    text = (recorded / "truth.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{NAME}` | line")]
    *words, health = row.split(" | ")[2:]
    assert words == ["growing-container", "at its line", "none", "no findings"]
    # Other tests may take the processor meanwhile.
    assert health in {"sound |", "busy-machine |"}
    assert "no GPU, torch" in text
    (owed,) = [line for line in text.splitlines() if line.startswith("Needs a CUDA GPU: ")]
    assert "`item_each_step`" in owed
    assert NAME not in owed


@pytest.mark.xdist_group("gpu_record")
def test_recordings_are_neutral_and_come_with_provenance(recorded: Path) -> None:
    files = kept.files_of(recorded / NAME)
    assert [path.name.partition(".")[2].partition(".")[2] for path in files] == [
        "pt.trace.json.gz",
        "memory.json.gz",
    ]
    for path in files:
        assert path.name.startswith("host_")
        assert b"/tmp/" not in gzip.decompress(path.read_bytes())
    origin = json.loads((recorded / NAME / "provenance.json").read_text())
    cured = json.loads((recorded / f"{NAME}_cured" / "provenance.json").read_text())
    assert origin["rule"] == "growing-container"
    assert origin["planted"]
    assert (cured["rule"], cured["planted"], cured["line"]) == (None, None, None)
    assert cured["command"].endswith("--cured")


@pytest.mark.xdist_group("gpu_record")
def test_what_is_recorded_is_not_run_again(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Turns, "run", None)
    monkeypatch.setattr(session, "ON_CPU", ON_CPU)
    before = (recorded / "truth.md").read_text()
    assert record.main([NAME, "--device", "cpu", "--out", str(recorded)]) == 0
    assert "2 of 2 are recorded already" in capsys.readouterr().out
    assert (recorded / "truth.md").read_text() == before


@pytest.mark.xdist_group("gpu_record")
def test_another_program_machine_or_way_of_recording_is_run_again(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ON_CPU", ON_CPU)
    own_machine = rows.machine()
    again = session.Session(Rows(recorded), turns(tmp_path), "cpu", own_machine, tmp_path)
    assert again.is_done(NAME, cured=False)
    other_session = session.Session(Rows(recorded), turns(tmp_path), "cpu", MACHINE, tmp_path)
    assert not other_session.is_done(NAME, cured=False)
    monkeypatch.setattr(session, "ON_CPU", ("--device", "cpu"))
    assert not again.is_done(NAME, cured=False)


@pytest.mark.xdist_group("gpu_record")
def test_a_report_says_anew_what_a_later_version_finds(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "run", None)
    expected = recorded / NAME / "expected.json"
    before = expected.read_text()
    expected.write_text("{}")
    assert record.main(["--only-table", "--out", str(recorded)]) == 0
    assert expected.read_text() == before


def test_after_the_minutes_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Turns, "run", None)
    words = [NAME, "--device", "cpu", "--out", str(tmp_path), "--minutes", "0"]
    assert record.main(words) == 1
    assert "2 runs are left: " in capsys.readouterr().out


def test_without_a_gpu_it_says_so_in_one_sentence_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert record.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == record.NO_GPU + "\n"
    assert list(tmp_path.iterdir()) == []


def test_whatever_a_program_needs_can_be_asked_for() -> None:
    for name, facts in EXPECTED.items():
        assert set(facts["needs"]) <= set(rows.HAS), name
        assert "cuda" not in facts["needs"] or "cuda" in rows.missing(name, "cpu")


def test_a_history_that_is_too_long_loses_its_older_half_until_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [{"filename": f"{tmp_path}/train.py", "line": 3, "name": "step"}]
    history = [{"action": "alloc", "addr": n * 977 % 4093, "frames": frames} for n in range(999)]
    written = tmp_path / "written.gz"
    written.write_bytes(gzip.compress(pickle.dumps({"segments": [], "device_traces": [history]})))
    monkeypatch.setattr(kept, "LARGEST_BYTES", 2000)
    kept.keep_snapshot(written, tmp_path / "kept.gz", tmp_path)
    assert (tmp_path / "kept.gz").stat().st_size <= 2000
    (entries,) = pickle.loads(gzip.decompress((tmp_path / "kept.gz").read_bytes()))["device_traces"]  # noqa: S301
    assert 100 < len(entries) < 999
    assert [entry["addr"] for entry in entries] == [e["addr"] for e in history[-len(entries) :]]
    assert entries[0]["frames"][0]["filename"] == "/home/user/profkit/train.py"
    assert entries[0]["frames"] is entries[-1]["frames"]
