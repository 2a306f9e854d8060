"""SIGTERM under ``profkit run``, and the program's signal handlers while profkit works."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import profkit
from profkit.capture.process import signals

TRAINS = """\
import os, signal, sys, time
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(n):
    for _ in range(n):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
"""
SLEEPS = f"{TRAINS}\ntrain(20)\nprint('ready', flush=True)\ntime.sleep(60)\nprint('never')\n"
IN_RECORDED_STEPS = (
    f"{TRAINS}\ntrain(5)\nprint('ready', flush=True)\ntime.sleep(0.2)\ntrain(10**9)\n"
)
HANDLES = f"""{TRAINS}
def handler(number, frame):
    print("handled", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, handler)
train(20)
print("ready", flush=True)
time.sleep(60)
"""
FORKS = f"""{TRAINS}
train(20)
child = os.fork()
if not child:
    time.sleep(60)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print("ready", flush=True)
"""
IN_C_CODE = f"""{TRAINS}
train(20)
values = torch.ones(6000, 6000, dtype=torch.float64)
print("ready", flush=True)
while True:
    torch.linalg.svd(values)
"""


def run_until_signal(folder: Path, source: str, number: int | None) -> tuple[int, str, str, float]:
    """Run a program, send it a signal when it is ready, and return how it ended and how soon."""
    (folder / "program.py").write_text(source)

    with subprocess.Popen(
        [sys.executable, "-m", "profkit", "run", "program.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(profkit.__file__).parents[1])},
    ) as process:
        assert process.stdout is not None
        out = ""
        while "ready" not in out:
            out += process.stdout.readline()
            assert out
        began_s = time.monotonic()
        if number is not None:
            process.send_signal(number)
        stdout, err = process.communicate(timeout=120)
        return process.returncode, out + stdout, err, time.monotonic() - began_s


def test_a_program_that_sleeps_dies_of_sigterm_with_its_report(tmp_path: Path) -> None:
    code, out, err, took_s = run_until_signal(tmp_path, SLEEPS, signal.SIGTERM)
    assert (code, out) == (-signal.SIGTERM, "ready\n")
    assert "Step time: " in err
    assert took_s < signals.LIMIT_S + 2


@pytest.mark.slow
def test_a_step_that_is_recorded_ends_before_the_program_does(tmp_path: Path) -> None:
    code, _, err, took_s = run_until_signal(tmp_path, IN_RECORDED_STEPS, signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert "Step time: " in err
    assert took_s < signals.LIMIT_S + 2


@pytest.mark.slow
def test_a_program_in_c_code_dies_in_time(tmp_path: Path) -> None:
    code, out, _, took_s = run_until_signal(tmp_path, IN_C_CODE, signal.SIGTERM)
    assert (code, out) == (-signal.SIGTERM, "ready\n")
    assert took_s < signals.LIMIT_S + 2


@pytest.mark.slow
def test_a_handler_of_the_program_decides_how_it_ends(tmp_path: Path) -> None:
    code, out, err, _ = run_until_signal(tmp_path, HANDLES, signal.SIGTERM)
    assert (code, out) == (7, "ready\nhandled\n")
    assert "Step time: " in err


@pytest.mark.slow
def test_a_signal_to_a_forked_child_ends_the_child_alone(tmp_path: Path) -> None:
    code, out, err, _ = run_until_signal(tmp_path, FORKS, None)
    assert (code, out) == (0, "-15\nready\n")
    assert "Step time: " in err


class TimeIsUpError(Exception):
    """What the program's handler raises."""


def test_a_handler_that_raises_does_so_after_the_block() -> None:
    seen: list[str] = []

    def handler(*_: object) -> None:
        seen.append("handler")
        raise TimeIsUpError

    def work() -> None:
        with signals.held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            seen.append("block")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUpError):
            work()
        assert seen == ["block", "handler"], "once, as signals of one kind are"
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_block_within_another_one_holds_to_the_end_of_the_outer_one() -> None:
    seen: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("handler"))
    try:
        with signals.held():
            with signals.held():
                signal.raise_signal(signal.SIGUSR1)
            seen.append("outer block")
        assert seen == ["outer block", "handler"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_all_signals_of_a_block_are_handled_if_each_handler_raises() -> None:
    handled: list[int] = []

    def handler(number: int, _frame: object) -> None:
        handled.append(number)
        raise TimeIsUpError

    def work() -> None:
        with signals.held():
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        with pytest.raises(TimeIsUpError):
            work()
        assert handled == [signal.SIGUSR2, signal.SIGUSR1]
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def test_a_handler_that_raises_as_soon_as_it_is_set_again_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restored: list[int] = []

    def set_and_run(number: int, _handler: object) -> None:
        restored.append(number)
        if len(restored) == 1:
            raise TimeIsUpError

    monkeypatch.setattr("_signal.signal", set_and_run)
    with pytest.raises(TimeIsUpError):
        signals._restore({signal.SIGUSR1: print, signal.SIGUSR2: print})
    assert restored == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]


def test_without_anything_to_finish_sigterm_has_its_default_action() -> None:
    finisher = signals.Finisher(lambda _: None)
    signals.on_sigterm(finisher)
    assert signal.getsignal(signal.SIGTERM) is signals._handle
    signals.remove(finisher)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
