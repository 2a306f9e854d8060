"""The time for which the threads of a program can have had all cores."""

from hypothesis import given
from hypothesis import strategies as st

from profkit.model.capture_info import CpuTime, HostThreads

WINDOW_NS = 1000


def can_fill(times_ns: list[int], unknown_ns: int, n_cores: int, filled_ns: int) -> bool:
    """Return whether threads have enough work for all cores where each has one core at a time."""
    usable_ns = sum(min(each_ns, filled_ns) for each_ns in times_ns) + unknown_ns
    return usable_ns >= n_cores * filled_ns


@given(
    st.lists(st.integers(0, WINDOW_NS), max_size=6),
    st.integers(0, WINDOW_NS),
    st.integers(1, 6),
    st.integers(0, WINDOW_NS),
)
def test_it_is_the_longest_time_that_they_can_fill(
    times_ns: list[int], unknown_ns: int, n_cores: int, delayed_ns: int
) -> None:
    cpu = CpuTime(
        WINDOW_NS,
        thread_ns=0,
        process_ns=sum(times_ns),
        delayed_ns=delayed_ns,
        children_ns=unknown_ns,
        other_threads_ns=tuple(sorted(times_ns, reverse=True)),
    )
    longest_ns = cpu.delayed_by_program_ns(HostThreads(n_cores, n_threads=1))

    fits = (can_fill(times_ns, unknown_ns, n_cores, ns) for ns in range(delayed_ns + 1))
    assert longest_ns == max(ns for ns, is_filled in enumerate(fits) if is_filled)


def test_other_ranks_have_threads_like_this_one() -> None:
    cpu = CpuTime(
        WINDOW_NS,
        thread_ns=400,
        process_ns=1400,
        delayed_ns=600,
        children_ns=0,
        other_threads_ns=(1000,),
    )
    threads = HostThreads(n_cores=2, n_threads=2, n_ranks=2)
    # Two threads of 1,000 ns fill both cores for longer than this one waited.
    assert cpu.delayed_by_program_ns(threads) == 600
    # On three cores the main thread of the other rank has to fill the third.
    assert cpu.delayed_by_program_ns(HostThreads(3, 2, 2)) == 400
