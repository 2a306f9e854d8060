"""SnapshotBuilder behaves as torch's caching allocator, and writes the same snapshots."""

import gzip
import pickle
from pathlib import Path

import pytest

from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, OutOfDeviceMemoryError, segment_bytes

GIB = 1 << 30


def actions(b: SnapshotBuilder, device: int = 0) -> list[str]:
    return [entry["action"] for entry in b.to_dict()["device_traces"][device]]


@pytest.mark.parametrize(
    ("requested", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_have_the_sizes_that_torch_requests(requested: int, segment: int) -> None:
    assert segment_bytes(requested) == segment


def test_small_requests_share_a_segment_and_are_rounded_to_512_bytes() -> None:
    b = SnapshotBuilder()
    b.alloc(1)
    b.alloc(513)
    (segment,) = b.to_dict()["segments"]
    assert segment["segment_type"] == "small"
    assert segment["total_size"] == 2 * MIB
    assert segment["allocated_size"] == 512 + 1024
    assert [block["size"] for block in segment["blocks"]] == [512, 1024, 2 * MIB - 1536]
    assert [block["requested_size"] for block in segment["blocks"]] == [1, 513, 0]


def test_freed_neighbours_merge_and_are_reused() -> None:
    b = SnapshotBuilder()
    first, second, third = b.alloc(3 * MIB), b.alloc(4 * MIB), b.alloc(5 * MIB)
    b.free(first, second)
    assert b.moment().holes[0] == (first.address, 7 * MIB)
    assert b.alloc(7 * MIB).address == first.address
    b.free(third)
    assert b.moment().reserved_bytes == 20 * MIB


def test_a_large_block_is_not_split_for_a_remainder_of_1_mib_or_less() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(16 * MIB))
    block = b.alloc(15 * MIB)
    assert block.n_bytes == 16 * MIB
    assert block.requested_bytes == 15 * MIB


def test_streams_and_private_pools_do_not_share_memory() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(12 * MIB))
    b.alloc(12 * MIB, stream=7)
    b.alloc(12 * MIB, pool=(0, 1))
    assert b.moment().reserved_bytes == 36 * MIB
    assert [s["segment_pool_id"] for s in b.to_dict()["segments"]] == [(0, 0), (0, 0), (0, 1)]


def test_a_freed_block_stays_active_until_other_streams_have_finished() -> None:
    b = SnapshotBuilder()
    block = b.alloc(12 * MIB)
    b.record_stream(block, 7)
    b.free(block)
    assert block.state == "active_pending_free"
    assert actions(b) == ["segment_alloc", "alloc", "free_requested"]
    assert b.moment().active_bytes == 12 * MIB
    b.finish(7)
    assert actions(b)[-1] == "free_completed"
    assert b.moment().active_bytes == 0


def test_empty_cache_releases_only_whole_segments() -> None:
    b = SnapshotBuilder()
    b.alloc(3 * MIB)
    b.free(b.alloc(3 * MIB), b.alloc(30 * MIB))
    b.empty_cache()
    assert b.moment().reserved_bytes == 20 * MIB
    assert actions(b)[-1] == "segment_free"
    (entry,) = [e for e in b.to_dict()["device_traces"][0] if e["action"] == "segment_free"]
    assert entry["frames"][0]["name"] == "empty_cache"


def test_the_cache_is_released_before_an_allocation_fails() -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB, outside_bytes=20 * MIB)
    b.free(b.alloc(50 * MIB))
    b.alloc(60 * MIB)
    assert actions(b)[-3:] == ["segment_free", "segment_alloc", "alloc"]
    with pytest.raises(OutOfDeviceMemoryError):
        b.alloc(30 * MIB)
    last = b.to_dict()["device_traces"][0][-1]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 30 * MIB, 20 * MIB)
    assert "addr" not in last


def test_expandable_segments_grow_and_shrink_by_pages() -> None:
    b = SnapshotBuilder(expandable=True)
    first, second = b.alloc(15 * MIB), b.alloc(15 * MIB)
    assert actions(b) == ["segment_map", "alloc", "segment_map", "alloc"]
    (segment,) = b.to_dict()["segments"]
    assert segment["is_expandable"]
    assert segment["total_size"] == 40 * MIB
    b.free(second)
    b.empty_cache()
    assert b.moment().reserved_bytes == 20 * MIB
    b.free(first)
    b.empty_cache()
    assert b.to_dict()["segments"] == []


def test_a_block_above_max_split_size_is_not_used_for_a_smaller_request() -> None:
    b = SnapshotBuilder(max_split_bytes=64 * MIB)
    b.free(b.alloc(100 * MIB))
    b.alloc(32 * MIB)
    assert b.moment().reserved_bytes == 132 * MIB
    b.alloc(90 * MIB)
    assert b.moment().reserved_bytes == 132 * MIB


def test_the_history_has_the_latest_entries_and_earlier_blocks_have_no_stack() -> None:
    b = SnapshotBuilder(max_entries=2)
    with b.frame("train.py", 3, "main"):
        with b.unrecorded():
            b.alloc(1)
        for _ in range(3):
            b.alloc(1)
    assert actions(b) == ["alloc", "alloc"]
    frames = [block[3] for block in b.moment().blocks]
    assert frames == [(), *[(("train.py", 3, "main"),)] * 3]


def test_layouts_follow_the_versions_of_torch() -> None:
    b = SnapshotBuilder()
    with b.region("step"), b.frame("train.py", 3, "main"):
        b.alloc(5)
    oldest = b.to_dict("segments")
    assert type(oldest) is list
    assert oldest[0]["blocks"][0]["history"][0]["real_size"] == 5
    assert "address" not in oldest[0]["blocks"][0]
    assert set(b.to_dict("2.0")) == {"segments", "device_traces"}
    assert "time_us" not in b.to_dict("2.0")["device_traces"][0][0]
    assert set(b.to_dict("2.3")) == {"segments", "device_traces", "allocator_settings"}
    notes = b.to_dict("2.8")["external_annotations"]
    assert [(note["name"], note["stage"]) for note in notes] == [("step", "START"), ("step", "END")]


def test_it_is_written_as_a_pickle_of_protocol_4_also_compressed(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    b.alloc(5)
    plain = b.write(tmp_path / "a.pickle").read_bytes()
    assert plain[:2] == b"\x80\x04"
    assert pickle.loads(plain) == b.to_dict()  # noqa: S301  (our own)
    assert gzip.decompress(b.write(tmp_path / "a.pickle.gz").read_bytes()) == plain
