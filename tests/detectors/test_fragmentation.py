"""fragmentation finds free memory in blocks that no allocation fits."""

from collections.abc import Callable
from typing import Any

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "fragmentation"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def in_pieces(n: int = 20) -> SnapshotBuilder:
    """Build segments of 100 MiB that keep 20 MiB each, and then a request for 1 GiB."""
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        b.free(*[b.alloc(100 * MIB) for _ in range(n)])
        for _ in range(n):
            with b.frame("keep.py", 5, "keep"):
                b.alloc(20 * MIB)
            with b.frame("work.py", 8, "work"):
                second_block = b.alloc(80 * MIB)
            b.record_stream(second_block, 7)
            b.free(second_block)
        b.finish(7)
        with b.frame("large.py", 9, "large"):
            b.alloc(1024 * MIB)
    return b


def test_it_reports_fragmentation_lines_and_the_setting(found: Found) -> None:
    (finding,) = found(in_pieces(), RULE)

    # 20 segments of 100 MiB were reserved, and 1 GiB more although 1,600 MiB of them were free.
    assert finding.evidence["reserved_bytes"] == 3024 * MIB
    assert finding.evidence["largest_fragmented_bytes"] == 1024 * MIB
    assert finding.evidence["free_bytes"] == 1600 * MIB
    assert finding.evidence["unreleasable_bytes"] == 1600 * MIB
    # The most at once were the 2,000 MiB of the beginning, in pages of 20 MiB.
    assert finding.evidence["reserved_if_compact_bytes"] == 2000 * MIB
    assert finding.cost.bytes == 1024 * MIB
    assert finding.cost.basis == "upper-bound"
    # What stays between the pieces is what can be changed; what asks for memory is only told of.
    assert [location.place for location in finding.locations] == ["keep.py:5", "large.py:9"]
    assert "400 MiB in 20 blocks of keep.py:5 kept 1.56 GiB of free memory from" in finding.message
    # Live blocks of 20 MiB lie between the pieces whatever the setting.
    assert finding.fix == (
        "No setting would reduce the peak of 2.95 GiB reserved by much: 2.89 GiB with "
        "`expandable_segments:True` and 2.95 GiB with `max_split_size_mb:1024`. Allocate "
        "long-lived tensors before short-lived ones, and pad varying sizes to a few: without "
        "fragmentation about 1.95 GiB would be enough."
    )


def test_what_is_lost_decides_how_much_it_matters(found: Found) -> None:
    (finding,) = found(in_pieces(), RULE)
    assert finding.severity == "note"
    (finding,) = found(in_pieces(), RULE, warning_share=0.3)
    assert finding.severity == "warning"


def split_by_shorter_ones(b: SnapshotBuilder) -> SnapshotBuilder:
    """Split each block of 200 MiB by one of 120 MiB that stays."""
    for _ in range(10):
        with b.frame("train.py", 3, "main"):
            b.free(b.alloc(200 * MIB))
        with b.frame("keep.py", 5, "keep"):
            b.alloc(120 * MIB)
    return b


def test_settings_that_would_have_saved_much_are_reported_with_their_figures(found: Found) -> None:
    (finding,) = found(split_by_shorter_ones(SnapshotBuilder()), RULE)
    assert finding.fix.startswith(
        "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: with it peak reserved memory "
        "would be 1.25 GiB instead of 1.95 GiB; with `max_split_size_mb:128` 1.37 GiB."
    )

    evidence = finding.evidence
    # Less than the 800 MiB that are reserved beyond the 1,200 MiB that are allocated.
    assert (finding.cost.bytes, finding.cost.basis) == ((2000 - 1280) * MIB, "estimate")
    assert evidence["reserved_bytes"] == 2000 * MIB
    assert evidence["is_reproduced"] is True
    assert evidence["reproduced_within_bytes"] == 0
    assert evidence["best_max_split"] == "max_split_size_mb:128"

    # So they do, where they are set.
    grown = split_by_shorter_ones(SnapshotBuilder(expandable=True)).moment()
    limited = split_by_shorter_ones(SnapshotBuilder(max_split_bytes=128 * MIB)).moment()
    assert evidence["reserved_if_expandable_bytes"] == grown.reserved_bytes == 1280 * MIB
    assert evidence["reserved_if_best_max_split_bytes"] == limited.reserved_bytes == 1400 * MIB


class WithOtherSettings(SnapshotBuilder):
    """A snapshot of a program that sets something else."""

    def _settings(self) -> dict[str, Any]:
        other_settings = "pinned_use_background_threads:True,roundup_power2_divisions:[1:0,>:0]"
        return {**super()._settings(), "PYTORCH_CUDA_ALLOC_CONF": other_settings}


