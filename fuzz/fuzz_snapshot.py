"""Search, guided by coverage, for pickles that reading a snapshot stumbles over.

Run it as ``python fuzz/fuzz_snapshot.py FOLDER SECONDS``, or by ``make fuzz SECONDS=60``. The
pickle is read in this very process, so that its coverage is seen. Any end but a report or a
LoadError is a find, and so is an input that takes longer than ten seconds or a gigabyte: it is
written to FOLDER, and belongs into tests/readers/test_refused_pickle.py.
"""

import io
import pickle
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["profkit"]):
    from profkit.api import analyze
    from profkit.errors import LoadError
    from profkit.readers.snapshot import read
    from profkit.readers.snapshot.restricted_unpickler import MemoryLimit
    from profkit.readers.snapshot.worker_result import WorkerResult, answer
    from profkit.readers.stages import Stages
    from profkit.readers.stream import Chunks

LIMIT_S = 10
LONGEST_BYTES = 16384
UNPACKED_BYTES = 16 << 20
FRAMES = [{"filename": "train.py", "line": 3, "name": "step"}]
SNAPSHOT = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 2048, "allocated_size": 512,
            "active_size": 512, "requested_size": 500, "stream": 0, "segment_type": "small",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": [
                {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated",
                 "frames": FRAMES},
                {"size": 1536, "state": "inactive", "history": [{"real_size": 9, "frames": []}]},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 4096, "size": 2048, "stream": 0, "time_us": 4},
            {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 5,
             "frames": FRAMES},
            {"action": "free_requested", "addr": 64, "size": 512, "stream": 0, "time_us": 5},
            {"action": "free_completed", "addr": 64, "size": 512, "stream": 0, "time_us": 5},
            {"action": "oom", "size": 1 << 40, "device_free": 7, "stream": 0, "time_us": 6},
        ]
    ],
    "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 4}],
    "allocator_settings": {"expandable_segments": False, "roundup_power2_divisions": {"1": 0}},
}  # fmt: skip


def prepare(folder: Path) -> Path:
    """Write the pickles to begin with.

    Returns:
        The folder of the corpus.
    """
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for protocol in range(2, 6):
        (corpus / f"seed-{protocol}").write_bytes(pickle.dumps(SNAPSHOT, protocol))
        (corpus / f"old-{protocol}").write_bytes(pickle.dumps(SNAPSHOT["segments"], protocol))
    return corpus


def main(folder: str, seconds: str) -> None:
    """Search for so many seconds.

    Args:
        folder: Holds the corpus from one run to the next, and finds.
        seconds: How long.
    """
    corpus = prepare(Path(folder))

    def unpickled(chunks: Chunks, stages: Stages) -> WorkerResult:
        with stages.stage("unpickle"):
            return answer(io.BytesIO(b"".join(chunks)), MemoryLimit().allow)

    read._handed_over = unpickled  # noqa: SLF001  (in this process, so that its coverage is seen)
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        place = Path(file.name)

        def judge(data: bytes) -> None:
            place.write_bytes(b"\x80" + data[1:])
            try:
                analyze(place, strict=True, limit_bytes=UNPACKED_BYTES)
            except LoadError:
                return

        options = [
            f"-max_total_time={seconds}",
            f"-timeout={LIMIT_S}",
            f"-max_len={LONGEST_BYTES}",
            f"-artifact_prefix={folder}/find-",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], judge)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
