"""odd-snapshot reports what is inconsistent or missing in a snapshot."""

import pickle
from collections.abc import Callable
from pathlib import Path

from profkit.api import analyze
from profkit.model.device_bytes import SNAPSHOT_KEY
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import SnapshotBuilder, TraceBuilder
from profkit.testing.reference_allocator import MIB

RULE = "odd-snapshot"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def program(max_entries: int = 1000) -> SnapshotBuilder:
    b = SnapshotBuilder(max_entries=max_entries)
    with b.frame("train.py", 3, "main"):
        for _ in range(10):
            b.free(b.alloc(8 * MIB))
            b.alloc(3 * MIB)
    return b


def test_a_whole_snapshot_is_not_reported(found: Found) -> None:
    assert found(program(), RULE) == ()


def test_segments_that_are_not_the_sum_of_their_blocks_are_reported(tmp_path: Path) -> None:
    whole = program().to_dict()
    whole["segments"][0]["allocated_size"] += 512
    whole["segments"][1]["blocks"].append("no block")
    whole["segments"][1]["blocks"][0]["requested_size"] = 90 * MIB
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(whole, protocol=4))
    (finding,) = analyze(path, select=[RULE], strict=True).health
    assert finding.severity == "warning"
    assert finding.evidence == {"n_odd_segments": 1, "n_skipped": 1, "n_short_blocks": 1}


def test_a_history_without_segments_is_reported_where_more_was_in_use_than_reserved(
    tmp_path: Path,
) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        b.alloc(30 * MIB)
        b.free(b.alloc(100 * MIB), b.alloc(50 * MIB))
        b.empty_cache()
    whole = b.to_dict()
    for trace in whole["device_traces"]:
        trace[:] = [entry for entry in trace if not entry["action"].startswith("segment")]
    path = tmp_path / "skipped.pickle"
    path.write_bytes(pickle.dumps(whole, protocol=4))

    (finding,) = analyze(path, select=[RULE], strict=True).health
    assert finding.severity == "warning"
    # 180 MiB at once; of these only the segment of 30 MiB still stands.
    assert finding.evidence == {"device": "cuda:0", "beyond_bytes": 150 * MIB, "entry": 3}
    assert "180 MiB are active but only 30.0 MiB reserved" in finding.message


def test_frees_that_only_wait_are_not_a_contradiction(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        lent = b.alloc(30 * MIB)
        b.record_stream(lent, 7)
        b.free(lent, b.alloc(50 * MIB))
    whole = b.to_dict()
    for trace in whole["device_traces"]:
        trace[:] = [entry for entry in trace if entry["action"] != "free_completed"]
    path = tmp_path / "waits.pickle"
    path.write_bytes(pickle.dumps(whole, protocol=4))
    assert analyze(path, select=[RULE], strict=True).health == ()


def test_a_history_buffer_that_overflowed_is_found_by_blocks_without_entry(found: Found) -> None:
    (finding,) = found(program(max_entries=12), RULE)
    assert finding.severity == "note"
    # Each turn has four or five entries; three blocks of the ten are among the last twelve.
    assert finding.n == 7
    assert finding.evidence["n_bytes"] == 7 * 3 * MIB
    assert "max_entries" in finding.fix
    assert "before the history begins, which still has 12 entries: " in finding.message


def test_a_history_of_one_entry_is_named_in_the_singular(found: Found) -> None:
    (finding,) = found(program(max_entries=1), RULE)
    assert "which still has 1 entry: the history buffer overflowed" in finding.message


def test_a_history_that_profkit_began_anew_is_whole(tmp_path: Path) -> None:
    driver = {"device": 0, "total_bytes": 1 << 30, "free_bytes": 1, "torch_bytes": 1}
    whole = {**program(max_entries=12).to_dict(), SNAPSHOT_KEY: {"devices": [driver]}}
    path = tmp_path / "own.pickle"
    path.write_bytes(pickle.dumps(whole))
    assert analyze(path, select=[RULE], strict=True).health == ()


def test_what_was_allocated_before_recording_is_not_lost(found: Found) -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(30 * MIB)
    with b.frame("train.py", 3, "main"):
        b.alloc(3 * MIB)
    assert found(b, RULE) == ()


def test_memory_without_stacks_is_reported(found: Found) -> None:
    b = SnapshotBuilder(with_stacks=False)
    b.alloc(30 * MIB)
    (finding,) = found(b, RULE)
    assert finding.severity == "note"
    assert finding.evidence == {"without_stack_bytes": 30 * MIB, "active_bytes": 30 * MIB}


def test_a_snapshot_without_history_and_stacks_is_reported(found: Found) -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(30 * MIB)
    (finding,) = found(b, RULE)
    assert "their source lines are unknown" in finding.message


def test_an_empty_device_lacks_nothing(found: Found) -> None:
    assert found(SnapshotBuilder(), RULE) == ()


def test_a_trace_is_unchecked(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "PRF007"
