"""Fuzz the analysis of traces, guided by coverage.

Run ``python fuzz/fuzz_analyze.py FOLDER SECONDS``, or ``make fuzz SECONDS=60``. Any result other
than a report or a LoadError is a bug, and so is an input that takes longer than ten seconds. The
input is written to FOLDER; add a test for it to tests/readers/test_fuzzer_findings.py.
"""

import gzip
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["profkit"]):
    from profkit.api import analyze
    from profkit.errors import LoadError
from seeds import program  # type: ignore[import-not-found]  # beside this file

from profkit.testing import Format

LIMIT_S = 10
MAX_BYTES = 32768
MAX_DECOMPRESSED_BYTES = 16 << 20
FORMATS = (
    Format(),
    Format(layout="kineto", extras=True),
    Format(layout="lines", begin_end=True, times="string"),
    Format(array=True, absolute=True),
    Format(old=True, absolute=True, events_first=True),
    Format(vendor="rocm-7.1"),
    Format(vendor="xpu", extras=True),
    Format(vendor="xpu", begin_end=True, instants="I"),
    Format(vendor="privateuse1", instants="X", text_ids=True),
    Format(vendor="mtia", extras=True, layout="kineto"),
    Format(vendor="hpu", begin_end=True),
)
WORDS = (
    '"traceEvents":', '"ph":"X"', '"ph":"B"', '"ph":"E"', '"ph":"i"', '"ph":"I"', '"ph":"M"',
    '"args":', '"ts":', '"dur":', '"cat":"kernel"', '"cat":"cpu_op"', '"cat":"cuda_runtime"',
    '"cat":"xpu_sync"', '"Type":"HOST_EVENT"', '"pid":-1', '"[memory]"', '"External id":',
    '"correlation":', '"stream":', '"device":', '"baseTimeNanoseconds":', '"profkit":',
    '"deviceProperties":', '"distributedInfo":', "ProfilerStep#1", "NaN", "1e308",
    "-9223372036854775808", "18446744073709551615", "\\ud800", "\\u001b[31m", "torch\\profiler",
)  # fmt: skip


def prepare(folder: Path) -> tuple[Path, Path]:
    """Write the seed files and the dictionary.

    Returns:
        The folder of the seed files, and the dictionary.
    """
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    b = program()
    for number, form in enumerate(FORMATS):
        b.write(corpus / f"seed-{number}.json", form)
    (corpus / "seed.gz").write_bytes(gzip.compress(b.to_bytes(), mtime=0))
    dictionary = folder / "words.dict"
    lines = (word.replace("\\", "\\\\").replace('"', '\\"') for word in WORDS)
    dictionary.write_text("".join(f'"{line}"\n' for line in lines))
    return corpus, dictionary


def main(folder: str, seconds: str) -> None:
    """Fuzz for a number of seconds.

    Args:
        folder: Stores the corpus between runs, and inputs that show bugs.
        seconds: The time limit.
    """
    corpus, dictionary = prepare(Path(folder))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        place = Path(file.name)

        def check(data: bytes) -> None:
            place.write_bytes(data)
            try:
                analyze(place, strict=True, limit_bytes=MAX_DECOMPRESSED_BYTES)
            except LoadError:
                return

        options = [
            f"-max_total_time={seconds}",
            f"-timeout={LIMIT_S}",
            f"-max_len={MAX_BYTES}",
            f"-dict={dictionary}",
            f"-artifact_prefix={folder}/bug-",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
