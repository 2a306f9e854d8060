"""Runs the benchmarks, each in a process of its own, and writes their figures to a page.

``--quick`` takes smaller inputs and leaves out what takes minutes; its table is printed alone.
``--list`` prints the commands. ``--peers`` names the interpreter of an environment that has the
peers in Python (HolisticTraceAnalysis, torch-tb-profiler).

Run: ``python -m benchmarks [--quick] [--peers PYTHON] [--list]``
"""

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.figures import COLLECTED, Figure
from benchmarks.load import ROOT
from profkit.capture.process.environment import processor

PAGE: Final = ROOT / "docs" / "benchmarks.md"

BENCHMARKS: Final[Mapping[str, tuple[str, str | None]]] = {
    "analyze": ("--mb 200 1000", "--mb 50 --peers-mb 0"),
    "cache": ("--mb 1000 --rounds 1", "--mb 50 --rounds 1"),
    "load": ("--mb 200", None),
    "snapshot": ("", "--events 100000"),
    "ranks": ("--scale 0.1", None),
    "replay": ("--events 200000", None),
    "render": ("--events 10000 1000000", "--events 10000 --small leak*"),
    "frames": ("", None),
    "watched": ("", None),
    "watch_overhead": ("", "--rounds 1 --steps 50"),
    "holders": ("", ""),
    "capture_overhead": ("", "--rounds 3"),
    "trainers": ("--rounds 3", None),
    "idle_trace": ("", ""),
    "listening": ("", ""),
}
"""Options of each in a whole run and in a quick one, of which None is left out."""
MAX_NOISE: Final = 0.25
"""What a figure may get worse by from one run to the next, without being named."""
_ROW: Final = re.compile(
    r"\| (?P<what>.+) \| (?P<value>[-+.\de]+) (?P<unit>\S*) \| "
    r"(?P<bound>at least|at most) (?P<target>[-+.\de]+) .*"
)
HEAD: Final = """\
# Benchmarks

Written by `make bench`, which takes about a quarter of an hour; `make bench ARGS=--quick` prints a
part in three minutes. All figures are from one run on one machine, in which what is compared was
measured in turns: other work on the machine lengthens times, and ratios less so. What each of them
does is said at the top of its file in `benchmarks`.

"""


def main() -> None:
    """Run the benchmarks, and print or write the table."""
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument("--quick", action="store_true", help="in three minutes")
    parser.add_argument(
        "--peers", default=sys.executable, help="the interpreter that has the peers"
    )
    parser.add_argument("--list", action="store_true", help="print the commands")
    options = parser.parse_args()

    chosen = {
        name: whole if not options.quick else quick for name, (whole, quick) in BENCHMARKS.items()
    }
    commands = {name: given.split() for name, given in chosen.items() if given is not None}
    commands["analyze"] += ["--peers", options.peers]

    if options.list:
        for name, given in commands.items():
            print("python -m", f"benchmarks.{name}", *given)
        return

    began_s = time.monotonic()
    table = "\n".join(section(name, given, options.peers) for name, given in commands.items())
    took_min = (time.monotonic() - began_s) / 60
    if options.quick:
        print(f"\n{table}\n{took_min:.1f} minutes")
        return
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    for regression in find_regressions(before, table):
        print(f"regression: {regression}")
    PAGE.write_text(f"{HEAD}{machine()}, {took_min:.0f} minutes.\n\n{table}", encoding="utf-8")
    print(f"\n{took_min:.1f} minutes; wrote {PAGE}")


def section(name: str, given: list[str], peers: str) -> str:
    """Run one benchmark, and return the rows of its figures as a table.

    Args:
        peers: A path of this machine among the options, which the table does not name.
    """
    command = ["-m", f"benchmarks.{name}", *given]
    print(f"\n== python {' '.join(command)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures")
        environment = {**os.environ, COLLECTED: str(file), "PYTHONPATH": str(ROOT)}
        process = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [f"| {figure.what} | {figure.shown} |" for figure in map(read_figure, lines)]
    if process.returncode:
        rows.append(f"| ended with exit code {process.returncode} | | | |")
    title = f"## `python {' '.join(command).replace(peers, 'PYTHON')}`"
    return "\n".join([title, "", "| Figure | Value | Target | |", "|---|---|---|---|", *rows, ""])


def read_figure(line: str) -> Figure:
    """Return a figure from its line of JSON."""
    return Figure(*json.loads(line))


def find_regressions(before: str, after: str) -> Iterator[str]:
    """Yield a sentence for each figure of two pages that is worse by more than noise.

    Args:
        before: The page with the last figures.
        after: The page, or the tables, with the new ones.
    """
    earlier = dict(_read_rows(before))
    for key, figure in _read_rows(after):
        old = earlier.get(key, figure)
        loss = old.value - figure.value if figure.at_least else figure.value - old.value
        # Of a value near zero, the target says what is little.
        if loss > MAX_NOISE * max(abs(old.value), abs(figure.target)):
            unit = figure.unit
            yield f"{figure.what}: {old.value:g} {unit} before, {figure.value:g} {unit} now"


def _read_rows(page: str) -> Iterator[tuple[tuple[str, str], Figure]]:
    """Yield each figure with its benchmark and its name."""
    benchmark = ""
    for line in page.splitlines():
        if line.startswith("## "):
            benchmark = line.strip("# `")
        if row := _ROW.fullmatch(line):
            is_at_least = row["bound"] == "at least"
            value, target = float(row["value"]), float(row["target"])
            figure = Figure(row["what"], value, row["unit"], target, is_at_least)
            yield (benchmark, figure.what), figure


def machine() -> str:
    """When and on what it ran."""
    today = dt.datetime.now(dt.UTC).date()
    return (
        f"{today:%Y-%m-%d}: {processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}, PyTorch {version('torch')}"
    )


if __name__ == "__main__":
    main()
