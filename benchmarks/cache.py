"""What the cache saves and costs: first and second analysis at a large trace, and a small file.

A recorded trace is repeated to several sizes. ``profkit analyze`` is measured as a whole process:
without the cache, with an empty one, and with a full one, in turns; with a full one also with other
rules, ``profkit view`` and ``export``, and what TensorBoard runs for its tab. The small file,
``profkit --help`` and ``import profkit`` are measured beside a Python process that does nothing.
Times are processor time with child processes, which other programs disturb least; wall time is
shown beside it. Nothing is downloaded, and files and cache are removed.

Run: ``python benchmarks/cache.py [--mb 200 1000] [--rounds 3]``
"""

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.analyze import Run, run
from benchmarks.figures import compared
from benchmarks.load import read_source, repeat_events

TARGET_FIRST: Final = 1.05
TARGET_SECOND_S: Final = 1.2
TARGET_OTHER_S: Final = 2.5
TARGET_SMALL_S: Final = 0.3
TARGET_HELP_S: Final = 0.1
TARGET_IMPORT_S: Final = 0.03
SMALL_ROUNDS: Final = 15


def shown(name: str, runs: list[Run], base_s: float) -> float:
    """Print the median and range of processor time, which is returned, and that of wall time."""
    cpu = [run.cpu_seconds for run in runs]
    median_s, wall_s = statistics.median(cpu), statistics.median(run.seconds for run in runs)
    failed = next((run.failed for run in runs if run.failed), "")
    row = f"{median_s:7.2f} {min(cpu):6.2f}-{max(cpu):<6.2f} {wall_s:7.2f} {median_s / base_s:7.2f}"
    print(f"{name:<24} {row} {failed}".rstrip())
    return median_s


def compare_large(trace: bytes, megabytes: int, rounds: int) -> None:
    """Compare analyses of a large trace."""
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder, "repeated.pt.trace.json"), Path(folder, "cache")
        with path.open("wb") as file:
            file.writelines(repeat_events(trace, megabytes * 1_000_000))
        os.environ["PROFKIT_CACHE"] = str(cache)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as all of these processes have it
        command = ["-m", "profkit", "analyze", str(path), "-o", os.devnull]
        shown_as = {
            "other rules": [*command, "--ignore", "SYN"],
            "other options": [*command, "--max-bytes", "20GiB"],
            "view": [
                "-m",
                "profkit",
                "view",
                str(path),
                "--no-open",
                "-o",
                f"{folder}/v.html",
                "--force",
            ],
            "speedscope": [
                "-m",
                "profkit",
                "export",
                str(path),
                "--to",
                "speedscope",
                "-o",
                f"{folder}/s.json",
                "--force",
            ],
            "TensorBoard's worker": [
                "-m",
                "profkit.integrations.tensorboard.worker",
                folder,
                "analyze",
                str(path),
            ],
        }
        runs: dict[str, list[Run]] = {
            name: [] for name in ("no cache", "first analysis", "second analysis", *shown_as)
        }

        for _ in range(rounds):
            shutil.rmtree(cache, ignore_errors=True)
            runs["no cache"].append(run([*command, "--no-cache"]))
            runs["first analysis"].append(run(command))
            runs["second analysis"].append(run(command))
            for name, options in shown_as.items():
                runs[name].append(run(options))

        print(f"\n{megabytes} MB of text, {rounds} rounds")
        print(f"{'process':<24} {'cpu s':>7} {'range':<13} {'wall s':>7} {'x none':>7}")
        base_s = statistics.median(run.cpu_seconds for run in runs["no cache"])
        first, second = (shown(name, run_of, base_s) for name, run_of in list(runs.items())[1:3])
        shown("no cache", runs["no cache"], base_s)
        others_s = {name: shown(name, runs[name], base_s) for name in shown_as}
        n_bytes = sum(path.stat().st_size for path in cache.rglob("*.entry"))
        print(f"the cache has {n_bytes / 1e6:.0f} MB")
        compared(
            f"{megabytes} MB: first analysis, of one without a cache",
            first / base_s,
            "x",
            TARGET_FIRST,
        )
        compared(f"{megabytes} MB: second analysis, processor time", second, "s", TARGET_SECOND_S)
        for name, other_s in others_s.items():
            compared(f"{megabytes} MB: {name}, processor time", other_s, "s", TARGET_OTHER_S)


def compare_small(trace: bytes) -> None:
    """Compare the fixed costs of commands."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.pt.trace.json")
        with path.open("wb") as file:
            file.writelines(repeat_events(trace, 1_000_000))
        commands = {
            "python": ["-c", "pass"],
            "import numpy": ["-c", "import numpy"],
            "import profkit": ["-c", "import profkit"],
            "profkit --help": ["-m", "profkit", "--help"],
            "profkit analyze, 1 MB": ["-m", "profkit", "analyze", str(path), "-o", os.devnull],
        }
        runs: dict[str, list[Run]] = {name: [] for name in commands}
        for _ in range(SMALL_ROUNDS):
            for name, command in commands.items():
                runs[name].append(run(command))

    print(f"\nsmall, {SMALL_ROUNDS} rounds")
    print(f"{'process':<24} {'cpu s':>7} {'range':<13} {'wall s':>7} {'x numpy':>7}")
    base_s = statistics.median(run.cpu_seconds for run in runs["import numpy"])
    times = {name: shown(name, run, base_s) for name, run in runs.items()}
    imported = times["import profkit"] - times["python"]
    compared("analyze a trace of 1 MB", times["profkit analyze, 1 MB"], "s", TARGET_SMALL_S)
    compared("profkit --help", times["profkit --help"], "s", TARGET_HELP_S)
    compared("import profkit, beyond Python's start", imported, "s", TARGET_IMPORT_S)


def main() -> None:
    """Measure the small file, and then each size."""
    parser = argparse.ArgumentParser(description="Measure what the cache saves.")
    parser.add_argument("--mb", type=int, nargs="+", default=[200, 1000], help="sizes of the text")
    parser.add_argument("--rounds", type=int, default=3, help="rounds for each size")
    options = parser.parse_args()
    trace = read_source(None)
    compare_small(trace)
    for megabytes in options.mb:
        compare_large(trace, megabytes, options.rounds)


if __name__ == "__main__":
    main()
