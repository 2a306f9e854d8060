"""What a program asked for is told from what the allocator did about it."""

from typing import Any

from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.simulate import RequestKind, Requests, simulate
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB
from tests.index.snapshots import memories


def requests(b: SnapshotBuilder, whole: Any = None) -> Requests:  # noqa: ANN401
    (memory,) = memories(b, whole)
    requests = memory.what_if.recorded.requests
    assert requests is not None
    return requests


def done(found: Requests) -> list[tuple[str, int]]:
    """Return the driver's calls, with the mebibytes that the request asked for."""
    return [
        (RequestKind(kind).name, 0 if which < 0 else int(found.n_bytes[which]) // MIB)
        for kind, which in zip(found.kind.tolist(), found.which.tolist(), strict=True)
    ]


def test_segments_are_not_requests_of_the_program() -> None:
    b = SnapshotBuilder()
    block = b.alloc(30 * MIB)
    b.alloc(40 * MIB)
    b.free(block)
    assert done(requests(b)) == [("ALLOC", 30), ("ALLOC", 40), ("FREE", 30)]


def test_empty_cache_is_a_request_and_a_flush_for_a_retry_is_not() -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    with b.frame("train.py", 3, "main"):
        b.free(b.alloc(60 * MIB))
        b.empty_cache()
        b.free(b.alloc(60 * MIB))
        b.alloc(50 * MIB)
    assert done(requests(b)) == [
        ("ALLOC", 60),
        ("FREE", 60),
        ("EMPTY", 0),
        ("ALLOC", 60),
        ("FREE", 60),
        ("ALLOC", 50),
    ]


def test_a_failed_allocation_is_a_request() -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    b.alloc(60 * MIB)
    b.alloc_or_none(50 * MIB)
    b.alloc(20 * MIB)
    assert done(requests(b)) == [("ALLOC", 60), ("TRY", 50), ("ALLOC", 20)]


def test_a_free_pending_on_another_stream_is_two_actions() -> None:
    b = SnapshotBuilder()
    block = b.alloc(30 * MIB)
    b.record_stream(block, 7)
    b.free(block)
    b.alloc(40 * MIB)
    b.finish(7)
    assert done(requests(b)) == [("ALLOC", 30), ("PENDING_FREE", 30), ("ALLOC", 40), ("FREE", 30)]


def test_frees_completed_by_a_retry_follow_its_request() -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    with b.frame("train.py", 3, "main"):
        block = b.alloc(60 * MIB)
        b.record_stream(block, 7)
        b.free(block)
    with b.frame("train.py", 4, "main"):
        b.alloc(50 * MIB)
    requests_made = requests(b)
    assert done(requests_made) == [("ALLOC", 60), ("PENDING_FREE", 60), ("ALLOC", 50), ("FREE", 60)]
    # With more room the allocator would not have waited, and the stream is done later.
    assert simulate(requests_made, AllocatorSettings(), 100 * MIB).peak_bytes == 60 * MIB
    assert simulate(requests_made, AllocatorSettings(), 200 * MIB).peak_bytes == 110 * MIB


def test_blocks_pending_at_the_end_were_freed() -> None:
    b = SnapshotBuilder()
    block = b.alloc(30 * MIB)
    b.record_stream(block, 7)
    b.free(block)
    assert done(requests(b)) == [("ALLOC", 30), ("PENDING_FREE", 30)]


def test_without_recorded_completions_requested_frees_are_used() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(30 * MIB))
    b.alloc(25 * MIB)
    whole = b.to_dict()
    whole["device_traces"][0] = [
        entry for entry in whole["device_traces"][0] if entry["action"] != "free_completed"
    ]
    assert done(requests(b, whole)) == [("ALLOC", 30), ("FREE", 30), ("ALLOC", 25)]


def test_blocks_from_before_a_truncated_history_are_initial_requests() -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        first = b.alloc(30 * MIB, stream=3)
        b.alloc(5 * MIB)
        small = b.alloc(512)
        waiting = b.alloc(40 * MIB)
        b.record_stream(waiting, 7)
    b.free(first, waiting)
    b.alloc(25 * MIB, stream=3)
    b.finish(7)
    b.free(small)

    requests_made = requests(b)
    assert done(requests_made) == [
        ("FREE", 30),
        ("PENDING_FREE", 40),
        ("ALLOC", 25),
        ("FREE", 40),
        ("FREE", 0),
    ]
    assert sorted(requests_made.begin.n_bytes.tolist()) == [2 * MIB, 20 * MIB, 30 * MIB, 40 * MIB]
    assert sorted(requests_made.begin.block_bytes.tolist()) == [512, 5 * MIB, 30 * MIB, 40 * MIB]
    # The 30 MiB of the stream serve it again.
    assert simulate(requests_made, AllocatorSettings()).change_bytes.tolist() == []


def test_requests_of_a_private_pool_use_it() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(30 * MIB, pool=(0, 1)))
    b.alloc(30 * MIB)
    b.alloc(28 * MIB, pool=(0, 1))
    requests_made = requests(b)
    assert requests_made.private.tolist() == [1, 0, 1]
    course = simulate(requests_made, AllocatorSettings())
    # What is reserved for graphs is not the cache that settings are judged by.
    assert course.change_bytes.tolist() == [30 * MIB]


def test_small_and_large_requests_can_be_simulated_separately() -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(512)
        b.alloc(5 * MIB)
    b.alloc(MIB)
    b.alloc(30 * MIB)
    b.free(b.alloc(512))
    b.empty_cache()
    requests_made = requests(b)
    small = simulate(requests_made, AllocatorSettings(), pool_size="small")
    large = simulate(requests_made, AllocatorSettings(), pool_size="large")
    assert (small.begin_bytes, small.peak_bytes) == (2 * MIB, 2 * MIB)
    assert (large.begin_bytes, large.peak_bytes) == (20 * MIB, 50 * MIB)
    assert simulate(requests_made, AllocatorSettings()).peak_bytes == 52 * MIB
