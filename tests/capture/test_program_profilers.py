"""Programs that use a profiler themselves: it sees what it sees without profkit.

Each program runs in processes of its own: as it is, and with profkit.
"""

import dataclasses
import functools
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from profkit.capture.process import program_profilers
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from tests.processes import Ended, start, start_forked
from tests.step_counts import count_steps

PROGRAM = Path(__file__).with_name("profiler_program.py")
RUN = ("-m", "profkit", "run", "--no-leaks")
"""Memory monitoring has cases of its own: it takes time."""


@dataclass(frozen=True)
class Case:
    """How a program uses profilers, as ``profiler_program.py`` understands it."""

    api: str = "run"
    first: str = "program"
    schedule: str = "none"
    stacks: bool = False
    memory: bool = False
    thread: str = ""

    def __str__(self) -> str:
        chosen = [self.api, f"{self.first}-first", self.schedule, self.thread]
        return " ".join([*filter(None, chosen), *self.switches()])

    def switches(self) -> list[str]:
        return [name for name in ("stacks", "memory") if getattr(self, name)]


FAST = [
    Case(schedule="twice", stacks=True, memory=True),
    Case(api="trace", first="profkit", schedule="twice"),
]
"""What crashes were reported of, and one in which profkit is first."""
SCHEDULES = ("none", "twice", "at-once", "late", "endless")
IN_ONE_THREAD = [
    Case(api, first, schedule, stacks=both, memory=both)
    for api, first, schedule, both in itertools.product(
        ("run", "trace", "steps"), ("profkit", "program"), SCHEDULES, (False, True)
    )
]
ALONE = [
    Case(stacks=True, schedule="twice"),
    Case(memory=True, schedule="twice"),
    Case(first="profkit", stacks=True),
    Case(first="profkit", memory=True),
]
IN_A_THREAD = [
    Case(api, schedule=schedule, stacks=both, memory=both, thread=thread)
    for api, schedule, both, thread in itertools.product(
        ("run", "trace"), ("none", "twice", "endless"), (False, True), ("waits", "busy")
    )
]
SLOW = [way for way in (*IN_ONE_THREAD, *ALONE, *IN_A_THREAD) if way not in FAST]


Bare = Callable[[Case], str]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Return a case's output without profkit, which cases that differ only in its use share."""

    @functools.cache
    def output(case: Case) -> str:
        ended = start_forked(tmp_path_factory.mktemp("bare"), *command_of(case), PROFKIT="0")
        assert ended.code == 0, ended.err
        assert ended.out.endswith("end\n")
        return ended.out

    return lambda case: output(dataclasses.replace(case, api="run", first="program"))


def command_of(case: Case) -> tuple[str, str]:
    return str(PROGRAM), json.dumps(dataclasses.asdict(case))


def assert_undisturbed(case: Case, bare: Bare, folder: Path) -> Ended:
    """Run a case with profkit, and compare what its profiler saw with what it sees without."""
    watched = start_forked(folder, *(RUN if case.api == "run" else ()), *command_of(case))
    assert (watched.code, watched.out) == (0, bare(case)), watched.err
    assert "Traceback" not in watched.err
    return watched


