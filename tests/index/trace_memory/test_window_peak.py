"""The peak of the window's allocations, against a running total."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.index.trace_memory.live_bytes import find_window_peaks, pair_allocations
from profkit.testing import TraceBuilder
from tests.traces import load_trace


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 9), st.sampled_from([0, 1, None])),
        min_size=1, max_size=25,
    )
)  # fmt: skip
def test_the_peak_is_the_highest_level_of_what_the_window_allocated(
    tmp_path: Path, actions: list[tuple[int, int, int | None]]
) -> None:
    b = TraceBuilder(memory=True)
    live: dict[int, tuple[int, int | None]] = {}
    level: dict[int | None, int] = {}
    highest: dict[int | None, int] = {}
    for kind, size, device in actions:
        b.compute("aten::empty", 1_000)
        if kind == 0 and live:
            address, (n_bytes, of) = live.popitem()
            level[of] -= n_bytes
            b.free(address)
        elif kind == 1:
            b.free_earlier(size << 10, device=device)
        else:
            live[b.alloc(size << 10, device=device)] = (size << 10, device)
            level[device] = level.get(device, 0) + (size << 10)
        highest = {of: max(highest.get(of, 0), n) for of, n in level.items()}
    allocations = pair_allocations(load_trace(b.write(tmp_path / "t.json")).memory)

    peak_on = {peak.device: peak for peak in find_window_peaks(allocations)}
    assert {of: peak.n_bytes for of, peak in peak_on.items()} == {
        -1 if of is None else of: n for of, n in highest.items()
    }
    for peak in peak_on.values():
        assert allocations.n_bytes[peak.live].sum() == peak.n_bytes
