"""Programs of all kinds under ``profkit run``: it breaks none, and finds a whole step.

Some run with each change, the others in ``make test-all``, and all of them many times in
``make chaos``.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.capture.needs import needs_all_threads
from tests.chaos.bare_runs import BareRuns
from tests.chaos.runs import Plan, run_once
from tests.chaos.table import PROGRAMS
from tests.chaos.treatments import Treatment
from tests.chaos.watching import BUILD

_QUICK: Final = {
    "asyncio_service": Treatment.TERM,
    "from_scratch": Treatment.INT,
    "inference_modules": Treatment.NONE,
    "pool_inference": Treatment.IGNORED,
}
"""Programs of two to four seconds that run with each change, and what is done to them."""

_HANDLED: Final = {
    "alarm_kilohertz": Treatment.ALARMS,
    "own_sigint": Treatment.INT,
    "own_sigterm": Treatment.TERM,
}
"""Programs with a handler, and its signal."""

Check = Callable[[str, Treatment], None]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run_and_check(name: str, treatment: Treatment) -> None:
        bare_runs = BareRuns(tmp_path / "bare.json", n_runs=1)
        result = run_once(name, 0, Plan(), bare_runs, treatment)
        assert result.failures == (), f"{result.watched.err}\nMore in {BUILD}/failed/{name}-0"

    return run_and_check


def list_programs(names: Iterable[str]) -> list[Any]:
    """Return parameters for programs; one thread's recording of a run without steps is none."""
    return [
        pytest.param(name, marks=needs_all_threads if PROGRAMS[name].n_steps is None else ())
        for name in names
    ]


@pytest.mark.parametrize("name", list_programs(_QUICK))
def test_a_program_runs_as_without_profkit(name: str, check: Check) -> None:
    check(name, _QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list_programs(sorted(set(PROGRAMS) - set(_QUICK))))
def test_any_program_runs_as_without_profkit(name: str, check: Check) -> None:
    check(name, _HANDLED.get(name, Treatment.NONE))
