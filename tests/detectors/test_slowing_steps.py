"""slowing-steps finds steps that take longer and longer, and no pauses, bends or noise."""

from collections.abc import Callable

import numpy as np
import pytest

from profkit.detectors.slowing_steps import Thresholds, _is_growing, find_step_times
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "slowing-steps"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
STEPS = np.arange(0.0, 801.0, 4.0)


def test_the_first_and_the_last_steps_are_named(found: Found) -> None:
    (finding,) = found(LiveBuilder(n_steps=400, n_samples=100, slowing_ns=100_000), RULE)
    # The fastest quarters end with steps 13 and 363 of steps of 20 to 60 ms.
    assert finding.evidence["first_steps_ns"] == pytest.approx(20.6e6, rel=0.01)
    assert finding.evidence["last_steps_ns"] == pytest.approx(55.6e6, rel=0.01)
    assert finding.evidence["extra_share"] == pytest.approx(0.46, abs=0.01)
    assert finding.message == (
        "Steps take longer and longer: 20.7 ms in the first eighth of the run, 55.6 ms in the "
        "last. What 400 steps take more than the first ones is 46% of the run."
    )
    assert finding.cost.ns is None, "the recorded steps do not show it"


@pytest.mark.parametrize(
    ("slowing_ns", "severity"), [(100_000, "warning"), (45_000, "note"), (60_000, "warning")]
)
def test_it_is_a_warning_from_twice_the_step_time_on(
    found: Found, slowing_ns: int, severity: str
) -> None:
    (finding,) = found(LiveBuilder(n_steps=400, n_samples=100, slowing_ns=slowing_ns), RULE)
    assert finding.severity == severity


@pytest.mark.parametrize(
    "step_ns",
    [
        2.0 ** np.arange(0, 6, 0.03) * 10e6,  # doubles every 33 steps
        1e6 * np.sqrt(np.arange(1.0, 201.0)),
        np.linspace(10e6, 16e6, 200),
    ],
)
def test_growth_of_any_form_that_goes_on_is_found(step_ns: np.ndarray) -> None:
    assert is_growing(step_ns)


def test_clocks_that_drift_for_a_while_are_not_growth() -> None:
    """Each eighth of the run is 5% slower than the one before."""
    assert not is_growing(np.repeat(1.05 ** np.arange(8), 25) * 10e6)


def test_the_holder_of_what_grows_is_named(found: Found, watched: Watched) -> None:
    b = watched()
    b.n_samples, b.slowing_ns = 100, 200_000
    (finding,) = found(b, RULE)
    assert finding.fix.endswith("Look first at `kept`, which grows.")
    assert finding.locations[0].line == 31


@pytest.mark.parametrize(
    "b",
    [
        LiveBuilder(n_steps=400, n_samples=100),
        LiveBuilder(n_steps=400, n_samples=100, slowing_ns=20_000),  # 1.4 times as long
        LiveBuilder(n_steps=99, n_samples=90, slowing_ns=1_000_000),
        LiveBuilder(n_steps=400, n_samples=16, slowing_ns=100_000),
    ],
)
def test_other_runs_are_silent(found: Found, b: LiveBuilder) -> None:
    assert found(b, RULE) == ()


def test_without_enough_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "CPU003"


def test_profkits_own_time_is_not_steps(found: Found) -> None:
    """Looks at memory take longer and longer, as objects accumulate."""
    b = LiveBuilder(n_steps=400, n_samples=100, slowing_ns=100_000, own_ns=100_000)
    assert found(b, RULE) == ()


def is_growing(step_ns: np.ndarray) -> bool:
    """Return whether step times are taken for growth; one time for each four steps."""
    times_ns = find_step_times(STEPS, np.append(0.0, np.cumsum(4 * step_ns)))
    return _is_growing(times_ns, Thresholds())


def test_pauses_do_not_hide_growth_and_make_none() -> None:
    """An evaluation every 100 steps, and a first step that compiles."""
    growing, flat = np.linspace(10e6, 40e6, 200), np.full(200, 10e6)
    for times in (growing, flat):
        times[::25] += 500e6
        times[0] += 10e9
    assert is_growing(growing)
    assert not is_growing(flat)


def test_growth_may_grow_itself() -> None:
    assert is_growing(10e6 + np.arange(200.0) ** 2 * 1000)


@pytest.mark.parametrize(
    "step_ns",
    [
        np.repeat([10e6, 20e6], 100),  # another program begins
        np.repeat([10e6, 20e6, 40e6, 80e6], 50),  # a schedule of the lengths
        10e6 * (2 - np.exp(-np.arange(200) / 20)),  # a processor gets hot
        np.tile(np.linspace(10e6, 40e6, 50), 4),  # each epoch sorts its batches
        np.linspace(40e6, 10e6, 200),
    ],
)
def test_a_jump_and_a_bend_are_not_growth(step_ns: np.ndarray) -> None:
    assert not is_growing(step_ns)


def test_random_step_times_do_not_grow() -> None:
    """Lengths of sequences are random, and samples become rarer over the run."""
    random = np.random.default_rng(7)
    steps = np.unique(np.geomspace(1, 2000, 150).astype(int)).astype(float)
    for _ in range(200):
        ends_ns = np.cumsum(random.exponential(10e6, 2001))
        times_ns = find_step_times(steps, ends_ns[steps.astype(int)])
        assert not _is_growing(times_ns, Thresholds())


def test_samples_of_one_step_have_no_times() -> None:
    assert len(find_step_times(np.ones(50), np.arange(50.0))) == 0
    assert len(find_step_times(np.zeros(0), np.zeros(0))) == 0
