"""out-of-memory explains failed allocations from the allocator's history."""

import pickle
from collections.abc import Callable
from pathlib import Path

from profkit.api import analyze
from profkit.model.device_bytes import SNAPSHOT_KEY
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "out-of-memory"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

GIB = 1 << 30


def full(total_bytes: int = 8 * GIB) -> SnapshotBuilder:
    """Activations of 6 GiB, parameters of 1 GiB, and a request of 2 GiB."""
    b = SnapshotBuilder(total_bytes=total_bytes)
    module = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
    with b.frame("/home/u/train.py", 9, "main"):
        with b.frame(module, 900, "_apply"):
            b.alloc(GIB)
        with b.frame(module, 1775, "_call_impl"), b.frame("/home/u/net.py", 30, "forward"):
            for _ in range(6):
                b.alloc(GIB)
        with b.frame("/home/u/loss.py", 4, "loss"):
            b.alloc_or_none(2 * GIB)
    return b


def test_a_full_device_is_reported_with_what_fills_it(found: Found) -> None:
    (finding,) = found(full(), RULE)
    assert finding.severity == "error"
    assert finding.evidence["reason"] == "exhaustion"
    assert finding.evidence["requested_bytes"] == 2 * GIB
    assert finding.evidence["device_free_bytes"] == GIB
    assert finding.evidence["missing_bytes"] == finding.cost.bytes == GIB
    assert finding.evidence["active_bytes"] == finding.evidence["reserved_bytes"] == 7 * GIB
    assert [location.place for location in finding.locations] == [
        "loss.py:4",
        "net.py:30",
        "train.py:9",
    ]
    assert "net.py:30 (6.00 GiB in 6 blocks, activation)" in finding.message
    assert "The device is full" in finding.message


def test_the_advice_comes_in_the_order_of_bytes(found: Found) -> None:
    (finding,) = found(full(), RULE)
    parts = finding.fix.removeprefix("By bytes: ").split("; ")
    assert [part.split(" ", 3)[:3] for part in parts] == [
        ["6.00", "GiB", "activations:"],
        ["2.00", "GiB", "loss.py:4:"],
        ["1.00", "GiB", "parameters:"],
    ]


def in_pieces() -> SnapshotBuilder:
    """Every other one of 60 blocks of 128 MiB is freed, then 1 GiB is asked for."""
    b = SnapshotBuilder(total_bytes=7680 * MIB)
    with b.frame("train.py", 7, "main"):
        # Neighbours of 64 MiB in one segment: what is freed of it cannot be given back.
        whole = [b.alloc(128 * MIB) for _ in range(60)]
        b.free(*whole)
        halves = [b.alloc(64 * MIB) for _ in range(120)]
        b.free(*halves[::2])
    with b.frame("train.py", 20, "main"):
        b.alloc_or_none(GIB)
    return b


def test_fragmentation_differs_from_a_full_device(found: Found) -> None:
    (finding,) = found(in_pieces(), RULE)
    assert finding.evidence["reason"] == "fragmentation"
    assert finding.evidence["reserved_bytes"] == 7680 * MIB
    assert finding.evidence["unreleasable_bytes"] == 60 * 64 * MIB
    assert finding.evidence["largest_usable_block_bytes"] == 64 * MIB
    assert "Free memory is fragmented" in finding.message
    assert "As one block they would have been enough." in finding.message
    # Each piece of 64 MiB has whole pages that go back to the driver.
    assert finding.evidence["fits_with"] == "expandable_segments:True"
    assert "expandable_segments:True`, with which this allocation would fit" in finding.fix


def nearly_full(max_split_bytes: int | None = None, *, expandable: bool = False) -> SnapshotBuilder:
    """Of 8 GiB 7 are in use, and 64 MiB are free beside a live block: 960 MiB do not fit."""
    b = SnapshotBuilder(total_bytes=8 * GIB, max_split_bytes=max_split_bytes, expandable=expandable)
    module = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
    with b.frame(module, 900, "_apply"):
        b.alloc(2 * GIB)
    with b.frame(module, 1775, "_call_impl"), b.frame("net.py", 30, "forward"):
        b.alloc(3 * GIB)
        b.alloc(2 * GIB)
    # Of two neighbours in one segment one goes, and leaves a piece of 64 MiB.
    b.free(b.alloc(128 * MIB))
    first, _ = b.alloc(64 * MIB), b.alloc(64 * MIB)
    b.free(first)
    with b.frame("loss.py", 4, "loss"):
        b.alloc_or_none(960 * MIB)
    return b


def test_a_setting_that_is_enough_is_named_first_however_few_its_bytes(found: Found) -> None:
    (finding,) = found(nearly_full(), RULE)

    assert finding.evidence["reason"] == "fragmentation"
    assert finding.evidence["missing_bytes"] == 64 * MIB
    assert finding.evidence["unreleasable_bytes"] == 64 * MIB
    assert finding.fix.count("; ") == 2
    # With a limit the two neighbours have segments of their own, and one of them goes back. With
    # expandable segments the live one keeps the other in place all the same.
    assert finding.fix.startswith(
        "Set `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128`, with which this allocation would "
        "fit. Otherwise, by bytes: "
    )
    assert finding.evidence["is_reproduced"] is True
    assert finding.evidence["fits_with"] == "max_split_size_mb:128"
    assert found(nearly_full(128 * MIB), RULE) == ()

    (still,) = found(nearly_full(expandable=True), RULE)
    assert still.evidence["requested_bytes"] == 960 * MIB


