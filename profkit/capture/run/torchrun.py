"""``profkit run torchrun …``: has torchrun start ``profkit run`` on every rank.

torchrun itself only starts and watches processes; there is nothing to record in it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profkit.errors import UsageError

_MODULE: Final = "torch.distributed.run"
_HOW: Final = {"-m", "--module", "--run-path", "--run_path"}
"""Options of torchrun that say what the program is."""


def is_torchrun(name: str, kind: str) -> bool:
    """Whether a program is torchrun: its module, or the script that pip installs.

    Args:
        kind: ``module`` or ``script``.
    """
    if kind == "module":
        return name == _MODULE
    path = Path(name)
    if kind != "script" or path.name not in {"torchrun", "torchrun.exe"}:
        return False
    try:
        return not path.exists() or _MODULE.encode() in path.read_bytes()
    except OSError:
        return False


def run_on_every_rank(args: Sequence[str], options: Sequence[str]) -> BaseException | None:
    """Run torchrun in this process, which starts ``profkit run`` with the program on every rank.

    Args:
        args: The arguments of torchrun, the program's included.
        options: Options of ``profkit run``.

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
    return None


def with_profkit(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """Arguments of torchrun that start ``profkit run``.

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
    launcher = list(args[: len(args) - len(given.training_script_args) - 1])
    launcher = [word for word in launcher if word not in {*_HOW, "--"}]
    kind = ["-m"] if given.module else []
    own = ["profkit", "run", *options, *kind, given.training_script, *given.training_script_args]
    return [*launcher, "-m", *own]
