"""Real snapshots of other people: every figure as a slow, independent program worked it out."""

import functools
import gzip
import itertools
import operator
import pickle
from typing import Any

import numpy as np
import pytest

from profkit.analysis.options import AnalysisOptions
from profkit.api import AnalysisResult, study
from profkit.engine.context import Context
from profkit.model.report import Report
from tests.corpus.recordings import SNAPSHOTS, expected_figures, needs_corpus

SAME = (
    "n_segments",
    "n_blocks",
    "reserved_bytes",
    "allocated_bytes",
    "active_bytes",
    "inactive_bytes",
    "largest_free_block_bytes",
    "n_trace_events",
    "n_live_from_window",
    "live_from_window_bytes",
    "n_frees_of_earlier",
)
RANKS = [f"cornell-sysphotonics-rank{rank}-memory-snapshot.pickle.gz" for rank in range(4)]

EXPECTED = expected_figures("snapshot")
each_snapshot = pytest.mark.parametrize(
    "expected", EXPECTED, ids=[entry["file"].removesuffix(".pickle.gz") for entry in EXPECTED]
)


@functools.cache
def studied(file: str) -> AnalysisResult:
    return study(SNAPSHOTS / file, AnalysisOptions(strict=True))


def report_of(file: str) -> Report:
    return studied(file).report


def load_context(file: str) -> Context:
    return studied(file).recording.context


@needs_corpus
def test_the_corpus_lists_every_snapshot_in_its_folder() -> None:
    listed = {entry["file"] for entry in EXPECTED}
    assert listed == {path.name for path in SNAPSHOTS.iterdir()}


@needs_corpus
@each_snapshot
def test_figures_agree_to_the_byte(expected: dict[str, Any]) -> None:
    memory = report_of(expected["file"]).summary.memory
    assert memory is not None
    device_of = {device.device.partition(":")[2]: device for device in memory.devices}
    assert set(device_of) == set(expected["devices"])
    for ordinal, figures in expected["devices"].items():
        device = device_of[ordinal]
        assert {key: getattr(device, key) for key in SAME} == {key: figures[key] for key in SAME}
        assert device.peak_active_bytes == figures["window_peak_active_bytes"]
        ooms = [(failure.bytes, failure.device_free_bytes) for failure in device.oom]
        assert ooms == [(failure["size"], failure["device_free"]) for failure in figures["oom"]]


@needs_corpus
@each_snapshot
def test_live_blocks_at_the_peak_and_the_end_add_up(expected: dict[str, Any]) -> None:
    for memory in load_context(expected["file"]).device_memories:
        replay = memory.replay
        in_the_end = memory.sites_at(replay.end)
        assert int(in_the_end.n_bytes.sum()) == int(replay.active_bytes[-1])
        at_peak = memory.sites_at(replay.peak)
        highest = replay.active_bytes.max() if replay.has_peak else replay.active_bytes[-1]
        assert int(at_peak.n_bytes.sum()) == int(highest)


@pytest.mark.slow
@needs_corpus
@each_snapshot
def test_active_bytes_never_exceed_reserved_bytes(expected: dict[str, Any]) -> None:
    for memory in load_context(expected["file"]).device_memories:
        # A file whose blocks do not even add up to their segments is told as odd.
        if not memory.snapshot.notes.n_inconsistent_segments:
            assert (memory.replay.active_bytes <= memory.replay.reserved_bytes).all()


@needs_corpus
@each_snapshot
def test_free_memory_is_releasable_or_unreleasable(expected: dict[str, Any]) -> None:
    memory = report_of(expected["file"]).summary.memory
    assert memory is not None
    for device in memory.devices:
        assert device.private_free_bytes == 0
        assert device.releasable_bytes + device.unreleasable_bytes == device.inactive_bytes
    for device_memory in load_context(expected["file"]).device_memories:
        assert (
            int(device_memory.segment_map.unreleasable_by_block.sum())
            == device_memory.segment_map.unreleasable_bytes
        )


@pytest.mark.slow
@needs_corpus
@each_snapshot
def test_the_segment_map_before_the_first_entry_is_consistent(
    expected: dict[str, Any],
) -> None:
    for device in load_context(expected["file"]).device_memories:
        if device.snapshot.notes.n_inconsistent_segments or not device.replay.end:
            continue
        for place in np.linspace(0, device.replay.end, 9).astype(int).tolist():
            segments = device.segment_map_at(place)
            free = int(segments.segment_bytes.sum() - segments.block_bytes.sum())
            assert int(segments.free_bytes.sum()) == free
            assert int(segments.segment_bytes.sum()) == int(device.replay.reserved_bytes[place])


@needs_corpus
@pytest.mark.parametrize("file", RANKS, ids=lambda name: name.split("-")[2])
def test_the_ranks_that_ran_out_of_memory_are_explained(file: str) -> None:
    report = report_of(file)
    memory = report.summary.memory
    assert memory is not None
    (device,) = memory.devices

    (oom,) = device.oom
    assert (oom.bytes, oom.device_free_bytes) == (4_202_692_608, 4_028_760_064)
    assert oom.reserved_bytes == 37_073_453_056
    assert oom.missing_bytes == 4_202_692_608 - 4_028_760_064
    # 166 MiB were missing, and 807 MiB were free in separate blocks.
    assert oom.reason == "fragmentation"
    assert oom.location is not None
    assert oom.location.place == "loss.py:21"
    # Two lines of the feed-forward's forward pass, 32 layers of 224 MiB each.
    assert (oom.sites[0].location.place, oom.sites[0].category) == ("model.py:340", "activation")
    assert oom.sites[0].n == 64
    assert oom.sites[0].bytes == 64 * 224 << 20


