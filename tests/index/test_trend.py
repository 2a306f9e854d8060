"""Growth is told from everything that looks like it."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.trend import Floats, Trend, is_rising, lasting_growth, median, median_slope
from profkit.model.events import Int64s

KIB64 = 65536.0
LENGTHS = (30, 60, 150, 400)
Series = Callable[[int, np.random.Generator], Floats]


def looks(n_steps: int) -> Int64s:
    """Return the steps at which a watcher looks: every other one at first, more rarely later."""
    steps = [1]
    while (following := steps[-1] + max(2, steps[-1] * 3 // 100)) <= n_steps:
        steps.append(following)
    return np.array(steps)


def judged(series: Series, n_steps: int, seed: int = 0) -> Trend | None:
    steps = looks(n_steps)
    return lasting_growth(steps, series(n_steps, np.random.default_rng(seed))[steps - 1])


def share_found(series: Series, n_steps: int, trials: int = 30) -> float:
    return sum(judged(series, n_steps, seed) is not None for seed in range(trials)) / trials


def steps_of(n: int) -> Floats:
    return np.arange(n, dtype=np.float64)


def sawtooth(n: int, rng: np.random.Generator) -> Floats:
    return KIB64 * (steps_of(n) % rng.integers(5, max(6, n // 4)))


def filling(n: int, rng: np.random.Generator) -> Floats:
    return KIB64 * np.minimum(steps_of(n), rng.uniform(0.05, 0.6) * n)


def settling(n: int, rng: np.random.Generator) -> Floats:
    return 1e9 * (1 - np.exp(-steps_of(n) / (n * rng.uniform(0.02, 0.15))))


def bounded_by_kinds(n: int, rng: np.random.Generator) -> Floats:
    """Return a cache by length, of which there are few."""
    kinds = rng.integers(n // 10 + 1, size=n)
    return KIB64 * np.array([len(set(kinds[: i + 1].tolist())) for i in range(n)], dtype=np.float64)


def jumps(n: int, rng: np.random.Generator) -> Floats:
    places = rng.integers(n, size=(4, 1))
    return np.asarray(1e8 * (steps_of(n) >= places).sum(axis=0), dtype=np.float64)


QUIET: dict[str, Series] = {
    "constant": lambda n, _: np.full(n, 2e8),
    "falling": lambda n, _: -KIB64 * steps_of(n),
    "noise": lambda n, rng: 1e8 + 1e7 * rng.normal(size=n),
    "one jump at the first step": lambda n, _: np.where(steps_of(n) > 0, 3e8, 1e8),
    "a few jumps": jumps,
    "a sawtooth": sawtooth,
    "a cache that fills and stops": filling,
    "a warm-up that settles": settling,
    "a warm-up that never quite ends": lambda n, _: 1e9 * (1 - 1 / (1 + steps_of(n))),
    "a logarithm": lambda n, _: 1e8 * np.log1p(steps_of(n)),
    "a cache with few keys": bounded_by_kinds,
    "an evaluation now and then": lambda n, _: 1e8 * (steps_of(n) % 10 == 0) + 2e8,
}
GROWING: dict[str, Series] = {
    "64 KiB beside 200 MiB": lambda n, _: KIB64 * steps_of(n) + 2e8,
    "random sizes": lambda n, rng: KIB64 * np.cumsum(rng.uniform(0.4, 1.6, n)),
    "after a large warm-up": lambda n, _: KIB64 * steps_of(n) + 1e8 * np.minimum(steps_of(n), 3),
    "from the middle on": lambda n, _: KIB64 * np.maximum(steps_of(n) - n // 2, 0) * 2 + 1e8,
    "under a periodic peak": lambda n, _: KIB64 * steps_of(n) + 1e9 * (steps_of(n) % 10 == 0),
    "faster and faster": lambda n, _: 100 * steps_of(n) ** 2,
}


@pytest.mark.parametrize("n_steps", LENGTHS)
@pytest.mark.parametrize("name", QUIET)
def test_series_without_a_leak_have_no_growth(name: str, n_steps: int) -> None:
    assert share_found(QUIET[name], n_steps) == 0


@pytest.mark.parametrize("n_steps", LENGTHS)
@pytest.mark.parametrize("name", GROWING)
def test_sustained_growth_is_found(name: str, n_steps: int) -> None:
    assert share_found(GROWING[name], n_steps) >= 0.97


@pytest.mark.parametrize("n_steps", LENGTHS[1:])
def test_growth_in_a_third_of_the_steps_is_found(n_steps: int) -> None:
    def series(n: int, rng: np.random.Generator) -> Floats:
        return KIB64 * np.cumsum(rng.random(n) < 1 / 3, dtype=np.float64)

    assert share_found(series, n_steps) >= 0.8


@given(st.integers(24, 3000), st.integers(1, 10**9), st.integers(0, 10**12))
def test_the_slope_of_a_line_is_exact(n_steps: int, pace: int, base: int) -> None:
    steps = looks(n_steps)
    trend = lasting_growth(steps, base + pace * steps.astype(np.float64))
    assert trend is not None
    assert trend.per_step == pytest.approx(pace)
    assert (trend.first_step, trend.last_step) == (1, steps[-1])


@given(
    st.lists(st.floats(0, 1e12), min_size=8, max_size=60),
    st.floats(1e-3, 1e3),
    st.floats(-1e9, 1e9),
)
def test_a_series_that_does_not_rise_above_its_start_never_grows(
    values: list[float], scale: float, base: float
) -> None:
    low = base - scale * np.array(values)
    low[0] = low.max() + 1
    assert lasting_growth(looks(2 * len(low)), low) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=40))
def test_a_series_and_its_mirror_never_both_grow(values: list[float]) -> None:
    steps, series = np.arange(len(values)), np.array(values)
    assert not (lasting_growth(steps, series) and lasting_growth(steps, -series))


def test_too_few_samples_or_steps_are_not_evaluated() -> None:
    assert lasting_growth(np.arange(5) * 10, np.arange(5.0)) is None
    assert lasting_growth(np.arange(8), np.arange(8.0)) is None
    assert lasting_growth(np.arange(9), np.arange(9.0)) is not None


def test_the_start_of_a_late_leak_is_found() -> None:
    trend = judged(GROWING["from the middle on"], 400)
    assert trend is not None
    assert 160 <= trend.first_step <= 280


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(-1e6, 1e6)), min_size=2, max_size=50))
def test_the_median_slope_agrees_with_all_pairs(points: list[tuple[int, float]]) -> None:
    steps = np.cumsum([gap for gap, _ in points])
    values = np.array([value for _, value in points])
    slopes = [
        (values[b] - values[a]) / (steps[b] - steps[a])
        for a in range(len(points))
        for b in range(a + 1, len(points))
    ]
    assert median_slope(steps, values) == pytest.approx(np.median(slopes), abs=1e-6)


@pytest.mark.parametrize(
    ("values", "rising"),
    [
        ([1, 2, 3, 4], True),
        ([9, 1, 2, 2, 4], True),
        ([1, 1, 1, 2], False),
        ([1, 2, 3], False),
        ([1, 2, 3, 2], False),
        ([4, 4, 4, 4], False),
    ],
)
def test_a_series_is_rising_when_its_last_samples_rise(
    values: list[float], *, rising: bool
) -> None:
    assert is_rising(np.array(values, dtype=np.float64)) is rising


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
def test_the_median_agrees_with_numpy(values: list[float]) -> None:
    assert median(np.array(values)) == pytest.approx(np.median(values))


def test_the_growth_of_a_series_is_found_without_importing_anything() -> None:
    program = (
        "import sys, numpy as np; from profkit.index.trend import lasting_growth;"
        "before = set(sys.modules); grown = np.arange(40);"
        "assert lasting_growth(grown, grown * 1000.0) is not None;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
