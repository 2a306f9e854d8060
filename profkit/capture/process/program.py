"""Runs a program in this process as ``python`` itself would.

It finds the same ``sys.argv``, ``sys.path[0]``, ``__main__`` and ``__file__``, and its tracebacks
begin with its own first line.
"""

import builtins
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType, TracebackType
from typing import Final

from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.folders import working_folder

_STARTERS: Final = (PROFKIT_FOLDER, "<frozen runpy>", "<frozen importlib", runpy.__file__)
"""Beginnings of the file names of the frames that start the program."""
_HOOKS: Final = (
    str(Path(PROFKIT_FOLDER, "capture", "process", "wrappers.py")),
    str(Path(PROFKIT_FOLDER, "capture", "process", "optimizer_steps.py")),
    str(Path(PROFKIT_FOLDER, "capture", "live", "step_ends.py")),
)
"""The files of functions that are called in place of the program's or torch's, and call those."""
_RUNPY: Final = ("<frozen runpy>", runpy.__file__, __file__)


class CannotStartError(Exception):
    """A program that does not exist, with the message and exit code of ``python`` itself.

    Attributes:
        exit_code: 2 for a script that cannot be opened, 1 for anything else.
    """

    def __init__(self, reason: object, exit_code: int) -> None:
        super().__init__(f"{sys.executable}: {reason}")
        self.exit_code = exit_code


def run_script(path: str, args: Sequence[str]) -> BaseException | None:
    """Run a script, or a folder or archive with a ``__main__``.

    Args:
        path: The script's path as given by the user.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        CannotStartError: If it does not exist.
    """
    full = path if Path(path).is_absolute() else f"{working_folder()}{os.sep}{path}"
    sys.argv[:] = [path, *args]
    try:
        is_source = not Path(path).is_dir() and _is_source(path)
    except OSError as error:
        reason = f"can't open file {full!r}: [Errno {error.errno}] {error.strerror}"
        raise CannotStartError(reason, 2) from None

    if not is_source:
        return _run(lambda: _execute_archive(full))

    # The file keeps its name, but its folder is without links, as in python itself.
    _set_first_path(str(Path(path).resolve().parent))
    # Compiled inside, so that a syntax error is the program's.
    loader = SourceFileLoader("__main__", full)
    names = {"__file__": full, "__cached__": None, "__loader__": loader}
    return _run(lambda: _execute(_compile(full), **names))


def run_code(source: str, args: Sequence[str]) -> BaseException | None:
    """Run source code, as ``python -c`` does.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.
    """
    _set_first_path("")
    sys.argv[:] = ["-c", *args]
    return _run(lambda: _execute(compile(source, "<string>", "exec", dont_inherit=True)))


def run_module(name: str, args: Sequence[str]) -> BaseException | None:
    """Run a module or a package's ``__main__``.

    Returns:
        The exception that it raised, with a traceback of its own frames only, or None.

    Raises:
        CannotStartError: If it does not exist.
    """
    _set_first_path(str(working_folder()))
    sys.argv[:] = ["-m", *args]

    def start() -> None:
        # Private, but the same since Python 3.4: no public function leaves the module in place, as
        # python does, for threads that go on after the end of its code.
        _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]  # noqa: SLF001
        sys.argv[0] = spec.origin
        _execute(code, **_names_of(spec))

    return _run(start)


def _execute_archive(path: str) -> None:
    """Execute the ``__main__`` of a folder or archive, or a ``.pyc`` file."""
    if pkgutil.get_importer(path) is None:
        runpy.run_path(path, run_name="__main__")
        return
    # Python adds it to a safe path too.
    sys.path[: not sys.flags.safe_path] = [path]
    _, spec, code = runpy._get_main_module_details()  # type: ignore[attr-defined]  # noqa: SLF001
    _execute(code, **_names_of(spec))


def _names_of(spec: ModuleSpec) -> dict[str, object]:
    """Return what python sets in ``__main__`` for a module."""
    return {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }


def _execute(code: CodeType, **names: object) -> None:
    """Execute a program in a new ``__main__``, which stays until Python exits."""
    module = ModuleType("__main__")
    # In this module `__builtins__` is a dictionary; in a program it is the module.
    module.__dict__.update(names, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102  (the user's program)


def _is_source(path: str) -> bool:
    """Return whether a file is Python source, and neither an archive nor a ``.pyc``."""
    with Path(path).open("rb") as file:
        start = file.read(4)
    return not start.startswith((b"PK", importlib.util.MAGIC_NUMBER))


def _compile(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _set_first_path(folder: str) -> None:
    """Replace the folder of this command by the program's, as ``python`` would set it."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def _run(start: Callable[[], object]) -> BaseException | None:
    try:
        start()
    except BaseException as error:  # noqa: BLE001  (however the program ends)
        if isinstance(error, ImportError) and _is_by_runpy(error.__traceback__):
            raise CannotStartError(error, 1) from None
        _remove_hooks(error)
        return error.with_traceback(_skip_starters(error.__traceback__))
    return None


def _remove_hooks(error: BaseException) -> None:
    """Remove the frames of profkit's hooks from the tracebacks of an error and of its causes."""
    errors, seen = [error], set[int]()
    while errors:
        cause = errors.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        errors += filter(None, (cause.__cause__, cause.__context__))

        trace = cause.__traceback__
        while trace is not None:
            while (after := trace.tb_next) and after.tb_frame.f_code.co_filename in _HOOKS:
                trace.tb_next = after.tb_next
            trace = trace.tb_next


def _is_by_runpy(traceback: TracebackType | None) -> bool:
    """Return whether an error was raised before anything of the program ran."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(traceback)]
    return all(file in _RUNPY for file in files)


def _skip_starters(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that only start the program."""
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_STARTERS):
            break
        traceback = traceback.tb_next
    return traceback
