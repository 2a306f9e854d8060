"""``profkit run``: an unmodified program, recorded, up to its own end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.capture import current, program
from profkit.capture.discover_steps import Plan, StepFinder
from profkit.capture.options import Options
from profkit.capture.schedule import Schedule
from profkit.capture.steps import DEFAULT_ACTIVE, DEFAULT_WAIT, DEFAULT_WARMUP
from profkit.capture.torch_import import TorchImport
from profkit.errors import UsageError

DEFAULT_SCHEDULE = Schedule(DEFAULT_WAIT, DEFAULT_WARMUP, DEFAULT_ACTIVE)


@dataclass(frozen=True)
class Target:
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
class Outcome:
    """How a run ended.

    Attributes:
        error: What the program raised, with its own frames alone, or None.
        path: The trace file, or None.
        why_not: Why there is no trace, in a sentence.
    """

    error: BaseException | None
    path: str | None
    why_not: str = ""


def run(
    target: Target,
    options: Options,
    schedule: Schedule = DEFAULT_SCHEDULE,
    killed: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """Run a program in this process and record some of its steps.

    Args:
        target: The program.
        options: What to record.
        schedule: Which steps.
        killed: Called when SIGTERM is about to end the process, after the trace is written.

    Raises:
        UsageError: If the program is not there.
    """
    began_in = Path.cwd()
    finder = StepFinder(Plan(target.title, options, schedule))
    watcher = TorchImport(finder.torch_is_there)

    def ended_early(_by: str) -> None:
        if killed is not None:
            killed(Outcome(None, _found(finder.path, began_in), _why_not(finder)))

    if current.is_on:
        watcher.watch()
        current.when_killed = ended_early
    try:
        error = target.run()
        finder.finish(_reason(error))
    except UsageError:
        finder.drop()
        raise
    finally:
        watcher.stop()
        current.when_killed = None
    return Outcome(error, _found(finder.path, began_in), _why_not(finder))


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
