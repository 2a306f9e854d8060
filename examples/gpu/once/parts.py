"""What is run on a GPU that is there for minutes only: the most valuable part first."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from examples.gpu.once.command import Command, Runner, stop
from examples.gpu.recording.rows import EXPECTED, OVERHEAD, PROGRAMS, ROOT

FIRST: Final = (
    "item_each_step", "iris_each_epoch", "pageable_copies", "starved_loader", "tiny_kernels",
    "fp32_matmul", "unfused_optimizer", "unfused_attention", "growing_list", "kept_graphs",
    "fragmentation", "out_of_memory",
)  # fmt: skip
"""The pairs that matter most."""
ORDINARY: Final = PROGRAMS / "ordinary"
VARIANTS: Final = {
    "plain": (),
    "compiled": ("--compile",),
    "reduced": ("--compile", "reduce-overhead"),
    "graphs": ("--graphs",),
}
"""The ordinary transformer, by the arguments with which it is run."""
STEADY: Final = {
    "bare": None,
    "all": (),
    "no_leaks": ("--no-leaks",),
    "no_trace": ("--no-trace",),
}
"""Options of ``profkit run``, or None without it."""
LIBRARIES: Final = ("trainer_gpt2", "lightning_cnn")
PYTHON: Final = (sys.executable, "-u", "-X", "faulthandler")
PROFKIT: Final = (*PYTHON, "-m", "profkit")


@dataclass(frozen=True)
class Setting:
    """Where and with what all parts run.

    Attributes:
        runner: Runs their commands.
        device: ``cuda``, or ``cpu`` for a rehearsal with small runs.
        folder: The folder of everything that is kept.
        scratch: The folder in which the commands run.
        ends_s: When a part's time is over, in seconds of ``time.monotonic()``.
    """

    runner: Runner
    device: str
    folder: Path
    scratch: Path
    ends_s: float

    @property
    def is_rehearsal(self) -> bool:
        """Return whether there is no GPU."""
        return self.device == "cpu"

    def kept(self, *names: str) -> Path:
        """Return a folder in that of everything that is kept."""
        folder = self.folder.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def n_steady(self) -> int:
        """Steps of a program that goes on long after it was recorded."""
        return 20 if self.is_rehearsal else 600

    def run(self, *commands: Command) -> None:
        """Run commands at the same time."""
        self.runner.run(commands, self.ends_s)

    def one(self, name: str, *words: str, limit_s: float = 60.0, **settings: str) -> None:
        """Run one command."""
        self.run(Command(name, words, limit_s, settings))


def watching(setting: Setting, *names: str) -> tuple[str, ...]:
    """Return the words of ``profkit run`` with a folder, of these names, for all that it writes."""
    kept = setting.kept(*names)
    return (*PROFKIT, "run", "--dir", str(kept), "--json", str(kept / "report.json"))


def transformer(setting: Setting, name: str, variant: str, *watching: str) -> Command:
    """Return the command that trains the ordinary transformer, bare or under ``profkit run``."""
    program = (str(ORDINARY / "transformer.py"), *VARIANTS[variant], *small(setting))
    return Command(name, (*(watching or PYTHON), *program), 60.0, {})


def watched_and_bare(setting: Setting, variant: str) -> None:
    """Run the ordinary transformer under ``profkit run``, then bare."""
    words = watching(setting, "ordinary", variant)
    setting.run(transformer(setting, f"watched_{variant}", variant, *words))
    setting.run(transformer(setting, f"bare_{variant}", variant))


def ordinary(setting: Setting) -> None:
    """Run the transformer that anybody would write, also with CUDA graphs."""
    setting.one("doctor", *PROFKIT, "doctor")
    watched_and_bare(setting, "plain")
    if not setting.is_rehearsal:
        watched_and_bare(setting, "graphs")


def compiled(setting: Setting) -> None:
    """Run the same transformer compiled, with what the compilers have cached before."""
    watched_and_bare(setting, "compiled")
    watched_and_bare(setting, "reduced")


def small(setting: Setting) -> tuple[str, ...]:
    """Return the arguments of the transformer for a rehearsal."""
    sizes = ("--steps", "16", "--batch", "1", "--width", "64", "--layers", "1", "--device", "cpu")
    return sizes if setting.is_rehearsal else ()


def pytest(*words: str) -> tuple[str, ...]:
    """Return the command that runs tests of the repository from another folder."""
    return (
        *PYTHON,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
        *words,
    )


def tests(setting: Setting) -> None:
    """Run the tests that need a GPU: those that measure its memory alone, then the leaks."""
    gpu, capture = ROOT / "tests" / "gpu", ROOT / "tests" / "capture"
    leaks = gpu / "test_leaks.py"
    # Compilers fill their caches meanwhile: nothing of this part is timed.
    compiling = [transformer(setting, f"cold_{name}", name) for name in ("compiled", "reduced")]
    chosen = ("-m", "gpu", str(gpu), str(capture), "--ignore", str(leaks), "--durations", "10")
    setting.run(Command("tests", pytest(*chosen), 110.0, {}), *compiling)
    setting.one("leaks", *pytest("-m", "gpu", str(leaks), "-n", "10"), limit_s=80.0)


def record(setting: Setting, log: str, *names: str) -> None:
    """Record programs with and without their problem; what is recorded already is skipped."""
    minutes = max(0.0, setting.ends_s - time.monotonic()) / 60
    setting.one(
        log,
        *PYTHON,
        str(PROGRAMS / "record.py"),
        *names,
        "--device",
        setting.device,
        "--out",
        str(setting.kept("recordings")),
        "--minutes",
        f"{minutes:.2f}",
        limit_s=minutes * 60,
    )


def pairs(setting: Setting) -> None:
    """Record the pairs that matter most."""
    record(setting, "pairs", *FIRST)


def overhead(setting: Setting) -> None:
    """Measure what recording a step costs."""
    record(setting, "overhead", OVERHEAD.stem)


def look_at_running_job(setting: Setting) -> None:
    """Look at a job that runs, and record some of its steps."""
    program = (str(ORDINARY / "transformer.py"), *small(setting), "--steps", "4000")
    folder = setting.scratch / "listening"
    words = (*PROFKIT, "run", "--no-trace", "--no-leaks", "--dir", str(folder), *program)
    job = Command("job", words, 60.0, {"PROFKIT_LISTEN": "1"})
    began_s = time.monotonic()
    process = setting.runner.start(job)

    try:
        is_there = wait_for_folder(folder, process, began_s + 30)
        if is_there is None:
            print("  job: it does not listen", flush=True)
            return
        time.sleep(3)
        setting.one("top", *PROFKIT, "top", "--once", str(is_there), limit_s=15)
        setting.one("stacks", *PROFKIT, "stacks", str(is_there), limit_s=15)
        setting.one("trigger", *PROFKIT, "trigger", str(is_there), limit_s=30)
    finally:
        stop(process, shows_stacks=False)


def wait_for_folder(
    folder: Path, process: "subprocess.Popen[bytes]", until_s: float
) -> Path | None:
    """Return a running job's folder once it exists; None if the job ends before that."""
    while time.monotonic() < until_s and process.poll() is None:
        first_path = next(iter(sorted(folder.glob("*"))), None)
        if first_path is not None:
            return first_path
        time.sleep(0.1)
    return None