def test_a_new_value_of_the_variable_has_the_other_settings_of_the_program(found: Found) -> None:
    (finding,) = found(split_by_shorter_ones(WithOtherSettings()), RULE)
    assert finding.fix.startswith(
        "Set `PYTORCH_CUDA_ALLOC_CONF=pinned_use_background_threads:True,"
        "roundup_power2_divisions:[1:0,>:0],expandable_segments:True`: with it peak reserved "
        "memory would be 1.25 GiB instead of 1.95 GiB; with `max_split_size_mb:128` 1.37 GiB."
    )


def pinned_everywhere(b: SnapshotBuilder) -> SnapshotBuilder:
    """Long tensors of ever new lengths come and go, with one that stays after each of them."""
    b.free(*[b.alloc(200 * MIB) for _ in range(10)])
    for n in range(10):
        work = b.alloc((182 + n) * MIB)
        b.alloc(120 * MIB)
        b.free(work)
    b.free(*[b.alloc(200 * MIB) for _ in range(10)])
    return b


def test_a_limit_is_advised_alone_where_segments_that_grow_are_no_use(found: Found) -> None:
    (finding,) = found(pinned_everywhere(SnapshotBuilder()), RULE, min_pieces_share=0.1)
    grown = pinned_everywhere(SnapshotBuilder(expandable=True)).moment().reserved_bytes
    limited = pinned_everywhere(SnapshotBuilder(max_split_bytes=128 * MIB)).moment()
    assert finding.evidence["reserved_if_expandable_bytes"] == grown == 3540 * MIB
    assert finding.evidence["reserved_if_best_max_split_bytes"] == limited.reserved_bytes
    # The ten of 200 MiB serve what is nearly as long, and what stays has segments of its own.
    assert limited.reserved_bytes == (10 * 200 + 10 * 120) * MIB
    assert finding.fix == (
        "Set `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128`: with it peak reserved memory would "
        "be 3.12 GiB instead of 3.83 GiB. Allocate long-lived tensors before short-lived ones."
    )


class SaidToBeLimited(SnapshotBuilder):
    """A snapshot whose settings are not those that its history was recorded under."""

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "max_split_size": 64 * MIB}


def test_no_figure_is_reported_where_the_history_does_not_follow_the_rules(found: Found) -> None:
    (finding,) = found(split_by_shorter_ones(SaidToBeLimited()), RULE)
    assert finding.evidence["is_reproduced"] is False
    assert finding.evidence["reserved_if_expandable_bytes"] is None
    assert finding.evidence["best_max_split"] is None
    assert finding.fix.startswith("Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: at best")


def test_expandable_segments_fix_it(found: Found) -> None:
    b = SnapshotBuilder(expandable=True)
    with b.frame("train.py", 3, "main"):
        held = [b.alloc(100 * MIB) for _ in range(20)]
        b.free(*held)
        b.alloc(1024 * MIB)
    assert found(b, RULE) == ()
    assert b.moment().reserved_bytes == 2000 * MIB


def test_a_cache_that_was_needed_once_is_not_a_loss(found: Found) -> None:
    b = SnapshotBuilder()
    b.free(*[b.alloc(512 * MIB) for _ in range(20)])
    b.alloc(MIB)
    assert found(b, RULE) == ()


def test_what_was_reserved_before_the_history_is_not_judged(found: Found) -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.free(*[b.alloc(512 * MIB) for _ in range(20)])
    b.alloc(600 * MIB)
    assert found(b, RULE) == ()


def test_free_segments_are_reported_as_such(found: Found) -> None:
    b = SnapshotBuilder()
    b.free(*[b.alloc(100 * MIB) for _ in range(20)])
    b.alloc(1024 * MIB)
    (finding,) = found(b, RULE)
    assert "1.95 GiB of free memory was in segments without live blocks, and 0 B" in finding.message


def test_blocks_much_longer_than_their_requests_are_reported(found: Found) -> None:
    b = SnapshotBuilder()
    held = [b.alloc(16 * MIB) for _ in range(400)]
    b.free(*held)
    for _ in range(400):
        b.alloc(15 * MIB)
    # The rest of each block, 1 MiB, is not split off.
    assert found(b, RULE) == ()
    (finding,) = found(b, RULE, min_pieces_bytes=256 * MIB, min_rounding_share=0.05)
    assert finding.evidence["rounding_bytes"] == finding.cost.bytes == 400 * MIB
    assert finding.evidence["active_bytes"] == 6400 * MIB


def test_a_trace_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM011"
