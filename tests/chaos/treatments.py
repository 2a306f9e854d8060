"""Which signals a run is sent, and when."""

import signal
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from tests.chaos.table import Program

_BURST_PERIOD_S: Final = 0.001
_N_IN_BURST: Final = 200
_N_ALARMS: Final = 1500
_IGNORED: Final = (signal.SIGWINCH, signal.SIGCHLD)


class Treatment(Enum):
    """What is done to a program while it runs."""

    NONE = "none"
    """Nothing."""
    TERM_EARLY = "SIGTERM during its start"
    """SIGTERM at any time, the imports included."""
    TERM = "SIGTERM"
    """SIGTERM after its first line."""
    INT = "SIGINT"
    """SIGINT after its first line."""
    ALARMS = "SIGALRM at 1 kHz"
    """SIGALRM each millisecond, for a while."""
    PAUSES = "SIGSTOP and SIGCONT"
    """Three pauses."""
    IGNORED = "ignored signals"
    """Bursts of signals whose default action is nothing."""


@dataclass(frozen=True)
class Signals:
    """Signals that are sent to a run.

    Attributes:
        times: Seconds and signal, in order of time.
        after_output: Whether seconds count from the program's first output, not from its start.
    """

    times: tuple[tuple[float, signal.Signals], ...] = ()
    after_output: bool = True


_DEADLY: Final = {
    Treatment.TERM_EARLY: signal.SIGTERM,
    Treatment.TERM: signal.SIGTERM,
    Treatment.INT: signal.SIGINT,
}


def possible_treatments(program: Program) -> list[Treatment]:
    """Return the treatments with signals that a program can be given."""
    treatments = [Treatment.PAUSES, Treatment.IGNORED]
    if program.on_term is not None:
        treatments.append(Treatment.TERM)
        # Before a program has set its handler, the signal has another effect.
        if program.on_term.code == -signal.SIGTERM:
            treatments.append(Treatment.TERM_EARLY)
    if program.on_int is not None:
        treatments.append(Treatment.INT)
    if program.handles_alarms:
        treatments.append(Treatment.ALARMS)
    return treatments


def choose_treatment(program: Program, random: Random, share: float) -> Treatment:
    """Choose a treatment with signals in a share of the cases."""
    if random.random() >= share:
        return Treatment.NONE
    return random.choice(possible_treatments(program))


def plan_signals(treatment: Treatment, random: Random, run_s: float) -> Signals:
    """Choose the times of a treatment's signals.

    Args:
        treatment: What is done.
        random: What chooses.
        run_s: How long a run may take from its first output.
    """
    at_s = random.uniform(0, run_s)
    if treatment in _DEADLY:
        is_early = treatment is Treatment.TERM_EARLY
        return Signals(((at_s, _DEADLY[treatment]),), after_output=not is_early)

    if treatment is Treatment.ALARMS:
        times = (at_s + i * _BURST_PERIOD_S for i in range(_N_ALARMS))
        return Signals(tuple((time_s, signal.SIGALRM) for time_s in times))
    if treatment is Treatment.IGNORED:
        times = (at_s + i * _BURST_PERIOD_S for i in range(_N_IN_BURST))
        return Signals(tuple((time_s, random.choice(_IGNORED)) for time_s in times))
    if treatment is Treatment.PAUSES:
        pauses = [(random.uniform(0, run_s), random.uniform(0.02, 0.4)) for _ in range(3)]
        both = [(begin_s, signal.SIGSTOP) for begin_s, _ in pauses]
        both += [(begin_s + pause_s, signal.SIGCONT) for begin_s, pause_s in pauses]
        # A pause within another one would leave it early: the last signal is always SIGCONT.
        return Signals(tuple(sorted(both)))

    return Signals()