def test_settings_that_are_of_no_use_are_not_advised(found: Found) -> None:
    b = SnapshotBuilder(total_bytes=2 * GIB)
    # Live blocks of 18 MiB leave pieces shorter than a page between them, whatever the setting.
    held = [b.alloc(18 * MIB) for _ in range(100)]
    b.free(*held)
    halves = [b.alloc(9 * MIB) for _ in range(200)]
    b.free(*halves[::2])
    with b.frame("train.py", 20, "main"):
        b.alloc_or_none(600 * MIB)

    (finding,) = found(b, RULE)
    assert finding.evidence["reason"] == "fragmentation"
    assert finding.evidence["is_reproduced"] is True
    assert finding.evidence["fits_with"] is None
    assert (
        "As one block they would have been enough, but no allocator setting would have merged them."
        in (finding.message)
    )
    assert "fragmented: " not in finding.fix


def test_what_other_programs_hold_is_reported_as_far_as_it_is_known(found: Found) -> None:
    b = SnapshotBuilder(total_bytes=8 * GIB, outside_bytes=6 * GIB)
    b.alloc(GIB)
    b.alloc_or_none(3 * GIB)
    (finding,) = found(b, RULE)
    assert finding.evidence["device_free_bytes"] == GIB
    assert "beyond these 2.00 GiB is in use by other programs or libraries" in finding.message


def test_what_others_hold_is_reported_where_the_driver_was_asked(tmp_path: Path) -> None:
    b = SnapshotBuilder(total_bytes=8 * GIB, outside_bytes=6 * GIB)
    with b.frame("train.py", 3, "main"):
        b.alloc(GIB)
        b.alloc_or_none(3 * GIB)
    driver = {
        "device": 0,
        "total_bytes": 8 * GIB,
        "free_bytes": GIB,
        "torch_bytes": GIB,
        "process_bytes": 2 * GIB,
        "others_bytes": 5 * GIB,
    }
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps({**b.to_dict(), SNAPSHOT_KEY: {"devices": [driver]}}))

    (finding,) = analyze(path, select=[RULE], strict=True).findings
    assert finding.evidence["reason"] == "outside"
    assert finding.evidence["outside_bytes"] == 6 * GIB
    assert finding.message.endswith(
        "6.00 GiB of the device's 8.00 GiB were in use outside PyTorch: 5.00 GiB by other programs "
        "and 1.00 GiB by libraries of this program."
    )
    assert finding.fix.startswith("By bytes: 6.00 GiB outside PyTorch: check with")


def test_a_driver_with_enough_left_points_to_a_limit(found: Found) -> None:
    b = full()
    entry = b.to_dict()["device_traces"][0][-1]
    assert entry["action"] == "oom"
    (finding,) = found(_Changed(b, 3 * GIB), RULE)
    assert finding.evidence["reason"] == "limit"
    assert "set_per_process_memory_fraction" in finding.fix


class _Changed(SnapshotBuilder):
    """A snapshot whose driver had other bytes left at the request."""

    def __init__(self, built: SnapshotBuilder, device_free_bytes: int) -> None:
        self.__dict__.update(built.__dict__)
        for entry in self._entries[0]:
            if entry["action"] == "oom":
                entry["device_free"] = device_free_bytes


def test_what_is_free_in_a_graphs_pool_is_not_a_piece(found: Found) -> None:
    b = SnapshotBuilder(total_bytes=8 * GIB)
    b.free(b.alloc(3 * GIB, pool=(0, 1)))
    b.alloc(512, pool=(0, 1))
    b.alloc(4 * GIB)
    b.alloc_or_none(2 * GIB)
    (finding,) = found(b, RULE)
    assert finding.evidence["unreleasable_bytes"] == 0
    assert finding.evidence["reason"] == "exhaustion"


def test_what_was_freed_after_the_failed_request_is_counted_as_it_stood_then(found: Found) -> None:
    b = SnapshotBuilder(total_bytes=8 * GIB)
    with b.frame("train.py", 5, "main"):
        kept = [b.alloc(GIB) for _ in range(7)]
    b.alloc_or_none(2 * GIB)
    b.free(*kept)
    b.empty_cache()
    (finding,) = found(b, RULE)
    assert finding.evidence["active_bytes"] == 7 * GIB
    assert "train.py:5 (7.00 GiB in 7 blocks)" in finding.message


def test_requests_of_one_line_are_one_finding(found: Found) -> None:
    b = full()
    with b.frame("/home/u/loss.py", 4, "loss"):
        b.alloc_or_none(3 * GIB)
    (finding,) = found(b, RULE)
    assert finding.n == 2
    assert finding.evidence["requested_bytes"] == 3 * GIB


def test_a_program_that_caught_the_error_and_went_on_is_warned(found: Found) -> None:
    b = full()
    b.alloc(512)
    (finding,) = found(b, RULE)
    assert finding.severity == "warning"
    assert finding.evidence["continued"] is True


def test_a_program_with_room_is_not_reported(found: Found) -> None:
    assert found(full(total_bytes=80 * GIB), RULE) == ()


def test_a_trace_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "MEM017"
