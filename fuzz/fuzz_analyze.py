"""Search, guided by coverage, for bytes that an analysis stumbles over.

Run it as ``python fuzz/fuzz_analyze.py FOLDER SECONDS``, or by ``make fuzz SECONDS=60``. Any end
but a report or a LoadError is a find, and so is an input that takes longer than ten seconds: it
is written to FOLDER, and belongs into tests/readers/test_finds.py.
"""

import gzip
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["profkit"]):
    from profkit.api import analyze
    from profkit.errors import LoadError
from profkit.testing import Format, TraceBuilder

LIMIT_S = 10
LONGEST_BYTES = 32768
UNPACKED_BYTES = 16 << 20
FORMATS = (
    Format(),
    Format(layout="kineto", extras=True),
    Format(layout="lines", edges=True, times="string"),
    Format(array=True, absolute=True),
    Format(old=True, absolute=True, events_first=True),
    Format(vendor="rocm-7.1"),
    Format(vendor="xpu", extras=True),
    Format(vendor="xpu", edges=True, moments="I"),
    Format(vendor="privateuse1", moments="X", text_ids=True),
    Format(vendor="mtia", extras=True, layout="kineto"),
    Format(vendor="hpu", edges=True),
)
WORDS = (
    '"traceEvents":', '"ph":"X"', '"ph":"B"', '"ph":"E"', '"ph":"i"', '"ph":"I"', '"ph":"M"',
    '"args":', '"ts":', '"dur":', '"cat":"kernel"', '"cat":"cpu_op"', '"cat":"cuda_runtime"',
    '"cat":"xpu_sync"', '"Type":"HOST_EVENT"', '"pid":-1', '"[memory]"', '"External id":',
    '"correlation":', '"stream":', '"device":', '"baseTimeNanoseconds":', '"profkit":',
    '"deviceProperties":', '"distributedInfo":', "ProfilerStep#1", "NaN", "1e308",
    "-9223372036854775808", "18446744073709551615", "\\ud800", "\\u001b[31m", "torch\\profiler",
)  # fmt: skip


def program() -> TraceBuilder:
    """A short program that has a bit of everything."""
    b = TraceBuilder(memory=True, stacks=True)
    for number in range(2):
        with b.step(), b.frame("train.py", number, "f"):
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
            b.to_device(64, 2_000)
            b.alloc(64)
            b.synchronize()
    return b


def prepare(folder: Path) -> tuple[Path, Path]:
    """Write the files to begin with, and the dictionary.

    Returns:
        The folder of the corpus, and the dictionary.
    """
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    b = program()
    for number, form in enumerate(FORMATS):
        b.write(corpus / f"seed-{number}.json", form)
    (corpus / "seed.gz").write_bytes(gzip.compress(b.to_bytes(), mtime=0))
    words = folder / "words.dict"
    lines = (word.replace("\\", "\\\\").replace('"', '\\"') for word in WORDS)
    words.write_text("".join(f'"{line}"\n' for line in lines))
    return corpus, words


def main(folder: str, seconds: str) -> None:
    """Search for so many seconds.

    Args:
        folder: Holds the corpus from one run to the next, and finds.
        seconds: How long.
    """
    corpus, words = prepare(Path(folder))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        place = Path(file.name)

        def judge(data: bytes) -> None:
            place.write_bytes(data)
            try:
                analyze(place, strict=True, limit_bytes=UNPACKED_BYTES)
            except LoadError:
                return

        options = [
            f"-max_total_time={seconds}",
            f"-timeout={LIMIT_S}",
            f"-max_len={LONGEST_BYTES}",
            f"-dict={words}",
            f"-artifact_prefix={folder}/find-",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], judge)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
