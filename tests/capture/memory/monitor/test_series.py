"""Growth is judged by the samples that have counted all tensors."""

import pytest

from profkit.capture.memory.monitor.live_tensors import Amount, TensorKind
from profkit.capture.memory.monitor.series import Lack, Sample, Series, accumulation
from profkit.capture.process.malloc_stats import Allocated

KIND = TensorKind("cpu", "float32", 7, has_graph=False)
STEPS = (*range(1, 40, 3), *range(40, 200, 10))
N_PER_STEP = 400
HEAP_PER_STEP = 200_000
LAST_COUNTED = 40


def series(lacks: Lack) -> Series:
    """Samples of small tensors, of which few more are counted after some steps."""
    samples = Series()
    for step in STEPS:
        n = N_PER_STEP * min(step, LAST_COUNTED) + max(step - LAST_COUNTED, 0)
        amounts = {KIND: Amount(64 * n, n, 64 * n, n)}
        heap = Allocated(HEAP_PER_STEP * step, 0)
        lacking = lacks if step > LAST_COUNTED else Lack(0)
        samples.add(Sample(step, step, amounts, heap=heap, lacks=lacking))
    return samples


@pytest.mark.parametrize("lacks", [Lack.PROMOTED, Lack.TENSORS])
def test_tensors_that_are_not_counted_are_not_the_end_of_the_growth(lacks: Lack) -> None:
    trend = accumulation(series(lacks), KIND)
    assert trend is not None
    assert trend.per_step == pytest.approx(64 * N_PER_STEP, rel=0.01)
    assert accumulation(series(Lack(0)), KIND) is None


def test_missed_tensors_grow_on_as_far_as_the_heap_does() -> None:
    samples = series(Lack.PROMOTED)
    assert samples.extent_after(1) == pytest.approx((STEPS[-1] - 1) / (LAST_COUNTED - 1), rel=0.01)

    full = [s._replace(heap=Allocated(min(s.step, 40) * HEAP_PER_STEP, 0)) for s in samples.samples]
    assert Series(full).extent_after(1) == 1
    assert accumulation(Series(full), KIND) is None
