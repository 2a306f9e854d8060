"""Sampled stacks: of the threads that run, with nothing of the program changed."""

import _thread
import asyncio
import ctypes
import gc
import hashlib
import os
import queue
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from profkit.capture.process import short_turns, stack_counts
from profkit.capture.process.collections_held import without_collection
from profkit.capture.process.stack_sampler import StackSample, StackSampler

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage sets a trace function, as debuggers do"
)


@pytest.fixture
def sampler() -> Iterator[StackSampler]:
    made = StackSampler(0.002)
    yield made
    made.stop()


def busy(seconds: float) -> None:
    """Run Python for some processor time of this thread."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        sum(range(100))


def tokenize(seconds: float) -> None:
    busy(seconds)


def encode(seconds: float) -> None:
    busy(seconds)


def ns_of(sampler: StackSampler) -> Counter[str]:
    """Sampled nanoseconds by the function of this file that a thread was in or waited for."""
    n_by_function: Counter[str] = Counter()
    for sample in sampler.counts():
        n_by_function.update(
            dict.fromkeys({name for file, _, name in sample.calls if file == __file__}, sample.ns)
        )
    return n_by_function


def turns_are_short() -> bool:
    return sys.getswitchinterval() < 2 * short_turns.SWITCH_S


def comes_true(condition: Callable[[], bool], meanwhile: Callable[[], object]) -> bool:
    """Return whether it does within twenty seconds, as the sampler may wait for a core."""
    deadline_s = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        meanwhile()
    return True


def test_it_counts_functions_by_the_processor_time_that_they_take(sampler: StackSampler) -> None:
    def work() -> None:
        tokenize(0.03)
        encode(0.01)

    assert sampler.start()
    # Of so many samples the shares are off by 0.05 (one sigma).
    assert comes_true(lambda: sum(sample.n for sample in sampler.counts()) > 80, work)
    sampler.stop()
    ns = ns_of(sampler)
    assert ns["tokenize"] / ns["busy"] == pytest.approx(0.75, abs=0.18)
    assert ns["encode"] / ns["busy"] == pytest.approx(0.25, abs=0.18)
    assert sum(sample.n for sample in sampler.counts()) <= 2 * sampler.n_samples


def test_it_sees_what_runs_for_a_millisecond_between_waits(sampler: StackSampler) -> None:
    async def handle() -> None:
        for _ in range(100):
            tokenize(0.002)
            await asyncio.sleep(0.006)

    sampler.start()
    began_s = time.perf_counter()
    # One run gives three to seven samples: too few for a share.
    while sum(sample.n for sample in sampler.counts()) < 15 and time.perf_counter() - began_s < 30:
        asyncio.run(handle())
    sampler.stop()
    took_s = time.perf_counter() - began_s
    every_ns = sum(sample.ns for sample in sampler.counts())
    assert ns_of(sampler)["tokenize"] > 0.5 * every_ns
    assert every_ns < 0.6e9 * took_s


def hash_numbers(n: int) -> int:
    value = 0
    for number in range(n):
        value = (value * 31 + number) % 1_000_003
    return value


def share_seen_beside_operators(seconds: float) -> float:
    """Sampled share of a function that takes 0.1 ms between operators, over its true share."""
    sampler = StackSampler(0.002, max_share=0.5)
    matrix = torch.randn(96, 96)
    sampler.start()
    end_s, spent_s = time.perf_counter() + seconds, 0.0
    while (began_s := time.perf_counter()) < end_s:
        hash_numbers(1200)
        spent_s += time.perf_counter() - began_s
        torch.relu(matrix @ matrix)
    sampler.stop()
    counted_ns = sum(sample.ns for sample in sampler.counts())
    return ns_of(sampler)["hash_numbers"] / max(counted_ns, 1) / (spent_s / seconds)


def test_it_sees_a_function_that_takes_a_fraction_of_a_millisecond_beside_operators() -> None:
    # Without short turns it is never seen. With them, a sampler that gets no core before the next
    # operator sees little of it for as long as both cores are taken.
    shares: list[float] = []
    assert comes_true(
        lambda: bool(shares) and shares[-1] > 0.1,
        lambda: shares.append(share_seen_beside_operators(2)),
    ), shares


def numbers_in_turn(depth: int, n: int) -> Iterator[int]:
    """Generators that are suspended a million times a second."""
    for number in numbers_in_turn(depth - 1, n) if depth else range(n):  # noqa: UP028  (let in here)
        yield number


def consume(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for _ in numbers_in_turn(20, 100):
            pass


def test_generators_have_their_callers() -> None:
    seen: list[StackSample] = []
    sampler = StackSampler(0.001, seen.extend, max_share=0.5)
    sampler.start()
    consume(1.5)
    sampler.stop()
    names = [[name for _, _, name in sample.calls] for sample in seen]
    in_generators = [stack for stack in names if stack and stack[-1] == "numbers_in_turn"]
    assert len(in_generators) > 20
    assert all("consume" in stack for stack in in_generators)


def derive_key() -> None:
    """Run C code that lets other threads in, and stays where it is for a second."""
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 1_000_000)


def test_a_forked_child_counts_the_time_of_its_own_thread() -> None:
    pid = os.fork()
    if not pid:
        sampler = StackSampler(0.002, max_share=0.5)
        sampler.start(looks_for_profilers=False)
        derive_key()
        sampler.stop()
        n_samples = sum(
            sample.n for sample in sampler.counts() if sample.calls[-1][2] == "derive_key"
        )
        # The first of an unknown clock counts.
        os._exit(0 if n_samples > 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_parked_thread_without_a_known_clock_leaves_turns_short(sampler: StackSampler) -> None:
    release = _thread.allocate_lock()
    release.acquire()

    def parked() -> None:
        release.acquire()

    _thread.start_new_thread(parked, ())
    try:
        sampler.start()
        assert comes_true(turns_are_short, lambda: tokenize(0.02))
    finally:
        release.release()


def test_a_thread_that_waits_is_seen_and_not_counted() -> None:
    messages = queue.Queue[int]()
    seen: list[StackSample] = []
    sampler = StackSampler(0.002, seen.extend)

    def parked() -> None:
        messages.get()

    waiting = threading.Thread(target=parked, name="parked")
    sampler.start()
    waiting.start()
    # Samples become rarer where a look is dear, so a busy machine needs longer for as many.
    assert comes_true(lambda: sampler.n_samples > 5, lambda: time.sleep(0.05))
    sampler.stop()
    messages.put(0)
    waiting.join()
    parked_looks = [look for look in seen if look.thread == waiting.ident]
    assert len(parked_looks) >= sampler.n_samples - 2
    assert not any(parked_look.is_running for parked_look in parked_looks)


def test_a_thread_in_an_operator_counts(sampler: StackSampler) -> None:
    values = torch.zeros(3_000_000)

    def operate() -> None:
        end_s = time.thread_time() + 0.3
        while time.thread_time() < end_s:
            values.exp_()

    thread = threading.Thread(target=operate)
    sampler.start()
    thread.start()
    thread.join()
    sampler.stop()
    assert ns_of(sampler)["operate"] > 150_000_000


def test_samples_have_times() -> None:
    recent: list[StackSample] = []
    sampler = StackSampler(0.001, recent.extend)
    sampler.start()
    before_ns = time.time_ns()
    assert comes_true(lambda: len(recent) > 1, lambda: busy(0.05))
    sampler.stop()
    times = [look.time_ns for look in recent]
    assert times == sorted(times)
    assert before_ns - 10**8 < times[0] <= times[-1] < time.time_ns() + 10**8


def test_nothing_of_the_program_is_changed_once_it_has_stopped(sampler: StackSampler) -> None:
    switch_s, threads = sys.getswitchinterval(), threading.enumerate()
    n_stacks, thresholds = len(sys._current_frames()), gc.get_threshold()
    sampler.start()
    assert comes_true(turns_are_short, lambda: time.sleep(0.01))
    assert comes_true(lambda: sampler.n_samples > 0, lambda: time.sleep(0.01))
    assert threading.enumerate() == threads
    sampler.stop()
    n_samples = sampler.n_samples
    assert sys.getswitchinterval() == switch_s
    # The thread ends when it wakes up: later where samples are expensive.
    assert comes_true(lambda: len(sys._current_frames()) <= n_stacks, lambda: time.sleep(0.01))
    assert sampler.n_samples == n_samples
    assert gc.get_threshold() == thresholds


def test_a_switch_interval_that_the_program_sets_stays(sampler: StackSampler) -> None:
    switch_s = sys.getswitchinterval()
    try:
        sampler.start()
        time.sleep(0.05)
        sys.setswitchinterval(0.02)
        sampler.stop()
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(switch_s)


def test_a_sampler_that_counts_no_functions_leaves_the_switch_interval(
    sampler: StackSampler,
) -> None:
    switch_s = sys.getswitchinterval()
    seen = StackSampler(0.002, has_short_turns=False)
    try:
        seen.start()
        assert comes_true(lambda: seen.n_samples > 0, lambda: time.sleep(0.01))
        assert sys.getswitchinterval() == switch_s
        sampler.start()
        assert comes_true(turns_are_short, lambda: time.sleep(0.01))
        sampler.stop()
        assert sys.getswitchinterval() == switch_s
        assert seen.is_on
    finally:
        seen.stop()


def test_it_adds_to_its_counts_after_another_start(sampler: StackSampler) -> None:
    sampler.start()
    assert comes_true(lambda: ns_of(sampler)["tokenize"] > 0, lambda: tokenize(0.05))
    sampler.stop()
    first = ns_of(sampler)["tokenize"]
    sampler.start()
    assert comes_true(lambda: ns_of(sampler)["tokenize"] > first, lambda: tokenize(0.05))
    sampler.stop()


def test_it_holds_nothing_of_a_frame(sampler: StackSampler) -> None:
    class Batch:
        pass

    def load() -> weakref.ref[Batch]:
        batch = Batch()
        busy(0.05)
        return weakref.ref(batch)

    sampler.start()
    assert load()() is None


def test_finalizers_of_the_program_do_not_run_in_its_thread(sampler: StackSampler) -> None:
    threads: set[int] = set()

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            threads.add(threading.get_ident())

    thresholds = gc.get_threshold()
    gc.set_threshold(30)
    try:
        sampler.start()
        for _ in range(200):
            Cycle()
            time.sleep(0.005)
    finally:
        gc.set_threshold(*thresholds)
    assert sampler.n_samples > 3
    assert threads == {threading.get_ident()}


@pytest.fixture
def looks() -> Iterator[Callable[[], Callable[[], None]]]:
    """Begins a look in a thread of its own, and returns what ends it."""
    ends: list[Callable[[], None]] = []

    def begin() -> Callable[[], None]:
        has_begun, may_end = threading.Event(), threading.Event()

        def look() -> None:
            has_begun.set()
            may_end.wait()

        thread = threading.Thread(target=without_collection, args=(look,))
        thread.start()
        has_begun.wait()

        def end() -> None:
            may_end.set()
            thread.join()

        ends.append(end)
        return end

    thresholds = gc.get_threshold()
    yield begin
    for end in ends:
        end()
    gc.enable()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_collector_is_as_before_after_looks_of_two_samplers_at_once(
    order: tuple[int, int], looks: Callable[[], Callable[[], None]]
) -> None:
    thresholds = gc.get_threshold()
    ends = looks(), looks()
    assert gc.get_threshold() != thresholds
    ends[order[0]]()
    assert gc.get_threshold() != thresholds
    ends[order[1]]()
    assert gc.get_threshold() == thresholds
    assert gc.isenabled()


def test_what_the_program_sets_during_a_look_stays(
    looks: Callable[[], Callable[[], None]],
) -> None:
    end = looks()
    assert gc.isenabled()
    gc.disable()
    gc.set_threshold(50_000, 7, 8)
    end()
    assert not gc.isenabled()
    assert gc.get_threshold() == (50_000, 7, 8)
    gc.set_threshold(0)
    looks()()
    assert gc.get_threshold()[0] == 0


def test_it_costs_a_hundredth_of_a_core_however_short_the_interval() -> None:
    def deep(n: int, over: threading.Event) -> None:
        if n:
            deep(n - 1, over)
        else:
            over.wait()

    over = threading.Event()
    threads = [threading.Thread(target=deep, args=(100, over)) for _ in range(20)]
    for thread in threads:
        thread.start()
    sampler = StackSampler(0.00001)
    sampler.start()
    began_s = time.process_time()
    time.sleep(1.0)
    used_s = time.process_time() - began_s
    sampler.stop()
    over.set()
    for thread in threads:
        thread.join()
    assert sampler.interval_s > 0.001
    assert used_s < 0.05


def test_calls_that_keep_the_lock_do_not_spread_the_later_samples() -> None:
    # Unlike the functions of `ctypes.CDLL`, it does not leave Python's lock.
    keep_lock = ctypes.PyDLL(None).usleep
    sampler = StackSampler(0.005, max_share=0.005)
    sampler.start()
    for _ in range(4):
        keep_lock(300_000)

    n_before = sampler.n_samples
    busy(1.5)
    n_samples = sampler.n_samples - n_before
    sampler.stop()
    assert n_before > 0
    assert n_samples >= 10


def test_the_number_of_stacks_is_bounded(
    sampler: StackSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_counts, "_MAX_STACKS", 1)

    def work() -> None:
        for function in (tokenize, encode, busy):
            function(0.05)

    sampler.start()
    assert comes_true(lambda: sampler.n_left_out > 0, work)
    sampler.stop()
    assert len(sampler.counts()) <= 1


def test_a_debugger_of_the_program_wins(sampler: StackSampler) -> None:
    sys.settrace(lambda *_: None)
    try:
        assert not sampler.start()
    finally:
        sys.settrace(None)
    assert not sampler.start()


def test_a_debugger_that_comes_later_wins(sampler: StackSampler) -> None:
    assert sampler.start()

    def debugged() -> None:
        sys._getframe().f_trace = lambda *_: None
        busy(0.0)
        end_s = time.monotonic() + 20
        while sampler.is_on and time.monotonic() < end_s:
            pass

    debugged()
    assert not sampler.is_on
    assert not sampler.start()
    assert sys.getswitchinterval() != pytest.approx(short_turns.SWITCH_S)


def test_a_profile_function_of_the_program_wins(sampler: StackSampler) -> None:
    sys.setprofile(lambda *_: None)
    try:
        assert not sampler.start()
    finally:
        sys.setprofile(None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with several threads
def test_a_forked_child_samples_nothing(
    sampler: StackSampler, looks: Callable[[], Callable[[], None]]
) -> None:
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sampler.start()
    time.sleep(0.05)
    looks()
    pid = os.fork()
    if not pid:
        sampler.stop()
        is_as_before = sys.getswitchinterval() == switch_s and gc.get_threshold() == thresholds
        os._exit(0 if is_as_before and not sampler.is_on else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert sampler.is_on
    tokenize(0.25)
    sampler.stop()
    assert ns_of(sampler)["tokenize"] > 0
