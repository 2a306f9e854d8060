"""``profkit run torchrun …``: has torchrun start ``profkit run`` on every rank.

torchrun itself only starts and watches processes; there is nothing to record in it.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profkit.errors import UsageError

_MODULE: Final = "torch.distributed.run"
_HOW: Final = {"-m", "--module", "--run-path", "--run_path"}
"""Options of torchrun that say what the program is."""


def is_torchrun(name: str, kind: str) -> bool:
    """Return whether a program is torchrun: its module, or the script that pip installs.

    Args:
        kind: ``module`` or ``script``.
    """
    if kind == "module":
        return name == _MODULE
    path = Path(name)
    if kind != "script" or path.name not in {"torchrun", "torchrun.exe"}:
        return False
    # A script of the user's may have this name too. One that does not exist is found on the path.
    try:
        return not path.exists() or _MODULE.encode() in path.read_bytes()
    except OSError:
        return False


def run_on_every_rank(
    args: Sequence[str], options: Sequence[str], folder: str | None
) -> BaseException | None:
    """Run torchrun in this process, which starts ``profkit run`` with the program on every rank.

    Args:
        args: The arguments of torchrun, the program's included.
        options: Options of ``profkit run``.
        folder: The folder for traces that the user has given, or None.

    Returns:
        The exception with which it ended, or None.

    Raises:
        UsageError: It is to start something other than a Python program.
    """
    words = with_profkit(args, options)
    from torch.distributed.run import main

    sys.argv[:] = ["torchrun", *words]
    try:
        main(words)
    except BaseException as error:  # noqa: BLE001  (however it ends)
        return error
    finally:
        _remove_stale(folder)
    return None


def _remove_stale(folder: str | None) -> None:
    """Remove what ranks have left that were killed before one of them could do it.

    Args:
        folder: The folder for traces that the user has given, or None.
    """
    from profkit.capture.process.files import trace_folder
    from profkit.capture.run.job import remove_stale

    with contextlib.suppress(OSError):
        for recordings in trace_folder(folder, "any").parent.iterdir():
            remove_stale(recordings)


def with_profkit(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments of torchrun that start ``profkit run``.

    Source: ``torch.distributed.run.get_args_parser``: the program follows the options, and all that
    follows the program are its own arguments.
    """
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(list(args))
    if given.no_python:
        raise UsageError(
            "torchrun --no-python starts a program that is not Python.",
            "Start `python -m profkit run` with it instead.",
        )

    # These options go to `profkit run` instead, which is the module that torchrun starts.
    launcher = list(args[: len(args) - len(given.training_script_args) - 1])
    launcher = [word for word in launcher if word not in {*_HOW, "--"}]
    kind = ["-m"] if given.module else []
    command = [
        "profkit",
        "run",
        *options,
        *kind,
        given.training_script,
        *given.training_script_args,
    ]
    return [*launcher, "-m", *command]
