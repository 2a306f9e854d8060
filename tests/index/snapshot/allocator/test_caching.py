"""The model of the caching allocator does what torch's does, rule by rule."""

import pytest

from profkit.index.snapshot.allocator.blocks import Block, StreamPool
from profkit.index.snapshot.allocator.caching import CachingAllocator
from profkit.index.snapshot.allocator.settings import AllocatorSettings

MIB = 1 << 20
LIMITED = AllocatorSettings(max_split_bytes=100 * MIB)
EXPANDABLE = AllocatorSettings(expandable=True)


def allocator(
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
) -> tuple[CachingAllocator, StreamPool, StreamPool]:
    """Return an allocator, and its pools of small and of large requests for one stream."""
    made = CachingAllocator(settings or AllocatorSettings(), capacity_bytes, limit_bytes)
    return made, made.pool(0, is_small=True), made.pool(0, is_small=False)


def given_to(made: CachingAllocator, n_bytes: int, pool: StreamPool) -> Block:
    block = made.alloc(n_bytes, pool)
    assert block is not None
    return block


def changes(made: CachingAllocator) -> list[int]:
    """Return the mebibytes taken from the driver and given back."""
    return [n_bytes // MIB for _, n_bytes, _ in made.changes]


def holes(pool: StreamPool) -> list[int]:
    """Lengths of the free blocks, ascending."""
    return [block.n_bytes for block in pool]


@pytest.mark.parametrize(
    ("n_bytes", "taken"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB, 12)],
)
def test_the_driver_allocates_whole_segments(n_bytes: int, taken: int) -> None:
    made, small, large = allocator()
    made.alloc(n_bytes, small if n_bytes <= MIB else large)
    assert changes(made) == [taken]


def test_a_small_block_is_split_down_to_512_bytes() -> None:
    made, small, _ = allocator()
    made.alloc(MIB, small)
    made.alloc(MIB - 512, small)
    assert holes(small) == [512]
    made.alloc(512, small)
    assert holes(small) == []
    assert changes(made) == [2]


@pytest.mark.parametrize(("asked", "left"), [(15 * MIB, []), (15 * MIB - 512, [MIB + 512])])
def test_a_large_block_is_split_if_more_than_one_mebibyte_remains(
    asked: int, left: list[int]
) -> None:
    made, _, large = allocator()
    made.free(given_to(made, 16 * MIB, large))
    made.alloc(asked, large)
    assert holes(large) == left


def test_the_smallest_sufficient_block_is_used() -> None:
    made, _, large = allocator()
    blocks = [given_to(made, size * MIB, large) for size in (40, 24, 30)]
    for block in blocks:
        made.free(block)
    assert given_to(made, 23 * MIB, large) is blocks[1]
    assert given_to(made, 25 * MIB, large).address == blocks[2].address


def test_among_equal_blocks_the_lowest_address_is_used() -> None:
    made, _, large = allocator()
    blocks = [given_to(made, 40 * MIB, large) for _ in range(3)]
    for block in blocks:
        made.free(block)
    # Long segments come at ever lower addresses.
    assert given_to(made, 40 * MIB, large) is blocks[2]


def test_free_neighbors_are_merged() -> None:
    made, _, large = allocator()
    parts = [given_to(made, size * MIB, large) for size in (3, 4, 5)]
    made.free(parts[0])
    made.free(parts[2])
    assert holes(large) == [3 * MIB, 13 * MIB]
    made.free(parts[1])
    assert holes(large) == [20 * MIB]


def test_streams_and_private_pools_do_not_share_free_blocks() -> None:
    made, _, large = allocator()
    made.free(given_to(made, 40 * MIB, large))
    made.alloc(40 * MIB, made.pool(7, is_small=False))
    made.alloc(40 * MIB, made.pool(0, is_small=False, private=1))
    assert changes(made) == [40, 40, 40]
    made.alloc(40 * MIB, large)
    assert changes(made) == [40, 40, 40]


def test_smaller_requests_do_not_use_blocks_beyond_max_split_size() -> None:
    made, _, large = allocator(LIMITED)
    made.free(given_to(made, 100 * MIB, large))
    made.alloc(98 * MIB, large)
    assert changes(made) == [100, 98]


def test_a_request_beyond_max_split_size_uses_a_slightly_larger_block_unsplit() -> None:
    made, _, large = allocator(LIMITED)
    made.free(given_to(made, 140 * MIB, large))
    # 20 MiB longer is too long, anything less is not, and nothing is split off.
    made.alloc(120 * MIB, large)
    assert changes(made) == [140, 120]
    assert given_to(made, 122 * MIB, large).n_bytes == 140 * MIB
    assert holes(large) == []


