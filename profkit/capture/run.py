"""``profkit run``: an unmodified program, recorded, up to its own end."""

import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from profkit.capture import console, current, environment, files, program, signals
from profkit.capture.memory.cuda import oom
from profkit.capture.schedule import Schedule
from profkit.capture.step_detection import Plan, StepFinder
from profkit.capture.steps import DEFAULT_ACTIVE, DEFAULT_WAIT, DEFAULT_WARMUP
from profkit.errors import UsageError

DEFAULT_SCHEDULE = Schedule(DEFAULT_WAIT, DEFAULT_WARMUP, DEFAULT_ACTIVE)


@dataclass(frozen=True)
class ProgramTarget:
    """What to run.

    Attributes:
        name: A script's path, or a module's name.
        args: Its arguments.
        is_module: Whether it is a module.
    """

    name: str
    args: Sequence[str] = ()
    is_module: bool = False

    @property
    def title(self) -> str:
        """The name of the trace: the script's without its folder and ending, or the module's."""
        return self.name if self.is_module else Path(self.name).stem

    def run(self) -> BaseException | None:
        """Run it and return what it raised, or None.

        Raises:
            UsageError: If it is not there.
        """
        start = program.run_module if self.is_module else program.run_script
        return start(self.name, self.args)


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        error: What the program raised, with its own frames alone, or None.
        path: The trace file, or None.
        why_not: Why there is neither trace nor memory, in a sentence.
        memory: The file of what was watched of the program's memory, or None.
        snapshot: The snapshot of CUDA's memory from when it ran out, or None.
        is_of_child: Whether it is a child that the program has forked which ended here. What there
            is to report is its parent's.
    """

    error: BaseException | None
    path: str | None
    why_not: str = ""
    memory: str | None = None
    snapshot: str | None = None
    is_of_child: bool = False

    @property
    def files(self) -> list[str]:
        """What there is to report on."""
        return [file for file in (self.path, self.memory, self.snapshot) if file is not None]


def run(
    target: ProgramTarget,
    plan: Plan,
    killed: Callable[[RunResult], None] | None = None,
) -> RunResult:
    """Run a program in this process, record some of its steps and watch its memory.

    Args:
        target: The program.
        plan: What to record.
        killed: Called when SIGTERM is about to end the process, after everything is written.

    Raises:
        UsageError: If the program is not there.
    """
    running = _Run(plan)

    def ended_early(_by: str) -> bool:
        if killed is not None and running.is_home:
            killed(running.outcome(None))
        return True

    if current.is_on:
        running.imports.watch()
        current.when_killed = ended_early
        if plan.watches and not plan.traces:
            signals.on_sigterm(ended_early)
    try:
        error = target.run()
        running.finder.finish(_reason(error))
    except UsageError:
        running.finder.drop()
        raise
    finally:
        running.imports.stop()
        running.shortage.__exit__(None, None, None)
        current.when_killed = None
        signals.remove(ended_early)
    return running.outcome(error)


class _Run:
    """One run and what it leaves.

    Args:
        plan: What to record.
    """

    def __init__(self, plan: Plan) -> None:
        self.finder = StepFinder(plan)
        self.imports = TorchImport(self._torch_is_there)
        self._plan = plan
        self._pid = os.getpid()
        self._began_in = Path.cwd()
        folder = self._began_in / files.trace_folder(plan.options.folder, plan.name).parent
        self.shortage = oom.watch(
            str(folder), plan.name, quiet=plan.options.quiet, stacks_of="alloc"
        )

    @property
    def is_home(self) -> bool:
        """Whether this is the process that began, and no child that the program has forked."""
        return self._pid == os.getpid()

    def _torch_is_there(self) -> None:
        self.finder.torch_is_there()
        if self._plan.watches:
            self.shortage.__enter__()

    def outcome(self, error: BaseException | None) -> RunResult:
        """How it ended; what was seen of memory is written now.

        Args:
            error: What the program raised, or None.
        """
        if not self.is_home:
            return RunResult(error, None, is_of_child=True)
        path = _found(self.finder.path, self._began_in)
        memory = self._write_memory(path)
        why_not = "" if path or memory else _why_not(self.finder)
        return RunResult(error, path, why_not, memory, self.shortage.path)

    def _write_memory(self, path: str | None) -> str | None:
        live = self.finder.memory()
        if live is None:
            return None
        folder = self._began_in / files.trace_folder(self._plan.options.folder, self._plan.name)
        trace = path or files.trace_file(folder, environment.ranks()[0])
        target = files.memory_file(trace)
        try:
            files.write_memory(live, target)
        except OSError as error:
            console.warn("what was seen of the program's memory could not be written.", error)
            return None
        return str(target)


def _found(path: str | None, began_in: Path) -> str | None:
    """The trace's path, from wherever the program has gone since."""
    return path if path is None or Path(path).exists() else str(began_in / path)


def _reason(error: BaseException | None) -> str:
    """What ended a program early; leaving by ``sys.exit`` is its usual end."""
    return "" if error is None or isinstance(error, SystemExit) else type(error).__name__


def _why_not(finder: StepFinder) -> str:
    if finder.path is not None:
        return ""
    if not current.is_on:
        return "PROFKIT=0 turns recording off."
    if not finder.saw_torch:
        return "The program did not import torch, so there is nothing to report."
    return "No trace was written."


class TorchImport:
    """Calls a function right after the program imports torch, by an entry in ``sys.meta_path``.

    Args:
        on_import: Called once.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import

    def watch(self) -> None:
        """Begin to wait; if torch is imported already, the function is called at once."""
        if "torch" in sys.modules:
            self._on_import()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Remove the entry."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as Python would, with a call at the end of its import."""
        if fullname != "torch":
            return None
        self.stop()
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._on_import()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
