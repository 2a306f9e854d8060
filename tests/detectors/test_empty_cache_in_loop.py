"""empty-cache-in-loop finds a cache that is emptied and refilled repeatedly."""

from collections.abc import Callable
from pathlib import Path

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "empty-cache-in-loop"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(n: int = 5, *, empties: bool = True, stacks: bool = True) -> SnapshotBuilder:
    """Steps with two temporary tensors in segments of their own."""
    b = SnapshotBuilder(with_stacks=stacks)
    with b.frame("train.py", 3, "main"):
        b.alloc(64 * MIB)
        for _ in range(n):
            with b.frame("net.py", 8, "forward"):
                held = [b.alloc(30 * MIB), b.alloc(50 * MIB)]
            b.free(*held)
            if empties:
                with b.frame("train.py", 9, "main"):
                    b.empty_cache()
    return b


def test_it_reports_the_line_and_the_re_allocated_memory(found: Found) -> None:
    (finding,) = found(training(), RULE)
    # The last of the five is not followed by another step.
    assert finding.n == 4
    assert finding.evidence["freed_bytes"] == 4 * 80 * MIB
    assert finding.evidence["reallocated_bytes"] == 4 * 80 * MIB
    assert finding.cost.bytes == 80 * MIB, "the same memory each time"
    assert finding.evidence["n_driver_frees"] == finding.evidence["n_driver_allocations"] == 8
    assert (finding.severity, finding.confidence) == ("warning", "high")
    assert [location.place for location in finding.locations] == ["train.py:9"]
    assert "`torch.cuda.empty_cache()` at train.py:9" in finding.message


def test_once_in_a_long_while_is_worth_a_note(found: Found) -> None:
    (finding,) = found(training(), RULE, driver_call_ns=1)
    # Ten microseconds an entry lie between, and 16 calls of the driver of a nanosecond each.
    assert finding.severity == "note"


def test_where_times_were_not_kept_it_may_be_often(tmp_path: Path) -> None:
    path = training().write(tmp_path / "s.pickle", "2.0")
    changed = {RULE: {"driver_call_ns": 1}}
    (finding,) = analyze(path, select=[RULE], thresholds=changed, strict=True).findings
    assert finding.severity == "warning"


def test_the_fixed_program_has_no_finding(found: Found) -> None:
    assert found(training(empties=False), RULE) == ()


def test_now_and_then_is_not_a_loop(found: Found) -> None:
    assert found(training(3), RULE) == ()
    assert len(found(training(3), RULE, min_flushes_count=2)) == 1


def test_what_nobody_asks_for_again_was_rightly_given_back(found: Found) -> None:
    b = SnapshotBuilder()
    for n in range(8):
        b.free(b.alloc((90 - 10 * n) * MIB))
        b.empty_cache()
        b.alloc(1)
    assert found(b, RULE, min_again_share=0.9) == ()


def test_without_stacks_the_confidence_is_lower(found: Found) -> None:
    (finding,) = found(training(stacks=False), RULE)
    assert finding.confidence == "medium"
    assert finding.locations == ()


def test_an_allocator_that_finds_no_room_is_reported_by_another_rule_matter(found: Found) -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    for _ in range(5):
        b.free(b.alloc(60 * MIB))
        b.free(b.alloc(80 * MIB))
        b.free(b.alloc(90 * MIB))
    assert found(b, RULE) == ()


def test_a_trace_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM012"