def test_a_request_of_exactly_max_split_size_does_not_split() -> None:
    made, _, large = allocator(LIMITED)
    made.free(given_to(made, 110 * MIB, large))
    assert given_to(made, 100 * MIB, large).n_bytes == 110 * MIB


def test_the_maximum_excess_of_an_unsplit_block_can_be_set() -> None:
    settings = AllocatorSettings(max_split_bytes=100 * MIB, max_rest_bytes=50 * MIB)
    made, _, large = allocator(settings)
    made.free(given_to(made, 140 * MIB, large))
    assert given_to(made, 120 * MIB, large).n_bytes == 140 * MIB


def test_smaller_blocks_are_split_regardless_of_the_limit() -> None:
    made, _, large = allocator(LIMITED)
    made.free(given_to(made, 98 * MIB, large))
    made.alloc(50 * MIB, large)
    assert holes(large) == [48 * MIB]


def test_free_segments_are_released_when_the_driver_has_no_memory() -> None:
    made, small, large = allocator(capacity_bytes=100 * MIB)
    made.free(given_to(made, 40 * MIB, large))
    made.free(given_to(made, 512, small))
    made.alloc(20 * MIB, large)
    made.free(given_to(made, 30 * MIB, made.pool(7, is_small=False)))
    # 20 MiB of the segment of 40 are in use: it stays.
    assert given_to(made, 50 * MIB, large).n_bytes == 50 * MIB
    assert changes(made) == [40, 2, 30, -2, -30, 50]
    assert made.reserved_bytes == 90 * MIB


def test_an_allocation_fails_if_releasing_segments_does_not_suffice() -> None:
    made, _, large = allocator(capacity_bytes=100 * MIB)
    made.alloc(60 * MIB, large)
    assert made.alloc(42 * MIB, large) is None
    assert made.reserved_bytes == 60 * MIB


def test_the_limit_of_the_process_applies() -> None:
    made, _, large = allocator(limit_bytes=100 * MIB)
    made.alloc(60 * MIB, large)
    assert made.alloc(42 * MIB, large) is None
    assert made.alloc(40 * MIB, large) is not None


def test_memory_of_private_pools_is_not_released() -> None:
    made, _, large = allocator(capacity_bytes=100 * MIB)
    made.free(given_to(made, 60 * MIB, made.pool(0, is_small=False, private=1)))
    assert made.alloc(60 * MIB, large) is None


def test_large_blocks_are_released_first_and_no_more_than_needed() -> None:
    made, _, large = allocator(LIMITED, capacity_bytes=600 * MIB)
    for block in [given_to(made, size * MIB, large) for size in (110, 200, 150, 40)]:
        made.free(block)
    # The shortest that makes room alone.
    made.alloc(130 * MIB, large)
    assert changes(made) == [110, 200, 150, 40, -150, 130]
    # None alone is enough: the longest first.
    made.alloc(300 * MIB, large)
    assert changes(made)[6:] == [-200, -110, 300]


def test_blocks_of_exactly_max_split_size_count_as_large() -> None:
    made, _, large = allocator(LIMITED, capacity_bytes=240 * MIB)
    for block in [given_to(made, size * MIB, large) for size in (100, 100, 40)]:
        made.free(block)
    made.alloc(200 * MIB, large)
    # Both went, and the 40 MiB did not.
    assert changes(made) == [100, 100, 40, -100, -100, 200]


def test_a_block_pending_on_another_stream_is_not_reused() -> None:
    made, _, large = allocator()
    block = given_to(made, 40 * MIB, large)
    made.defer_free(3, block)
    made.alloc(40 * MIB, large)
    assert changes(made) == [40, 40]
    made.complete_free(3)
    made.alloc(40 * MIB, large)
    assert changes(made) == [40, 40]


def test_flushing_the_cache_completes_pending_frees() -> None:
    made, _, large = allocator(capacity_bytes=60 * MIB)
    made.defer_free(3, given_to(made, 40 * MIB, large))
    made.alloc(50 * MIB, large)
    assert changes(made) == [40, -40, 50]
    # The stream itself comes too late then.
    made.complete_free(3)
    assert holes(large) == []


