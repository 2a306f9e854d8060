"""What was live in a span of a snapshot's history, and its segments, against the raw file."""

import pickle
import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.model.memory_series import LiveGroups
from profkit.model.snapshot import MemorySnapshot, State
from profkit.present.flames import flames
from profkit.present.memory_series import memory_series
from profkit.present.segment_blocks import find_segment_blocks
from profkit.readers.open import load
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import ReferenceBlock

MIB = 1 << 20


def program(seed: int, n_turns: int = 80) -> SnapshotBuilder:
    """Blocks of several lines, streams and sizes; some are older than the history."""
    chance = random.Random(seed)  # noqa: S311  (the same program every time)
    b = SnapshotBuilder(max_entries=150)
    live: list[ReferenceBlock] = []
    with b.unrecorded():
        b.alloc(MIB)
        live += [b.alloc(4 * MIB) for _ in range(3)]
    for _ in range(n_turns):
        if live and chance.random() < 0.4:
            b.free(live.pop(chance.randrange(len(live))))
        else:
            with b.frame("train.py", chance.choice((3, 8, 21)), "main"):
                n_bytes = 512 * chance.choice((1, 7, 3000, 9000, 70_000))
                live.append(b.alloc(n_bytes, stream=chance.choice((0, 0, 7))))
    return b


def live_between(raw: dict[str, Any], first: int, last: int) -> list[int]:
    """Sizes of the blocks live at some time from before one entry to before another one.

    The history is played backward from the blocks of the file.
    """
    live = {
        block["address"]: block["size"]
        for segment in raw["segments"]
        for block in segment["blocks"]
        if block["state"].startswith("active")
    }
    entries = raw["device_traces"][0]
    for entry in reversed(entries[last:]):
        if entry["action"] == "alloc":
            del live[entry["addr"]]
        elif entry["action"] == "free_completed":
            live[entry["addr"]] = entry["size"]
    freed = [entry["size"] for entry in entries[first:last] if entry["action"] == "free_completed"]
    return [*live.values(), *freed]


def chosen(lives: LiveGroups, first: int, last: int) -> tuple[int, int]:
    """Number and bytes of the blocks that were live from one moment to another."""
    rows = (lives.first <= last) & (lives.last > first)
    return int(lives.n[rows].sum()), int(lives.n_bytes[rows].sum())


def read(path: Path) -> tuple[Context, dict[str, Any]]:
    snapshot = load(path)
    assert isinstance(snapshot, MemorySnapshot)
    return Context(snapshot=snapshot), pickle.loads(path.read_bytes())  # noqa: S301  (written here)


@pytest.mark.parametrize("seed", range(3))
def test_the_blocks_of_every_span_match_the_history(tmp_path: Path, seed: int) -> None:
    ctx, raw = read(program(seed).write(tmp_path / "s.pickle"))
    (series,) = memory_series(ctx)
    every = [series.by_use, *(graph.lives["cuda:0"] for graph in flames(ctx, over_time=True))]
    assert len(every) == 3
    n_moments = len(series.at)
    assert n_moments == len(raw["device_traces"][0]) + 1
    spans = product(range(0, n_moments, 7), repeat=2)
    for first, last in ((first, last) for first, last in spans if first <= last):
        sizes = live_between(raw, first, last)
        for lives in every:
            assert lives is not None
            assert chosen(lives, first, last) == (len(sizes), sum(sizes))


def test_a_graph_over_time_has_the_weights_of_the_peak(tmp_path: Path) -> None:
    ctx, _ = read(program(4).write(tmp_path / "s.pickle"))
    for at_peak, over_time in zip(flames(ctx), flames(ctx, over_time=True), strict=True):
        assert over_time.weight == at_peak.weight
        assert len(over_time) >= len(at_peak)
        assert not at_peak.lives
        lives = over_time.lives["cuda:0"]
        peak = int(np.argmax(memory_series(ctx)[0].allocated_bytes))
        assert chosen(lives, peak, peak)[1] == at_peak.weight


def test_every_block_is_in_its_segment_at_its_address(tmp_path: Path) -> None:
    ctx, raw = read(program(5).write(tmp_path / "s.pickle"))
    (memory,) = ctx.device_memories
    drawn_blocks = find_segment_blocks(memory)
    segments = sorted(raw["segments"], key=lambda segment: segment["address"])
    assert drawn_blocks.segment_bytes.tolist() == [segment["total_size"] for segment in segments]
    assert drawn_blocks.stream.tolist() == [int(segment["stream"] > 0) for segment in segments]

    blocks = [(segment, block) for segment in segments for block in segment["blocks"]]
    assert drawn_blocks.n_bytes.tolist() == [block["size"] for _, block in blocks]
    assert not drawn_blocks.gap_bytes.any()
    assert [state != State.INACTIVE for state in drawn_blocks.state.tolist()] == [
        block["state"].startswith("active") for _, block in blocks
    ]

    times = [entry["time_us"] for entry in raw["device_traces"][0]]
    born = {
        entry["addr"]: entry["time_us"] - times[0]
        for entry in raw["device_traces"][0]
        if entry["action"] == "alloc"
    }
    assert drawn_blocks.at.tolist() == [
        born.get(block["address"], -1) if block["state"].startswith("active") else -1
        for _, block in blocks
    ]
    assert drawn_blocks.until == times[-1] - times[0]
