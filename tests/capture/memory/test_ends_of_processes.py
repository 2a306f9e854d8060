"""Monitored programs that fork, are killed, or exit early.

Each runs under ``profkit run`` in a process of its own. However it ends, its exit code and output
are unchanged, its memory is reported, and its forked children report nothing.
"""

import concurrent.futures
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Ended, start

pytestmark = pytest.mark.slow

START = """\
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader

kept = []
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(batches):
    for _ in batches:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        kept.append(torch.zeros(65536))

"""

PROGRAMS = {
    "terminated": """
train(range(30))
os.kill(os.getpid(), signal.SIGTERM)
print("never", flush=True)
""",
    "interrupted": """
# A test run that was started in the background ignores Ctrl-C, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
train(range(30))
os.kill(os.getpid(), signal.SIGINT)
train(range(30))
print("never", flush=True)
""",
    "leaves": """
try:
    train(range(30))
    sys.exit(7)
finally:
    print("last words", flush=True)
""",
    "leaves at once": """
train(range(30))
print("last words", flush=True)
os._exit(5)
""",
    "forks": """
def in_a_child(act):
    child = os.fork()
    if child == 0:
        act()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def trains_and(act):
    def both():
        train(range(12))
        act()
    return both

def fails():
    raise ValueError("of the child alone")

train(range(15))
codes = [in_a_child(trains_and(lambda: sys.exit(3)))]
codes += [in_a_child(trains_and(lambda: os._exit(4)))]
codes += [in_a_child(lambda: os.kill(os.getpid(), signal.SIGTERM))]
codes += [in_a_child(trains_and(fails))]
train(range(15))
print(codes, len(kept), flush=True)
""",
    "loads": """
if __name__ == "__main__":
    for start in ("fork", "spawn"):
        loader = DataLoader(list(range(60)), 4, num_workers=1, multiprocessing_context=start)
        train(loader)
    print(len(kept), flush=True)
""",
}

TRACED = {"forks"}
"""Programs that are also traced: a child inherits the trace of its parent."""


@dataclass(frozen=True)
class Monitored(Ended):
    """How a program ended, its report and its files."""

    report: dict[str, Any] | None
    files: list[str]

    @property
    def leak(self) -> dict[str, Any]:
        """Return the only leak."""
        assert self.report is not None, self.err
        (leak,) = (
            finding for finding in self.report["findings"] if finding["name"] == "growing-container"
        )
        assert isinstance(leak, dict)
        return leak


def run(folder: Path, name: str) -> Monitored:
    script = folder / f"{name.replace(' ', '_')}.py"
    script.write_text(START + PROGRAMS[name])
    traces, report = folder / "traces", folder / "report.json"
    options = [*([] if name in TRACED else ["--no-trace"]), "--dir", str(traces)]
    process = start(folder, "-m", "profkit", "run", *options, "--json", str(report), str(script))
    return Monitored(
        process.code,
        process.out,
        process.err,
        json.loads(report.read_text()) if report.exists() else None,
        sorted(path.name for path in traces.rglob("*") if path.is_file()),
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Monitored]:
    """All programs, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {
            name: pool.submit(run, tmp_path_factory.mktemp(name.replace(" ", "_")), name)
            for name in PROGRAMS
        }
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize(
    ("name", "code", "out", "n_steps"),
    [
        ("terminated", -signal.SIGTERM, "", 30),
        ("interrupted", -signal.SIGINT, "", 30),
        ("leaves", 7, "last words\n", 30),
        ("forks", 0, f"[3, 4, {-signal.SIGTERM}, 1] 30\n", 30),
        ("loads", 0, "30\n", 30),
    ],
)
def test_exit_code_and_output_are_unchanged_and_the_leak_is_reported(
    ended: dict[str, Monitored], name: str, code: int, out: str, n_steps: int
) -> None:
    run = ended[name]
    assert (run.code, run.out) == (code, out), run.err
    assert run.leak["cost"]["per_step_bytes"] == 262144
    # On a busy machine the last samples may be skipped, but never all of the last third.
    assert n_steps / 1.5 <= run.leak["evidence"]["last_step"] <= n_steps
    assert len(run.files) == (2 if name in TRACED else 1)
    assert run.files[0].endswith(".memory.json.gz")


def test_a_program_that_calls_os_exit_leaves_nothing(ended: dict[str, Monitored]) -> None:
    run = ended["leaves at once"]
    assert (run.code, run.out, run.err, list(run.files)) == (5, "last words\n", "", [])


def test_forked_children_report_nothing(ended: dict[str, Monitored]) -> None:
    run = ended["forks"]
    assert run.err.count("growing-container") == 1
    assert "profkit:" not in run.err
    assert run.err.count("ValueError: of the child alone") == 1
    traceback = run.err[run.err.index("Traceback") : run.err.index("ValueError: of the child")]
    assert "profkit" not in traceback


def test_loader_workers_report_nothing(ended: dict[str, Monitored]) -> None:
    run = ended["loads"]
    assert run.err.count("growing-container") == 1
    assert "Traceback" not in run.err
