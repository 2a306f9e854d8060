"""The runner of chaos: what it calls a failure, which signals it sends, and how it ends a hang."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.chaos.__main__ import plan_tasks
from tests.chaos.judge import Failure, find_failures
from tests.chaos.process import Ended, Sent, run_process
from tests.chaos.results import Results, RunResult
from tests.chaos.table import INTERRUPTED, PROGRAMS, Ending, Program
from tests.chaos.treatments import (
    Signals,
    Treatment,
    choose_treatment,
    plan_signals,
    possible_treatments,
)
from tests.chaos.watching import FOLDER

_BARE: Final = Ended(0, "training\n0 0.5\n10 0.4\n", "", wall_s=3.0, cpu_s=4.0, first_output_s=1.0)
_PROGRAM: Final = Program(20)
_REPORT: Final[dict[str, Any]] = {"summary": {"steps": [{"name": "ProfilerStep#4"}]}, "ranks": []}


def failures(
    watched: Ended = _BARE,
    program: Program = _PROGRAM,
    report: dict[str, Any] | None = _REPORT,
    violations: str = "",
) -> tuple[Failure, ...]:
    bare = replace(_BARE, code=program.code)
    return find_failures(program, bare, watched, report, violations)


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311  (signals that can be repeated)


def sent(signum: signal.Signals, at_s: float = 1.5, n_printed: int = 15) -> tuple[Sent, ...]:
    return (Sent(signum, at_s, n_printed),)


def test_a_run_like_the_bare_one_with_a_whole_step_is_right() -> None:
    assert failures() == ()


def test_a_run_that_is_killed_for_its_time_is_a_hang_and_nothing_else() -> None:
    hung = replace(_BARE, code=-signal.SIGKILL, out="", is_hung=True)
    assert failures(hung, report=None) == (Failure.HANG,)


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_told_from_another_exit_code(signum: signal.Signals) -> None:
    assert failures(replace(_BARE, code=-signum)) == (Failure.CRASH,)
    assert failures(replace(_BARE, code=1)) == (Failure.EXIT,)


def test_the_programs_own_exit_code_is_expected() -> None:
    assert failures(replace(_BARE, code=3), Program(20, code=3)) == ()


def test_other_output_is_a_failure() -> None:
    assert failures(replace(_BARE, out="training\n0 0.5\n")) == (Failure.OUTPUT,)


def test_ten_steps_need_a_whole_one_in_the_report() -> None:
    without: dict[str, Any] = {"summary": {"steps": []}, "ranks": []}
    assert failures(report=without) == (Failure.NO_STEP,)
    assert failures(report=without, program=Program(9)) == ()
    assert failures(report=without, program=Program(None)) == ()


def test_each_rank_needs_a_whole_step() -> None:
    ranks = [{"step_names": ["ProfilerStep#4"]}, {"step_names": []}]
    assert failures(report={"summary": {"steps": []}, "ranks": ranks}) == (Failure.NO_STEP,)
    assert failures(report={"summary": {"steps": []}, "ranks": ranks[:1]}) == ()


def test_a_run_without_a_report_is_a_failure_unless_the_program_leaves_at_once() -> None:
    assert failures(report=None) == (Failure.NO_REPORT,)
    assert failures(report=None, program=Program(20, leaves_report=False)) == ()


def test_an_unsafe_start_or_stop_is_a_failure() -> None:
    assert failures(violations="{}\n") == (Failure.UNSAFE,)


def test_a_traceback_of_profkit_is_a_failure() -> None:
    err = 'File "/x/profkit/capture/run/run.py", line 3, in run'
    assert failures(replace(_BARE, err=err)) == (Failure.TRACEBACK,)


def test_a_program_without_a_handler_dies_of_sigterm_within_seconds() -> None:
    ended = replace(_BARE, code=-15, out="training\n0 0.", sent=sent(signal.SIGTERM))
    assert failures(ended, report=None) == ()
    assert failures(replace(ended, wall_s=8.6)) == (Failure.LATE,)
    assert failures(replace(ended, code=0)) == (Failure.EXIT,)
    assert failures(replace(ended, code=-11)) == (Failure.CRASH,)


def test_output_up_to_a_signal_is_the_beginning_of_the_bare_one() -> None:
    ended = replace(_BARE, code=-2, out="training\n1 0.", sent=sent(signal.SIGINT))
    assert failures(ended) == (Failure.OUTPUT,)


def test_a_program_that_goes_on_after_sigterm_is_wrong_unless_it_was_at_its_end() -> None:
    n_all = len(_BARE.out)
    assert failures(replace(_BARE, sent=sent(signal.SIGTERM, n_printed=n_all))) == ()
    assert failures(replace(_BARE, sent=sent(signal.SIGTERM, n_printed=n_all - 1))) == (
        Failure.EXIT,
    )


def test_an_interrupt_that_python_ignores_in_a_finalizer_is_not_a_failure() -> None:
    ignored = "Exception ignored in: <function Batch.__del__>\nKeyboardInterrupt:"
    assert failures(replace(_BARE, err=ignored, sent=sent(signal.SIGINT))) == ()
    assert failures(replace(_BARE, sent=sent(signal.SIGINT))) == (Failure.EXIT,)
    assert failures(replace(_BARE, err=ignored, sent=sent(signal.SIGTERM))) == (Failure.EXIT,)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_ends_is_not_a_failure(signum: signal.Signals) -> None:
    late, ending = sent(signum, n_printed=len(_BARE.out)), Ending(7, "interrupted\n")
    program = Program(20, on_int=ending, on_term=ending)
    assert failures(replace(_BARE, code=-signum, sent=late), program) == ()
    assert failures(replace(_BARE, code=-signum, sent=sent(signum)), program) != ()
    assert Failure.CRASH in failures(replace(_BARE, code=-11, sent=late), program)


def test_to_send_a_signal_does_not_take_the_status_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(_: object) -> None:
        pytest.fail("this waits for a process that has just ended")

    monkeypatch.setattr(subprocess.Popen, "poll", poll)
    signals = Signals(((0.0, signal.SIGWINCH),), after_output=False)
    ended = run_process([sys.executable, "-c", "exit(3)"], tmp_path, dict(os.environ), 20, signals)
    assert (ended.code, len(ended.sent)) == (3, 1)


def test_a_program_that_handles_a_signal_says_so_after_what_it_printed() -> None:
    program = Program(20, on_int=Ending(7, "interrupted\n"))
    ended = replace(_BARE, code=7, out="training\ninterrupted\n", sent=sent(signal.SIGINT))
    assert failures(ended, program) == ()
    assert failures(replace(ended, out="training\n"), program) == (Failure.OUTPUT,)


def test_a_pause_needs_all_of_the_bare_run() -> None:
    stopped = (*sent(signal.SIGSTOP), *sent(signal.SIGCONT))
    assert failures(replace(_BARE, sent=stopped)) == ()
    assert failures(replace(_BARE, out="training\n", sent=stopped)) == (Failure.OUTPUT,)


def test_a_program_is_sent_what_its_row_allows() -> None:
    plain = {Treatment.TERM_EARLY, Treatment.TERM, Treatment.INT}
    always = {Treatment.PAUSES, Treatment.IGNORED}
    assert set(possible_treatments(Program(20))) == plain | always
    assert set(possible_treatments(Program(20, on_term=None, on_int=None))) == always
    handled = Program(20, on_term=Ending(0, "stopped\n"), on_int=INTERRUPTED, handles_alarms=True)
    expected = {Treatment.TERM, Treatment.INT, Treatment.ALARMS}
    assert set(possible_treatments(handled)) == expected | always


def test_the_share_of_runs_with_signals_is_chosen() -> None:
    random = seeded(0)
    chosen = [choose_treatment(_PROGRAM, random, 0.5) for _ in range(400)]
    assert 150 < chosen.count(Treatment.NONE) < 250
    assert set(chosen) == {Treatment.NONE, *possible_treatments(_PROGRAM)}
    assert choose_treatment(_PROGRAM, random, 0) is Treatment.NONE


@pytest.mark.parametrize("treatment", Treatment)
def test_signals_are_in_order_and_the_same_for_a_seed(treatment: Treatment) -> None:
    signals = plan_signals(treatment, seeded(3), 5.0)
    assert list(signals.times) == sorted(signals.times)
    assert signals == plan_signals(treatment, seeded(3), 5.0)
    assert all(seconds >= 0 for seconds, _ in signals.times)
    assert bool(signals.times) == (treatment is not Treatment.NONE)


def test_a_pause_ends() -> None:
    for seed in range(50):
        times = plan_signals(Treatment.PAUSES, seeded(seed), 5.0).times
        assert times[-1][1] is signal.SIGCONT


def run(tmp_path: Path, source: str, limit_s: float = 30, signals: Signals | None = None) -> Ended:
    environment = {"PATH": os.environ["PATH"]}
    return run_process(
        [sys.executable, "-S", "-c", source], tmp_path, environment, limit_s, signals
    )


def test_a_process_is_run_to_its_end(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.code, ended.out, ended.err, ended.is_hung) == (3, "out\n", "err\n", False)
    assert ended.cpu_s > 0
    assert 0 < ended.wall_s < 30


def test_a_process_that_hangs_shows_its_stacks_and_is_killed(tmp_path: Path) -> None:
    source = (
        "import signal\nsignal.signal(15, signal.SIG_IGN)\ndef wait():\n  while True: pass\nwait()"
    )
    ended = run(tmp_path, source, limit_s=1)
    assert ended.is_hung
    assert "in wait" in ended.err


def test_signals_are_sent_after_the_first_output(tmp_path: Path) -> None:
    source = (
        "import signal, time\n"
        "time.sleep(0.3)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('seen'))\n"
        "print('ready')\n"
        "for _ in range(600): time.sleep(0.01) if _ < 300 else None\n"
    )
    signals = Signals(((0.0, signal.SIGUSR1), (0.05, signal.SIGUSR1)))
    ended = run(tmp_path, source, signals=signals)
    assert ended.out == "ready\nseen\nseen\n"
    assert [entry.signum for entry in ended.sent] == [signal.SIGUSR1, signal.SIGUSR1]
    assert ended.first_output_s is not None
    assert ended.sent[0].n_printed >= len("ready")
    assert ended.sent[0].at_s >= ended.first_output_s >= 0.3


def test_an_early_signal_does_not_wait_for_output(tmp_path: Path) -> None:
    signals = Signals(((0.0, signal.SIGTERM),), after_output=False)
    ended = run(tmp_path, "import time; time.sleep(20)", signals=signals)
    assert ended.code == -signal.SIGTERM


def test_children_that_are_left_are_killed(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid)\n"
    )
    ended = run(tmp_path, source)
    assert has_ended(int(ended.out))


def has_ended(pid: int) -> bool:
    """Return whether a process ends within some seconds."""
    file = Path(f"/proc/{pid}/stat")
    for _ in range(500):
        with contextlib.suppress(OSError):
            if file.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


def test_all_programs_are_run_before_any_is_run_again() -> None:
    tasks = plan_tasks(["a", "b", "c"], n_runs=2, seed=1)
    assert {name for name, index in tasks[:3] if index == 0} == {"a", "b", "c"}
    assert {name for name, index in tasks[3:] if index == 1} == {"a", "b", "c"}
    assert tasks == plan_tasks(["a", "b", "c"], n_runs=2, seed=1)


def test_the_figures_come_from_the_runs(tmp_path: Path) -> None:
    def result(index: int, watched: Ended, *kinds: Failure) -> RunResult:
        return RunResult("maml", index, Treatment.NONE, kinds, watched, _BARE)

    slower = replace(_BARE, wall_s=6.0, cpu_s=6.0)
    hung = replace(_BARE, wall_s=60.0, is_hung=True)
    results = Results(0, [result(0, slower), result(1, hung, Failure.HANG)])
    results.write(tmp_path / "chaos.json")
    written = json.loads((tmp_path / "chaos.json").read_text())
    figures = written["programs"]["maml"]
    assert (written["n_runs"], written["n_failed"], figures["hang"]) == (2, 1, 1)
    assert (figures["wall_ratio"], figures["cpu_ratio"]) == (2.0, 1.5)
    assert "maml" in results.table()
    assert "2.00x" in results.table()


def test_each_program_has_a_row() -> None:
    files = {file.stem for file in (FOLDER / "programs").glob("*.py")}
    assert files == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_torchs_number_of_threads(name: str) -> None:
    source = (FOLDER / "programs" / f"{name}.py").read_text()
    assert "set_num_threads" not in source
    assert "OMP_NUM_THREADS" not in source