@pytest.mark.parametrize("case", FAST, ids=str)
def test_a_programs_profiler_sees_what_it_sees_without_profkit(
    case: Case, bare: Bare, tmp_path: Path
) -> None:
    assert_undisturbed(case, bare, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_it_does_so_in_every_order_schedule_and_thread(
    case: Case, bare: Bare, tmp_path: Path
) -> None:
    assert_undisturbed(case, bare, tmp_path)


TRAINS = """\
import sys, threading
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()

def train(n=20):
    for _ in range(n):
        step()

def keys(profiler):
    print(sorted((each.key, each.count) for each in profiler.key_averages()))

"""
COUNTS_CALLS = """\
from collections import Counter
calls = Counter()
def count(frame, event, _):
    if frame.f_code.co_filename == __file__ and frame.f_code.co_name in {"step", "train"}:
        calls[frame.f_code.co_name, event] += 1
    return count
"""
OTHERS = {
    "autograd": """
with torch.autograd.profiler.profile() as profiler:
    train()
keys(profiler)
""",
    "legacy": """
train(5)
with torch.autograd.profiler_legacy.profile() as profiler:
    train()
print(len(profiler.function_events))
""",
    "low-level": """
profiler = torch.profiler._KinetoProfile()
profiler.prepare_trace()
train(5)
profiler.start_trace()
train()
profiler.stop_trace()
keys(profiler)
""",
    "accumulated": """
with torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=3), acc_events=True
) as profiler:
    for _ in range(20):
        step()
        profiler.step()
keys(profiler)
""",
    "one-after-another": """
for _ in range(3):
    with torch.profiler.profile() as profiler:
        train(6)
    keys(profiler)
    train(6)
""",
    "raises": """
with torch.profiler.profile() as profiler:
    train()
    raise ValueError("inside")
""",
    "never-stopped": """
profiler = torch.profiler.profile()
profiler.start()
train()
print("end")
""",
    "exits-inside": """
with torch.profiler.profile() as profiler:
    train()
    keys(profiler) if False else sys.exit(5)
""",
    "execution-trace": """
import json, tempfile
from collections import Counter
with tempfile.NamedTemporaryFile(suffix=".json") as file:
    observer = torch.profiler.ExecutionTraceObserver().register_callback(file.name)
    observer.start()
    train()
    observer.stop()
    observer.unregister_callback()
    nodes = json.load(open(file.name))["nodes"]
print(sorted(Counter(node["name"] for node in nodes).items()))
""",
    "cprofile": """
import cProfile, pstats
train(5)
profiler = cProfile.Profile()
profiler.enable()
train()
profiler.disable()
print(sorted((key[2], value[0]) for key, value in pstats.Stats(profiler).stats.items()
             if key[0] == __file__))
""",
    "cprofile-first": """
import cProfile, pstats
profiler = cProfile.Profile()
profiler.runcall(train)
print(sorted((key[2], value[0]) for key, value in pstats.Stats(profiler).stats.items()
             if key[0] == __file__))
""",
    "cprofile-in-a-thread": """
import cProfile, pstats
profiler = cProfile.Profile()
began, ended = threading.Event(), threading.Event()
def count():
    return 1
def work():
    profiler.enable()
    began.set()
    while not ended.is_set():
        count()
    profiler.disable()
thread = threading.Thread(target=work)
thread.start()
began.wait()
train()
ended.set()
thread.join()
found = {key[2] for key in pstats.Stats(profiler).stats if key[0] == __file__}
print(sorted(found), sys.getprofile())
""",
    "setprofile": COUNTS_CALLS
    + """
sys.setprofile(count)
train()
sys.setprofile(None)
print(sorted(calls.items()))
""",
    "cprofile-around-each-step": """
import cProfile, pstats
profiler = cProfile.Profile()
for _ in range(20):
    profiler.enable()
    step()
    profiler.disable()
print(sorted((key[2], value[0]) for key, value in pstats.Stats(profiler).stats.items()
             if key[0] == __file__))
""",
    "cprofile-in-a-later-thread": """
import cProfile, pstats
profiler = cProfile.Profile()
ended = threading.Event()
def count():
    return 1
def work():
    profiler.enable()
    while not ended.is_set():
        count()
    profiler.disable()
train(3)
thread = threading.Thread(target=work)
thread.start()
train()
ended.set()
thread.join()
print("count" in {key[2] for key in pstats.Stats(profiler).stats if key[0] == __file__})
""",
    "setprofile-inside": COUNTS_CALLS
    + """
train(5)
sys.setprofile(count)
train()
print(sys.getprofile() is count)
sys.setprofile(None)
print(sorted(calls.items()))
""",
    "threading-setprofile": COUNTS_CALLS
    + """
threading.setprofile(count)
train(5)
thread = threading.Thread(target=train)
thread.start()
thread.join()
print(sorted(calls.items()))
""",
    "settrace": COUNTS_CALLS
    + """
sys.settrace(count)
train()
sys.settrace(None)
print(sorted(calls.items()))
""",
    "coverage": """
import coverage
measured = coverage.Coverage(data_file=None, include=[__file__])
measured.start()
train()
measured.stop()
print(measured.analysis2(__file__)[1:4])
""",
    "debugger": """
import bdb
class Debugger(bdb.Bdb):
    lines = []
    def user_line(self, frame):
        if frame.f_code.co_filename == __file__:
            self.lines.append(frame.f_lineno)
        self.set_step()
debugger = Debugger()
debugger.runcall(train, 8)
print(debugger.lines)
""",
}
"""Other profilers, debuggers and endings; each prints what it saw."""
FAST_OTHERS = ("cprofile",)


def assert_others_undisturbed(name: str, folder: Path) -> None:
    if name == "cprofile" and sys.version_info[:3] in {(3, 12, 1), (3, 13, 0)}:
        pytest.skip("this Python's cProfile loses what runs while torch imports a module of it")
    script = folder / "script.py"
    script.write_text(TRAINS + OTHERS[name])
    bare = start_forked(folder, str(script))
    watched = start_forked(folder, *RUN, str(script))
    assert (watched.code, watched.out) == (bare.code, bare.out), watched.err
    assert watched.err.count("Traceback") == bare.err.count("Traceback")


@pytest.mark.parametrize("name", FAST_OTHERS)
def test_other_profilers_are_undisturbed(name: str, tmp_path: Path) -> None:
    assert_others_undisturbed(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [way for way in OTHERS if way not in FAST_OTHERS])
def test_profilers_debuggers_and_coverage_are_undisturbed(name: str, tmp_path: Path) -> None:
    assert_others_undisturbed(name, tmp_path)


def test_classes_of_the_program_are_not_compared() -> None:
    class Incomparable(type):
        def __eq__(cls, other: object) -> bool:
            raise RuntimeError

        __hash__ = type.__hash__

    kept = Incomparable("Kept", (), {})()
    assert not program_profilers.is_open()
    assert program_profilers.find_python_profiler() == ""
    assert kept is not None


def test_the_report_says_why_no_steps_were_recorded(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS + OTHERS["autograd"])
    watched = start_forked(tmp_path, "-m", "profkit", "run", "--json", "report.json", str(script))
    report = json.loads((tmp_path / "report.json").read_text())
    (sentence,) = report["summary"]["memory"]["not_measured"]
    assert "uses a profiler itself (torch.autograd.profiler.profile)" in sentence
    assert "recorded no steps" in sentence
    assert "uses a profiler itself" in watched.err


def test_whole_steps_before_the_programs_profiler_are_reported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS + "train(10)" + OTHERS["autograd"])
    watched = start_forked(tmp_path, *RUN, "--active", "50", "--json", "report.json", str(script))
    report = json.loads((tmp_path / "report.json").read_text())
    assert count_steps(report["summary"]) == 6  # of 10: two to wait, two to warm up
    assert "the recording of “script” ends there" in watched.err


