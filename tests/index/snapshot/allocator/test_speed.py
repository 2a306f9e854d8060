"""A history twice as long takes about twice as long to be played again."""

import time

import numpy as np
import pytest

from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.simulate import InitialState, RequestKind, Requests, simulate

pytestmark = pytest.mark.slow

N_LIVE = 400
NOTHING = np.zeros(0, dtype=np.int64)
EMPTY = InitialState(
    address=NOTHING,
    n_bytes=NOTHING,
    stream=NOTHING,
    is_small=NOTHING.astype(np.bool_),
    private=NOTHING.astype(np.int32),
    block_address=NOTHING,
    block_bytes=NOTHING,
)


def build_requests(n: int) -> Requests:
    """Build requests of random lengths, each freed at random while some hundreds live."""
    chance = np.random.default_rng(1)
    live: list[int] = []
    kind, which = [], []

    for request in range(n):
        kind.append(int(RequestKind.ALLOC))
        which.append(request)
        live.append(request)
        if len(live) > N_LIVE:
            kind.append(int(RequestKind.FREE))
            which.append(live.pop(int(chance.integers(len(live)))))

    return Requests(
        n_bytes=chance.integers(1, 40 << 20, n),
        stream=np.zeros(n, dtype=np.int64),
        private=np.zeros(n, dtype=np.int32),
        place=np.arange(len(kind)),
        kind=np.array(kind, dtype=np.uint8),
        which=np.array(which),
        begin=EMPTY,
    )


def seconds(requests: Requests, settings: AllocatorSettings) -> float:
    """Processor time, the best of three."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        simulate(requests, settings)
        taken.append(time.process_time() - began)
    return min(taken)


def test_simulation_time_is_linear_in_the_history() -> None:
    short, long = build_requests(8_000), build_requests(64_000)
    for settings in (AllocatorSettings(), AllocatorSettings(expandable=True)):
        # Eight times as many: a square would be 64 times as long.
        assert seconds(long, settings) < 20 * seconds(short, settings)
