"""Fuzz the reading of snapshots, guided by coverage.

Run ``python fuzz/fuzz_snapshot.py FOLDER SECONDS``, or ``make fuzz SECONDS=60``. The pickle is
unpickled in this process, so that its coverage is measured. Any result other than a report or a
LoadError is a bug, and so is an input that takes longer than ten seconds or a gigabyte. The input
is written to FOLDER; add a test for it to tests/readers/test_restricted_unpickler.py.
"""

import io
import pickle
import resource
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["profkit"]):
    from profkit.api import analyze
    from profkit.errors import LoadError
    from profkit.readers.progress import Stages
    from profkit.readers.snapshot import read
    from profkit.readers.snapshot.restricted_unpickler import ProcessLimits
    from profkit.readers.snapshot.worker import WorkerResult, unpickle
    from profkit.readers.stream import Chunks
from seeds import SNAPSHOT  # type: ignore[import-not-found]  # beside this file

LIMIT_S = 10
MAX_BYTES = 16384
MAX_DECOMPRESSED_BYTES = 16 << 20


def prepare(folder: Path) -> Path:
    """Write the seed files.

    Returns:
        The folder of the seed files.
    """
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for protocol in range(2, 6):
        (corpus / f"seed-{protocol}").write_bytes(pickle.dumps(SNAPSHOT, protocol))
        (corpus / f"old-{protocol}").write_bytes(pickle.dumps(SNAPSHOT["segments"], protocol))
    return corpus


def main(folder: str, seconds: str) -> None:
    """Fuzz for a number of seconds.

    Args:
        folder: Stores the corpus between runs, and inputs that show bugs.
        seconds: The time limit.
    """
    corpus = prepare(Path(folder))

    def in_process(chunks: Chunks, stages: Stages) -> WorkerResult:
        with stages.stage("unpickle"):
            try:
                return unpickle(io.BytesIO(b"".join(chunks)), ProcessLimits().allow)
            finally:
                limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_CPU, limits)  # it is the fuzzer's own process

    read._send_to_worker = in_process  # noqa: SLF001  (so that its coverage is measured)
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        place = Path(file.name)

        def check(data: bytes) -> None:
            place.write_bytes(b"\x80" + data[1:])
            try:
                analyze(place, strict=True, limit_bytes=MAX_DECOMPRESSED_BYTES)
            except LoadError:
                return

        options = [
            f"-max_total_time={seconds}",
            f"-timeout={LIMIT_S}",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={folder}/bug-",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
