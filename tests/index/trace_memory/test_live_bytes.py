"""Allocations and their frees, against a dictionary that is kept event by event."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.trace_memory.live_bytes import device_label, pair_allocations, peaks
from profkit.model.events import MISSING, MemoryTable


def table(
    moves: list[tuple[int, int]], totals: list[int] | None = None, *, addresses: bool = True
) -> MemoryTable:
    """``moves`` are (address, bytes); the times are their places."""
    n = len(moves)
    numbers = [address if addresses else MISSING for address, _ in moves]
    return MemoryTable(
        position=np.arange(n, dtype=np.int32),
        lane=np.zeros(n, dtype=np.int32),
        ts_ns=np.arange(n, dtype=np.int64),
        n_bytes=np.array([b for _, b in moves], dtype=np.int64),
        address=np.array(numbers, dtype=np.int64),
        device_type=np.ones(n, dtype=np.int32),
        device=np.zeros(n, dtype=np.int32),
        total_allocated=np.array(totals or [MISSING] * n, dtype=np.int64),
        total_reserved=np.full(n, MISSING, dtype=np.int64),
    )


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Allocations and frees of a few addresses, some from before the window."""
    live: set[int] = set(draw(st.sets(st.integers(0, 4))))
    moves = []
    for address in draw(st.lists(st.integers(0, 6), max_size=40)):
        moves.append((address, -8 if address in live else 8))
        live ^= {address}
    return moves


@given(traffic())
def test_pairs_agree_with_a_dictionary(moves: list[tuple[int, int]]) -> None:
    live: dict[int, int] = {}
    freed: dict[int, int] = {}
    earlier = 0
    for at, (address, n_bytes) in enumerate(moves):
        if n_bytes > 0:
            live[address] = at
        elif address in live:
            freed[live.pop(address)] = at
        else:
            earlier += 1
    allocation_rows = pair_allocations(table(moves))

    by_alloc = dict(zip(allocation_rows.alloc.tolist(), allocation_rows.free.tolist(), strict=True))
    assert {at: end for at, end in by_alloc.items() if end >= 0} == freed
    assert sorted(at for at, end in by_alloc.items() if end < 0) == sorted(live.values())
    assert allocation_rows.n_frees_of_earlier == earlier


def test_one_address_on_two_devices_is_two_blocks() -> None:
    moves = table([(1, 8), (1, 8), (1, -8)])
    apart = MemoryTable(**{**vars(moves), "device": np.array([0, 1, 1], dtype=np.int32)})
    allocation_rows = pair_allocations(apart)
    assert allocation_rows.unfreed.tolist() == [True, False]


def test_without_addresses_nothing_is_paired() -> None:
    allocation_rows = pair_allocations(table([(1, 8), (1, -8)], addresses=False))
    assert not allocation_rows.has_addresses
    assert allocation_rows.n_frees_of_earlier == 0


def test_the_peak_is_the_allocators_own_highest_figure() -> None:
    assert peaks(table([(1, 8), (2, 8), (1, -8)], [8, 16, 8])) == {"cuda:0": 16}
    assert peaks(table([(1, 8)])) == {}


def test_every_device_has_its_own_peak() -> None:
    moves = table([(1, 8), (2, 8), (3, 8), (1, -8)], [8, 30, MISSING, 9])
    kinds = {"device_type": [1, 0, 1, 1], "device": [1, -1, 1, 0]}
    apart = {key: np.array(column, dtype=np.int32) for key, column in kinds.items()}
    window_peaks = peaks(MemoryTable(**{**vars(moves), **apart}))
    assert list(window_peaks.items()) == [("cpu", 30), ("cuda:0", 9), ("cuda:1", 8)]


def test_devices_have_pytorchs_names() -> None:
    assert [device_label(0, -1), device_label(6, 2), device_label(12, 0)] == [
        "cpu",
        "cuda:2",
        "xpu:0",
    ]
