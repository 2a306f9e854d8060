"""Records the programs of this folder, and compares profkit's reports with the known problems.

Each program of expected.json runs with the problem and with the fix, in separate processes: twice
without profkit, and once under profkit run. The recordings go to traces/gpu/NAME and
traces/gpu/NAME_cured: the trace, the monitored memory, a snapshot of CUDA memory for memory
problems, the provenance, and the expected report. docs/truth.md is the table of the results.

All of it should take less than twelve minutes on a GPU with 16 cores: about 260 processes, which
import torch while another one uses the GPU. Runs that are recorded already, with the same program,
arguments, machine and version of the recording code, are skipped, so it can be stopped and started
again at any time. A run that crashes or hangs fails alone, with its last lines in its row.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch

from examples.gpu.recording.kept import expect, report_on
from examples.gpu.recording.page import page
from examples.gpu.recording.rows import (
    CURED,
    EXPECTED,
    OVERHEAD,
    ROOT,
    Rows,
    machine,
    missing,
    settings,
)
from examples.gpu.recording.session import Session
from examples.gpu.recording.truth import truths
from examples.gpu.recording.turns import Turns
from examples.truth import section
from profkit.errors import ProfkitError
from profkit.model.report import Report

OUT: Final = ROOT / "traces" / "gpu"
TABLE: Final = ROOT / "docs" / "truth.md"
_TITLE: Final = """\
# Truth

What profkit says that a problem costs, and what its fix saves without profkit: programs that a CPU
has too, then those that need a GPU.
"""
OVERHEAD_NAME: Final = OVERHEAD.stem
NO_GPU: Final = "torch finds no CUDA GPU, and these recordings need one: nothing is run."
CORES_EACH: Final = 4
"""For the process on the GPU, one that imports torch, and the analysis of recordings."""
MAX_AT_ONCE: Final = 4


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the arguments.

    Args:
        words: The arguments, or None for those of the command line.
    """
    parser = argparse.ArgumentParser(
        prog="record.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"programs, or {OVERHEAD_NAME} for the recording overhead (default: all)",
    )
    parser.add_argument("--out", type=Path, help="folder for recordings (traces/gpu)")
    parser.add_argument(
        "--device",
        default="cuda",
        help="cuda, or cpu to test this program with small runs",
    )
    parser.add_argument(
        "--only-table",
        action="store_true",
        help="run nothing; write the expected reports and the table again",
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per run (60)")
    parser.add_argument("--minutes", type=float, help="start no run after this many minutes")
    at_once = max(1, min(MAX_AT_ONCE, (os.cpu_count() or 1) // CORES_EACH))
    parser.add_argument(
        "--at-once",
        type=int,
        default=at_once,
        help=f"processes at a time, one of them on the GPU ({at_once})",
    )
    options = parser.parse_args(words)
    unknown = set(options.names) - {*EXPECTED, OVERHEAD_NAME}
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if options.out is None and options.device == "cpu":
        parser.error("--device cpu needs --out FOLDER: traces/gpu is for recordings of a GPU")

    return options


def run_all(session: Session, options: argparse.Namespace) -> bool:
    """Run what is not recorded yet; returns whether all runs succeeded."""
    ends_s = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60
    names = options.names or [*EXPECTED, OVERHEAD_NAME]
    programs = [name for name in names if name != OVERHEAD_NAME]
    for name in programs:
        needs = missing(name, options.device)
        if needs:
            print(f"{name}: not run, it needs {', '.join(needs)}")
    wanted = [
        (name, cured)
        for name in programs
        for cured in (False, True)
        if not missing(name, options.device)
    ]
    left = [part for part in wanted if not session.is_done(*part)]
    print(f"{len(wanted) - len(left)} of {len(wanted)} are recorded already")

    def one(each: tuple[str, bool]) -> bool | None:
        return session.record(*each) if time.monotonic() < ends_s else None

    with ThreadPoolExecutor(options.at_once) as pool:
        try:
            ended = list(pool.map(one, left))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    n_late = ended.count(None)
    if n_late:
        print(f"{n_late} runs are left: {options.minutes:g} minutes are over")
    elif OVERHEAD_NAME in names:
        ended.append(session.record_overhead())
    return all(ended)


def write_table(
    rows: Rows, reports: dict[str, Report], table: Path, *, expects: bool = True
) -> None:
    """Write the table, and the expected reports of recordings without a report.

    Args:
        reports: The reports so far, by the name of the run.
        table: The page.
        expects: Whether expected reports are written.
    """
    for name in (name + cure for name in EXPECTED for cure in ("", CURED)):
        if name in reports:
            continue
        try:
            report = report_on(rows.folder / name)
        except ProfkitError as error:
            print(f"{name}: {error}")
            continue
        if report is not None:
            reports[name] = report
            if expects:
                expect(rows.folder / name, report)

    on_gpu = page(list(truths(rows, EXPECTED, reports)), rows)
    table.write_text(f"{_TITLE}\n{section.recorded()}\n{on_gpu}", encoding="utf-8")
    print(f"the table is {table}")


def main(words: list[str] | None = None) -> int:
    """Record, and write the table.

    Args:
        words: The arguments, or None for those of the command line.

    Returns:
        0 if every run succeeded, else 1.
    """
    options = parse_arguments(words)
    out = options.out or OUT
    table = TABLE if options.out is None else out / "truth.md"
    rows = Rows(out)

    if options.only_table:
        write_table(rows, {}, table)
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    variables = settings()
    if options.device == "cpu":
        variables["OMP_NUM_THREADS"] = "1"  # less disturbed by other work on the machine
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        turns = Turns(options.timeout, variables)
        session = Session(rows, turns, options.device, machine(), Path(scratch))
        succeeded = run_all(session, options)

    write_table(rows, session.reports, table)
    print(f"it took {(time.monotonic() - began_s) / 60:.1f} minutes")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
