"""allocator-churn finds steps after the first that call the driver for memory."""

import pickle
from collections.abc import Callable
from pathlib import Path

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "allocator-churn"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    calls: Callable[[int], tuple[str, ...]], *, n: int = 4, runtime: str = "cuda"
) -> TraceBuilder:
    """Build a kernel of 100 µs that the host waits for, then driver calls of 200 µs each."""
    b = TraceBuilder(stacks=True, runtime=runtime)
    for number in range(n):
        with b.step(), b.frame("train.py", 4, "main"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.advance(100_000)
            with b.frame("torch/cuda/memory.py", 180, "empty_cache"):
                for call in calls(number):
                    b.call(call, 200_000)
    return b


def test_it_costs_the_time_in_the_driver_while_the_device_is_idle(found: Found) -> None:
    (finding,) = found(training(lambda _: ("Free", "Malloc")), RULE)
    # The first step does not count; in each of the three others both calls find an idle device.
    assert finding.evidence["blocked_ns"] == 3 * 400_000
    assert finding.cost.ns == 3 * 400_000
    assert finding.cost.per_step_ns == 300_000
    assert (finding.evidence["n_allocations"], finding.evidence["n_frees"]) == (3, 3)
    assert finding.n == 6
    assert finding.locations[0].function == "main"
    assert "empty_cache" in finding.fix


def test_a_cache_that_fills_in_the_first_steps_is_not_reported(found: Found) -> None:
    assert found(training(lambda n: ("Malloc",) * 5 if n == 0 else ()), RULE) == ()
    assert found(training(lambda n: ("Malloc",) if n < 2 else ()), RULE) == ()


def test_growth_without_frees_gets_another_advice(found: Found) -> None:
    (finding,) = found(training(lambda _: ("Malloc",)), RULE)
    assert finding.evidence["n_frees"] == 0
    assert "expandable_segments" in finding.fix


def test_host_memory_is_not_the_devices(found: Found) -> None:
    assert found(training(lambda _: ("HostAlloc",)), RULE) == ()


def test_hip_is_supported_too(found: Found) -> None:
    assert len(found(training(lambda _: ("Free", "Malloc"), runtime="hip"), RULE)) == 1


def test_three_steps_are_enough(found: Found) -> None:
    assert len(found(training(lambda _: ("Free", "Malloc"), n=3), RULE)) == 1


def test_two_steps_cannot_tell(found: Found) -> None:
    assert found(training(lambda _: ("Free", "Malloc"), n=2), RULE) == ()


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "MEM002"


def nearly_full(n: int = 4, *, stacks: bool = True) -> SnapshotBuilder:
    """Two tensors in turn that do not fit beside each other's segments."""
    b = SnapshotBuilder(total_bytes=100 * MIB, with_stacks=stacks)
    for number in range(n):
        with b.frame("train.py", 5, "main"):
            b.free(b.alloc((60 + 2 * number) * MIB))
            small = b.alloc(1)
        with b.frame("train.py", 6, "main"):
            b.free(b.alloc((80 + 2 * number) * MIB), small)
    return b


def test_a_snapshot_shows_requests_that_find_no_room_again_and_again(found: Found) -> None:
    (finding,) = found(nearly_full(), RULE)
    # Each first tensor but one finds room in the segment of the second before it; no second does.
    assert finding.n == 4
    assert finding.evidence["given_back_bytes"] == (60 + 80 + 82 + 84) * MIB
    assert finding.evidence["reallocated_bytes"] == (60 + 80 + 82 + 84) * MIB
    assert finding.severity == "warning"
    assert finding.cost.bytes is None, "no memory is saved: the same is reserved again"
    assert [location.place for location in finding.locations] == ["train.py:6"]
    assert "smaller batch" in finding.fix


def test_a_snapshot_without_stacks_shows_them_too(found: Found) -> None:
    (finding,) = found(nearly_full(stacks=False), RULE)
    assert finding.n == 4


def test_a_snapshot_in_which_it_happens_once_is_not_reported(found: Found) -> None:
    assert found(nearly_full(1), RULE) == ()


def test_a_threshold_of_the_programs_own_is_named(tmp_path: Path) -> None:
    whole = nearly_full().to_dict()
    whole["allocator_settings"]["garbage_collection_threshold"] = 0.6
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(whole))
    (finding,) = analyze(path, select=[RULE], strict=True).findings
    assert "within `garbage_collection_threshold` (0.6)" in finding.message
    assert "garbage_collection_threshold" in finding.fix