AILING = {
    # Ran out of memory.
    **{rank: {"out-of-memory"} for rank in RANKS},
    # Its allocator gave its cache back 39 times for want of room, 140 GiB in all.
    "maphsge4-snapshot.pickle.gz": {"allocator-churn"},
    # Made up by its authors: no segment is the sum of its blocks.
    "facebookresearch-output.pickle.gz": {"odd-snapshot"},
}
"""What is wrong with those in which something is; all others are healthy."""


@needs_corpus
@each_snapshot
def test_a_healthy_program_has_notes_only(expected: dict[str, Any]) -> None:
    report = report_of(expected["file"])
    said = {f.name for f in (*report.findings, *report.health) if f.severity != "note"}
    assert said == AILING.get(expected["file"], set())


@pytest.mark.slow
@needs_corpus
@each_snapshot
def test_the_allocator_model_reproduces_reserved_bytes(expected: dict[str, Any]) -> None:
    """At every request of every history, to the byte; one was fabricated by its authors."""
    for memory in load_context(expected["file"]).device_memories:
        if len(memory.replay.alloc) and expected["file"] != "facebookresearch-output.pickle.gz":
            assert memory.what_if.max_error_bytes == 0


@needs_corpus
def test_the_ranks_that_ran_out_of_memory_had_a_setting_that_fits() -> None:
    for rank in RANKS:
        (finding,) = [finding for finding in report_of(rank).findings if finding.rule == "MEM017"]
        assert finding.evidence["is_reproduced"] is True
        assert finding.evidence["fits_with"] == "expandable_segments:True"


def read_raw(file: str) -> dict[str, Any]:
    with gzip.open(SNAPSHOTS / file) as stream:
        return dict(pickle.load(stream))  # noqa: S301  (a file of the corpus)


def split_layers(history: list[dict[str, Any]], file: str, called_at: int) -> list[list[int]]:
    """Split the allocations of layers: one ends where the next one is at an earlier line."""
    layers: list[list[int]] = []
    last_line = 0
    for place, entry in enumerate(history):
        frames = [frame for frame in entry["frames"] if frame["filename"].endswith(file)]
        lines = [frame["line"] for frame in frames]
        if entry["action"] != "alloc" or called_at not in lines:
            # Without frames it is of the backward pass, in another thread.
            last_line = 0 if entry["action"] == "alloc" and frames else last_line
            continue

        # The innermost frame comes first: the layer's own line is before the one that calls it.
        line = lines[lines.index(called_at) - 1]
        if not layers or not last_line or line < last_line:
            layers.append([])
        layers[-1].append(place)
        last_line = line
    return layers


def find_ends(history: list[dict[str, Any]]) -> dict[int, int]:
    """Find where each allocation is freed."""
    ends: dict[int, int] = {}
    place_of: dict[int, int] = {}
    for place, entry in enumerate(history):
        if entry["action"] == "alloc":
            place_of[entry["addr"]] = place
        elif entry["action"] == "free_completed":
            ends[place_of.pop(entry["addr"], -1)] = place
    return ends


def sum_backward(raw: dict[str, Any], history: list[dict[str, Any]]) -> list[int]:
    """Sum up the active bytes from the end, where the live blocks are known."""
    levels = [sum(segment["active_size"] for segment in raw["segments"])]
    sign = {"free_completed": 1, "alloc": -1}
    for entry in reversed(history):
        levels.append(levels[-1] + sign.get(entry["action"], 0) * entry["size"])
    return levels[::-1]


@needs_corpus
def test_the_peak_with_checkpoints_is_that_of_the_raw_history() -> None:
    raw = read_raw("magma27-memory-snapshot.pickle.gz")
    history = raw["device_traces"][0]
    layers, ends = split_layers(history, "model.py", 253), find_ends(history)
    allocations = [place for place, entry in enumerate(history) if entry["action"] == "alloc"]

    change = [0] * (len(history) + 1)
    for layer in layers:
        after = next(place for place in [*allocations, len(history)] if place > layer[-1])
        kept = [place for place in layer if ends.get(place, len(history)) > after][:-1]
        n_bytes = sum(history[place]["size"] for place in kept)
        change[after] -= n_bytes
        change[min((ends.get(place, len(history)) for place in kept), default=after)] += n_bytes

    levels = sum_backward(raw, history)
    without = max(map(operator.add, levels, itertools.accumulate(change)))

    report = report_of("magma27-memory-snapshot.pickle.gz")
    (finding,) = (finding for finding in report.findings if finding.rule == "MEM015")
    assert finding.locations[0].place == "model.py:253"
    assert finding.n == len(layers)
    assert finding.evidence["peak_bytes"] == pytest.approx(max(levels), rel=0.001)
    assert finding.evidence["peak_without_bytes"] == pytest.approx(without, rel=0.001)
