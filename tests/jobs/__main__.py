"""Runs distributed jobs with planted faults under ``profkit run``, and prints what was found.

``python -m tests.jobs`` runs all of them, ``python -m tests.jobs ddp2/moving tp2`` some, and
``--busy 6`` beside so many processes that compute. A job takes about half a minute on two cores;
the exit code is 1 if any verdict is wrong.
"""

import argparse
import json
import linecache
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

PROGRAM: Final = Path(__file__).with_name("program.py")
ROOT: Final = PROGRAM.parents[2]
TIMEOUT_S: Final = 180
JUDGES: Final = ("COM003", "COM004", "COM005", "COM012")
"""Rules that blame ranks."""


class Expected(NamedTuple):
    """What has to be found of a fault.

    Attributes:
        rule: The only one of :data:`JUDGES` that may report, or empty.
        ranks: The ranks that it names; empty for any.
        code: Exit code of torchrun.
        line: What the source line of its first location contains; empty for any.
    """

    rule: str = ""
    ranks: tuple[int, ...] = ()
    code: int = 0
    line: str = ""


FAULTS: Final = {
    "balanced": Expected(),
    "compute5": Expected("COM004", (1,), line="weights @ weights"),
    "compute50": Expected("COM004", (1,), line="weights @ weights"),
    "sleep5": Expected("COM004", (1,), line="time.sleep(2e-3)"),
    "sleep50": Expected("COM004", (1,), line="time.sleep(15e-3)"),
    "python50": Expected("COM004", (1,), line="i * i"),
    "data": Expected("COM004", (1,), line="time.sleep(20e-3 / BATCH)"),
    "hook": Expected("COM004", (1,), line="weights @ weights"),
    "metrics": Expected("COM004", (0,), line="ordered"),
    "moving": Expected("COM004", line="time.sleep(15e-3)"),
    "uneven": Expected("COM005"),
    "crash": Expected("COM012", (1,), 1, line='raise ValueError("bad batch")'),
    "exit": Expected("COM012", (1,), 1, line="sys.exit(3)"),
    "kill": Expected("COM012", (1,), 1),
    "oom": Expected("COM012", (1,), 1, line="torch.empty(1 << 45)"),
    "mismatch": Expected("COM003", code=1, line="dist.all_reduce(torch.ones(7))"),
}
SOME: Final = ("balanced", "compute50", "sleep50", "crash", "kill")
IN_PIPELINES: Final = {
    "balanced": Expected(),
    "sleep50": Expected("COM004", (1,), line="time.sleep(15e-3)"),
    "hook": Expected("COM005", (1,)),
    "stage": Expected("COM005", (1,)),
    "crash": FAULTS["crash"],
}
"""There a rank that computes longer is a stage with more work than the others."""
PIPELINES: Final = ("1f1b", "gpipe")
JOBS: Final = {
    "ddp2": tuple(FAULTS),
    "ddp4": tuple(FAULTS),
    "fsdp22": SOME,
    "fsdp24": SOME,
    "tp2": SOME,
    **dict.fromkeys(("1f1b2", "1f1b4", "gpipe2"), tuple(IN_PIPELINES)),
}


def run_job(name: str, fault: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Run a job, and return its exit code and the report; empty without one."""
    report = folder / "report.json"
    launch = ["torchrun", "--nproc_per_node", name[-1], str(PROGRAM), name[:-1], fault]
    with (folder / "err").open("wb") as errors:

        def call_profkit(*words: str) -> int:
            return subprocess.run(
                [sys.executable, "-m", "profkit", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=errors,
                stderr=errors,
                timeout=TIMEOUT_S,
                check=False,
            ).returncode

        code = call_profkit("run", "--json", str(report), *launch)
        if not report.exists():
            # torchrun ends the other ranks of a job that fails, also one that reports on it.
            call_profkit("analyze", "--format", "json", "-o", str(report))
    return code, json.loads(report.read_text()) if report.exists() else {}


def judge(name: str, fault: str, code: int, report: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the verdict on a job is right, and what it is."""
    expected = (IN_PIPELINES if name.startswith(PIPELINES) else FAULTS)[fault]
    verdicts = [finding for finding in report.get("findings", ()) if finding["rule"] in JUDGES]
    is_right = [finding["rule"] for finding in verdicts] == [expected.rule] * bool(expected.rule)
    if is_right and expected.ranks:
        is_right = tuple(verdicts[0]["ranks"]) == expected.ranks
    line = find_line(verdicts[0]) if verdicts else ""
    is_right &= expected.line in line and code == expected.code and bool(report)
    told = " ".join(finding["message"] for finding in verdicts) or "silent"
    return is_right, f"exit {code}: {told} [{line}]"


def find_line(finding: dict[str, Any]) -> str:
    """Return the source line of the first location of a finding, empty where it has none."""
    for location in finding["locations"][:1]:
        if location["file"] and location["file"].endswith(PROGRAM.name):
            return linecache.getline(str(PROGRAM), location["line"]).strip()
    return ""


def select_jobs(wanted: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the jobs whose name is or begins with one of some words; all without words."""
    for name, faults in JOBS.items():
        for fault in faults:
            if not wanted or {name, f"{name}/{fault}"} & {*wanted}:
                yield name, fault


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--busy", type=int, default=0, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the recordings there")
    arguments = parser.parse_args()

    disturbing = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)
    ]
    n_wrong = 0
    try:
        for name, fault in select_jobs(arguments.jobs):
            with tempfile.TemporaryDirectory() as temporary:
                folder = arguments.keep / name / fault if arguments.keep else Path(temporary)
                shutil.rmtree(folder / "traces", ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                is_right, told = judge(name, fault, *run_job(name, fault, folder))
            n_wrong += not is_right
            print(f"| {name} | {fault} | {'right' if is_right else 'WRONG'} | {told} |", flush=True)
    finally:
        for process in disturbing:
            process.kill()
    return min(n_wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
