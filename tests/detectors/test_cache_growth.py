"""cache-growth finds reserved memory that grows while allocated memory does not, and its cause."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "cache-growth"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def fenced(n_cycles: int = 70, *, max_split_bytes: int | None = 64 * MIB) -> SnapshotBuilder:
    """Build the case of pytorch #193400.

    Each cycle fills a stretch of 200 MiB of an expandable segment with tensors below
    ``max_split_size``, puts a tensor of 2 MiB behind it that stays, and frees the stretch. It
    merges to a block beyond ``max_split_size``, which no such tensor may have again, and behind
    the fence it is not what the segment grows from.
    """
    b = SnapshotBuilder(expandable=True, max_split_bytes=max_split_bytes)
    with b.frame("train.py", 30, "main"):
        with b.frame("model.py", 4, "weights"):
            b.alloc(126 * MIB)
        for _ in range(n_cycles):
            with b.frame("model.py", 9, "work"):
                held = [b.alloc(50 * MIB) for _ in range(4)]
            with b.frame("train.py", 31, "main"):
                b.alloc(2 * MIB)
            b.free(*held)
    return b


def test_a_live_block_that_fences_free_memory_is_named(found: Found) -> None:
    b = fenced()
    moment = b.moment()
    assert moment.active_bytes == (126 + 70 * 2) * MIB == 266 * MIB
    assert moment.reserved_bytes >= 14_060 * MIB

    (finding,) = found(b, RULE)
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert finding.evidence["reserved_bytes"] == moment.reserved_bytes
    assert finding.evidence["active_bytes"] == (126 + 69 * 2 + 200 + 2) * MIB
    assert finding.locations[0].place == "train.py:31"
    assert "blocks of train.py:31" in finding.message

    without = fenced(max_split_bytes=None).moment().reserved_bytes
    assert finding.evidence["is_reproduced"] is True
    assert finding.evidence["reserved_if_expandable_bytes"] == without
    assert finding.fix.startswith(
        "Remove `max_split_size_mb` (64.0 MiB here) from `PYTORCH_CUDA_ALLOC_CONF`: without it "
        "peak reserved memory would be 480 MiB instead of 13.9 GiB."
    )
    assert finding.cost.bytes is not None
    assert 10_000 * MIB < finding.cost.bytes < moment.reserved_bytes


def test_it_is_reported_once(found: Found) -> None:
    assert len(found(fenced(), RULE)) == 1
    assert found(fenced(), "fragmentation") == ()


def test_without_the_limit_the_memory_is_used_again(found: Found) -> None:
    b = fenced(max_split_bytes=None)
    assert b.moment().reserved_bytes < 500 * MIB
    assert found(b, RULE) == ()


def test_ever_new_sizes_with_small_tensors_that_stay_grow_the_cache(found: Found) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 8, "main"):
        for n in range(40):
            with b.frame("net.py", 3, "forward"):
                work = b.alloc((100 + 10 * n) * MIB)
            b.free(work)
            with b.frame("keep.py", 5, "keep"):
                b.alloc(12 * MIB)
    (finding,) = found(b, RULE)
    assert finding.locations[0].place == "keep.py:5"
    assert finding.fix.startswith(
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: with it peak reserved memory "
        "would be 960 MiB instead of 11.5 GiB."
    )


def test_streams_with_their_own_caches_differ_from_fragmentation(found: Found) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 8, "main"):
        for stream in range(40):
            b.free(b.alloc(64 * MIB, stream=stream))
    (finding,) = found(b, RULE)
    assert finding.confidence == "medium"
    assert "40 pools" in finding.message
    assert "stream" in finding.fix
    assert finding.evidence["active_rise_bytes"] == 0


def test_the_pools_of_graphs_are_not_a_cache(found: Found) -> None:
    b = SnapshotBuilder()
    b.alloc(64 * MIB)
    for _ in range(40):
        # What a capture frees stays in the graph's pool, which writes there at each replay.
        b.free(b.alloc(100 * MIB, pool=(0, 1)), b.alloc(300 * MIB, pool=(0, 1)))
        b.alloc(70 * MIB, pool=(0, 1))
        b.free(b.alloc(5 * MIB))
    assert found(b, RULE) == ()
    assert found(b, "fragmentation") == ()


def test_a_cache_that_fills_at_first_is_not_reported(found: Found) -> None:
    b = SnapshotBuilder()
    for _ in range(40):
        b.free(*[b.alloc(size * MIB) for size in (300, 200, 500)])
    assert found(b, RULE) == ()


def test_a_program_that_needs_more_is_not_reported(found: Found) -> None:
    b = SnapshotBuilder()
    for _ in range(40):
        b.alloc(300 * MIB)
        b.free(b.alloc(200 * MIB))
    assert found(b, RULE) == ()


def test_one_larger_batch_is_not_growth(found: Found) -> None:
    b = SnapshotBuilder()
    for n in range(40):
        b.free(*[b.alloc((900 if n == 30 else 300) * MIB) for _ in range(2)])
    assert found(b, RULE) == ()


def test_a_trace_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM010"


def test_a_snapshot_without_history_is_skipped(analyzed: Analyzed) -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(MIB)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert "history" in unchecked.reason