@pytest.mark.skipif(
    not hasattr(torch.profiler.profiler, "_warn_once"), reason="this torch has no such warnings"
)
def test_warnings_about_profilers_are_for_the_programs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch_module = sys.modules["torch.profiler.profiler"]
    prepare_trace = torch.profiler.profile.prepare_trace

    def warn_and_prepare(profile: torch.profiler.profile) -> None:
        vars(torch_module)["_warn_once"]("events are cleared")
        prepare_trace(profile)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", warn_and_prepare)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recording = ProfilerRecording(Options(quiet=True), stacks=False)
        recording.start()
        recording.stop()
        recording.release()
        assert not warned
        with torch.profiler.profile():
            pass
    # Until torch 2.12 there is one of torch's own beside it.
    assert "events are cleared" in [str(warning.message) for warning in warned]


@pytest.mark.slow
def test_a_daemon_that_may_record_at_any_time_keeps_profkit_from_recording(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS + "train()")
    watched = start(tmp_path, *RUN, str(script), KINETO_USE_DAEMON="1")
    assert watched.code == 0
    assert "uses a profiler itself (KINETO_USE_DAEMON)" in watched.err
    assert not list(tmp_path.rglob("*.pt.trace.json.gz"))


@pytest.mark.slow
def test_a_profiler_cancels_a_recording_that_its_thread_cannot_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        TRAINS
        + """
import profkit
opened, profiled = threading.Event(), threading.Event()

def traced():
    with profkit.trace("other", warmup=1, active=9) as t:
        for _ in range(3):
            step()
            t.step()
        opened.set()
        profiled.wait()
        for _ in range(3):
            step()
            t.step()
    print(t.path)
    with torch.profiler.profile() as profiler:
        train(3)
    keys(profiler)

thread = threading.Thread(target=traced)
thread.start()
opened.wait()
with torch.profiler.profile() as profiler:
    train(3)
keys(profiler)
profiled.set()
thread.join()
with profkit.trace("again") as t:
    train(3)
print(t.path is not None)
"""
    )
    ended = start_forked(tmp_path, str(script))
    assert ended.code == 0, ended.err
    of_main, path, of_thread, again = ended.out.splitlines()
    assert of_main == of_thread
    assert "('aten::addmm', 6)" in of_main
    assert (path, again) == ("None", "True")
    assert "uses a profiler in another thread" in ended.err
