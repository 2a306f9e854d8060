"""Time and memory of analyzing an allocator snapshot, as ratios from one run.

A synthetic history of allocations and frees has the proportions of recorded ones: two hundred
stacks of about thirty frames, each frame pickled once. ``profkit analyze`` is measured as a whole
process, and so is a bare ``pickle.load`` without the garbage collector, which is fastest, and with
it, which is usual. The files are removed.

Run: ``python benchmarks/snapshot.py [--events 100000 1000000] [--frames 30]``
"""

import argparse
import os
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.analyze import run
from benchmarks.figures import compared

LARGE_EVENTS: Final = 1_000_000
TARGET_SMALL_S: Final = 1.0
TARGET_TIME: Final = 1.5
TARGET_MEMORY: Final = 1.2
BARE: Final = "pickle.load, no gc"
READERS: Final = {
    BARE: "import gc, pickle; gc.disable()\nwith open(path, 'rb') as f: kept = pickle.load(f)\n"
    "import os; os._exit(0)",
    "pickle.load": "import pickle\nwith open(path, 'rb') as f: kept = pickle.load(f)\n"
    "import os; os._exit(0)",
}
N_STACKS: Final = 200
N_FRAMES: Final = 600
MEAN_LIVE: Final = 400
PAGE_BYTES: Final = 512


def build_snapshot(n_events: int, n_frames: int) -> dict[str, Any]:
    """Build a snapshot with ``n_events`` history entries, and ``n_frames`` frames per stack."""
    chance = random.Random(1)  # noqa: S311  (not cryptographic)
    frames = [
        {"filename": f"/home/user/model/layer{k % 40}.py", "line": k, "name": f"forward{k % 90}"}
        for k in range(N_FRAMES)
    ]
    stacks = [chance.sample(frames, n_frames) for _ in range(N_STACKS)]
    history: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    address, time_us = 0x7F0000000000, 1_700_000_000_000_000

    while len(history) < n_events:
        time_us += chance.randrange(5, 50)
        if len(live) < chance.randrange(2 * MEAN_LIVE):
            size = PAGE_BYTES * chance.randrange(1, 40_000)
            live.append((address, size))
            address += size
            actions, (at, size) = ["alloc"], live[-1]
        else:
            at, size = live.pop(chance.randrange(len(live)))
            actions = ["free_requested", "free_completed"]
        # As torch does it: what belongs together shares one list of its own.
        stack = list(chance.choice(stacks))
        history += [
            {
                "action": action,
                "addr": at,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": stack,
            }
            for action in actions
        ]

    blocks = [
        {
            "address": at,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": stacks[0],
        }
        for at, size in live
    ]
    total = sum(size for _, size in live)
    segment = {
        "device": 0,
        "address": blocks[0]["address"],
        "total_size": total,
        "stream": 0,
        "allocated_size": total,
        "active_size": total,
        "requested_size": total,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [history], "external_annotations": []}


def compare(path: Path, n_events: int) -> None:
    """Print a table of all programs on one snapshot."""
    n_bytes = path.stat().st_size
    print(f"\n{n_events:,} events, {n_bytes / 1e6:.0f} MB")
    print(f"{'program':<22} {'seconds':>8} {'cpu s':>7} {'x bare':>7} {'MB':>7} {'x bare':>7}")
    statement = "import sys; path = sys.argv[1]\n"
    runs = {name: run(["-c", statement + code, str(path)]) for name, code in READERS.items()}
    runs["profkit analyze"] = ours = run(["-m", "profkit", "analyze", str(path), "-o", os.devnull])
    bare = runs[BARE]

    for name, measured in runs.items():
        ratio = measured.seconds / bare.seconds
        row = f"{measured.seconds:8.2f} {measured.cpu_seconds:7.2f} {ratio:7.2f}"
        memory = f"{measured.peak_bytes / 1e6:7.0f} {measured.peak_bytes / bare.peak_bytes:7.2f}"
        print(f"{name:<22} {row} {memory} {measured.failed}".rstrip())
    size = f"{n_events:,} events"
    if n_events < LARGE_EVENTS:
        compared(f"{size}: from the start of the process", ours.seconds, "s", TARGET_SMALL_S)
    else:
        usual = ours.seconds / runs["pickle.load"].seconds
        compared(f"{size}: time, of pickle.load", usual, "x", TARGET_TIME)
        fastest = ours.seconds / bare.seconds
        compared(f"{size}: time, of pickle.load without collections", fastest, "x", TARGET_TIME)

    memory_share = ours.peak_bytes / bare.peak_bytes
    compared(f"{size}: peak memory, of pickle.load", memory_share, "x", TARGET_MEMORY)


def main() -> None:
    """Create the snapshots one after the other, and compare all programs on each."""
    parser = argparse.ArgumentParser(description="Compare the reading of memory snapshots.")
    parser.add_argument(
        "--events", type=int, nargs="+", default=[100_000, 1_000_000], help="entries of history"
    )
    parser.add_argument("--frames", type=int, default=30, help="frames per stack")
    options = parser.parse_args()
    for n_events in options.events:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "snapshot.pickle")
            with path.open("wb") as file:
                pickle.dump(build_snapshot(n_events, options.frames), file, protocol=4)
            compare(path, n_events)


if __name__ == "__main__":
    main()