def test_the_longest_unused_segments_are_released_beyond_the_threshold() -> None:
    settings = AllocatorSettings(garbage_threshold=0.5)
    made, _, large = allocator(settings, limit_bytes=400 * MIB)
    for block in [given_to(made, size * MIB, large) for size in (60, 70, 80)]:
        made.free(block)
    # 80 MiB are used again and again; 210 MiB are beyond half of the limit.
    for _ in range(9):
        made.free(given_to(made, 80 * MIB, large))
    made.alloc(100 * MIB, large)
    assert changes(made) == [60, 70, 80, -60, -70, 100]


def test_equally_long_unused_segments_are_all_released() -> None:
    settings = AllocatorSettings(garbage_threshold=0.5)
    made, _, large = allocator(settings, limit_bytes=400 * MIB)
    for block in [given_to(made, size * MIB, large) for size in (100, 110)]:
        made.free(block)
    made.alloc(130 * MIB, large)
    assert made.reserved_bytes == 130 * MIB


def test_an_expandable_segment_grows_by_pages_from_its_free_end() -> None:
    made, small, large = allocator(EXPANDABLE)
    first = given_to(made, 30 * MIB, large)
    assert changes(made) == [40]
    # 10 MiB are free at the end: 50 need two pages more.
    second = given_to(made, 50 * MIB, large)
    assert changes(made) == [40, 40]
    assert second.address == first.address + 30 * MIB
    made.alloc(512, small)
    assert changes(made) == [40, 40, 2]


def test_larger_fixed_blocks_precede_blocks_that_can_grow() -> None:
    made, _, large = allocator(EXPANDABLE)
    first = given_to(made, 45 * MIB, large)
    second = given_to(made, 50 * MIB, large)
    made.free(first)
    # 5 + 20 MiB at the end would do for 4, and so would 45 MiB before them.
    assert given_to(made, 4 * MIB, large).address == first.address
    made.free(second)
    assert changes(made) == [60, 40]


def test_free_pages_are_unmapped_anywhere_and_mapped_again() -> None:
    made, _, large = allocator(EXPANDABLE)
    blocks = [given_to(made, 50 * MIB, large) for _ in range(3)]
    made.free(blocks[1])
    made.empty_cache()
    # From 60 to 100 MiB there are two whole pages; from 50 to 60 there is half a page. What is
    # behind 150 is another half.
    assert changes(made) == [60, 40, 60, -40]
    assert holes(large) == [10 * MIB, 10 * MIB]
    # The gap has the lowest address with room.
    again = given_to(made, 50 * MIB, large)
    assert again.address == blocks[0].address + 50 * MIB
    assert changes(made) == [60, 40, 60, -40, 40]


def test_an_expandable_segment_without_blocks_is_unmapped_entirely() -> None:
    made, _, large = allocator(EXPANDABLE)
    made.free(given_to(made, 50 * MIB, large))
    made.empty_cache()
    assert made.reserved_bytes == 0
    assert holes(large) == []
    assert large.unmapped == []


def test_an_expandable_segment_does_not_grow_beyond_the_capacity() -> None:
    made, _, large = allocator(EXPANDABLE, capacity_bytes=110 * MIB)
    made.alloc(70 * MIB, large)
    assert made.alloc(40 * MIB, large) is None
    assert made.alloc(30 * MIB, large) is not None
    assert made.reserved_bytes == 100 * MIB


def test_private_pools_have_no_expandable_segments() -> None:
    made, _, _ = allocator(EXPANDABLE)
    made.alloc(30 * MIB, made.pool(0, is_small=False, private=1))
    assert changes(made) == [30]


def test_an_existing_segment_is_adopted_with_its_live_and_free_blocks() -> None:
    made, _, large = allocator()
    blocks = made.adopt(large, 1000 * MIB, 40 * MIB, [(1004 * MIB, 6 * MIB), (1010 * MIB, 9 * MIB)])
    assert [(block.address, block.n_bytes) for block in blocks] == [
        (1004 * MIB, 6 * MIB),
        (1010 * MIB, 9 * MIB),
    ]
    assert holes(large) == [4 * MIB, 21 * MIB]
    made.free(blocks[0])
    assert holes(large) == [10 * MIB, 21 * MIB]
    made.free(blocks[1])
    made.empty_cache()
    assert made.reserved_bytes == 0


def test_fixed_segments_are_used_beside_expandable_ones() -> None:
    made, _, large = allocator(EXPANDABLE)
    made.adopt(large, 1000 * MIB, 40 * MIB, [])
    made.alloc(30 * MIB, large)
    assert changes(made) == []
    # With expandable segments any rest of 512 bytes is split off, wherever the block lies.
    made.alloc(10 * MIB - 512, large)
    assert holes(large) == [512]