def roofline(setting: Setting) -> None:
    """Compare what kernels reach with what events measure."""
    sizes = ("--size", "256", "--device", "cpu") if setting.is_rehearsal else ()
    setting.one(
        "roofline",
        *watching(setting, "roofline"),
        str(ORDINARY / "roofline.py"),
        *sizes,
        limit_s=40,
    )


def steady(setting: Setting) -> None:
    """Compare steps long after the recorded ones, with each thing that goes on until the end."""
    for name, options in STEADY.items():
        words = () if options is None else (*PROFKIT, "run", *options)
        command = transformer(setting, f"steady_{name}", "plain", *words)
        setting.run(replace(command, words=(*command.words, "--steps", str(setting.n_steady))))
    setting.one("after", *PYTHON, str(ORDINARY / "after_recording.py"), "--device", setting.device)


def libraries(setting: Setting) -> None:
    """Run programs that train with other libraries, under ``profkit run``."""
    for name in LIBRARIES:
        program = str(ORDINARY / f"{name}.py")
        setting.one(name, *watching(setting, "libraries", name), program, limit_s=40)
        setting.one(f"bare_{name}", *PYTHON, program, limit_s=40)


def rest(setting: Setting) -> None:
    """Record the other pairs, in the order of ``expected.json``."""
    record(setting, "rest", *(name for name in EXPECTED if name not in FIRST))


def recorder(setting: Setting) -> None:
    """Run all tests of recording where there is a GPU."""
    chosen = ("-k", "test_schedule") if setting.is_rehearsal else ()
    setting.one(
        "recorder",
        *pytest(str(ROOT / "tests" / "capture"), "-n", "10", "-m", "not gpu and not slow", *chosen),
        limit_s=120,
    )


def chaos(setting: Setting) -> None:
    """Run programs of all kinds with random signals where there is a GPU."""
    words = ("-m", "tests.chaos", "--runs", "1", "--jobs", "5")
    setting.one("chaos", *PYTHON, *words, limit_s=240)


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        run: Runs it.
        limit_s: Seconds that it may take.
    """

    name: str
    run: Callable[[Setting], None]
    limit_s: float


PARTS: Final = (
    Part("ordinary", ordinary, 75.0),
    Part("tests", tests, 190.0),
    Part("compiled", compiled, 75.0),
    Part("pairs", pairs, 240.0),
    Part("overhead", overhead, 45.0),
    Part("steady", steady, 100.0),
    Part("running", look_at_running_job, 60.0),
    Part("roofline", roofline, 40.0),
    Part("libraries", libraries, 90.0),
    Part("rest", rest, 400.0),
    Part("recorder", recorder, 120.0),
    Part("chaos", chaos, 240.0),
)
"""All parts, the most valuable first: whatever ends early has those."""
