"""Whatever is asked of the model, blocks tile segments, and none is given away twice."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from profkit.index.snapshot.allocator.blocks import Block
from profkit.index.snapshot.allocator.caching import CachingAllocator
from profkit.index.snapshot.allocator.settings import AllocatorSettings

MIB = 1 << 20


class Watched(CachingAllocator):
    """Knows which blocks still wait for another stream: none once the cache went back."""

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None) -> None:
        super().__init__(settings, capacity_bytes)
        self.waiting: dict[int, Block] = {}

    def empty_cache(self) -> None:
        self.waiting.clear()
        super().empty_cache()


def chain(block: Block) -> Iterator[Block]:
    """All parts of a block's segment, by address."""
    while block.before is not None:
        block = block.before
    current: Block | None = block
    while current is not None:
        yield current
        current = current.after


programs = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "alloc", "free", "free", "wait", "done", "empty"]),
        st.integers(0, 1 << 30),
    ),
    max_size=120,
)
SIZES = (512, 1024, MIB, MIB + 512, 3 * MIB, 12 * MIB, 21 * MIB, 64 * MIB, 90 * MIB, 130 * MIB)


@with_settings(max_examples=200, deadline=None)
@given(
    program=programs,
    limit=st.sampled_from([None, 32 * MIB, 100 * MIB]),
    expandable=st.booleans(),
    room=st.sampled_from([None, 300 * MIB, 600 * MIB]),
)
def test_blocks_tile_segments_without_overlap(
    program: list[tuple[str, int]],
    limit: int | None,
    expandable: bool,  # noqa: FBT001
    room: int | None,
) -> None:
    settings = AllocatorSettings(max_split_bytes=limit, expandable=expandable)
    made = Watched(settings, room)
    small, large = made.pool(0, is_small=True), made.pool(0, is_small=False)
    live: dict[Block, int] = {}
    waiting = made.waiting

    for number, (what, choice) in enumerate(program):
        if what == "alloc":
            n_bytes = SIZES[choice % len(SIZES)]
            block = made.alloc(n_bytes, small if n_bytes <= MIB else large)
            if block is not None:
                assert block not in live
                assert block not in waiting.values()
                live[block] = n_bytes
        elif what == "free" and live:
            block = list(live)[choice % len(live)]
            del live[block]
            made.free(block)
        elif what == "wait" and live:
            block = list(live)[choice % len(live)]
            del live[block]
            waiting[number] = block
            made.defer_free(number, block)
        elif what == "done" and waiting:
            request = list(waiting)[choice % len(waiting)]
            del waiting[request]
            made.complete_free(request)
        elif what == "empty":
            made.empty_cache()
        _check_blocks(made, [*small, *large], live, list(waiting.values()))


def _check_blocks(
    made: CachingAllocator, free: list[Block], live: dict[Block, int], waiting: list[Block]
) -> None:
    used = [*live, *waiting]
    assert all(block.n_bytes >= n_bytes for block, n_bytes in live.items())

    # What is reserved is in use or free, and it is what came from the driver.
    total = sum(block.n_bytes for block in (*used, *free))
    assert total == made.reserved_bytes == sum(n_bytes for _, n_bytes, _ in made.changes)
    assert made.capacity_bytes is None or made.reserved_bytes <= made.capacity_bytes
    assert not any(block.is_free for block in used)

    for block in (*used, *free):
        parts = list(chain(block))
        for part, following in pairwise(parts):
            assert part.address + part.n_bytes == following.address
            assert following.before is part
            # Two free neighbours would have become one.
            assert not (
                part.is_free and following.is_free and part.is_mapped == following.is_mapped
            )
