"""The ``profkit`` command: finds the commands in this package and runs one.

Every other public module of this package defines ``command``, which is named after it, with dashes
for underscores. It is imported only when its command runs or ``--help`` lists it. Heavy modules are
imported inside the functions that need them.
"""

import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from click.shell_completion import shell_complete

from profkit import cli
from profkit._version import __version__
from profkit.cli._exit_codes import run_guarded
from profkit.names import did_you_mean

_N_OBJECTS: Final = 300_000
"""New objects after which garbage is collected."""
_COMPLETE: Final = "_PROFKIT_COMPLETE"
_DRAWING: Final = (["view"], ["export"])
"""Commands that draw a recording, in a process that ends afterwards."""
_EPILOG: Final = """\b
Start here:
  profkit run train.py           profile a program without changing it
  profkit view                   open the report on the newest recording
  profkit analyze trace.json.gz  report on an existing trace
"""


class Commands(click.Group):
    """A group whose commands are the public modules of ``profkit.cli``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """List the names of the commands in alphabetical order."""
        names = (module.name for module in pkgutil.iter_modules(cli.__path__))
        shown = (name for name in names if not name.startswith("_") and name != "main")
        return sorted(name.replace("_", "-") for name in shown)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is no such command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{cli.__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of some arguments; suggest similar names for an unknown one."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"There is no command {name!r}.{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="profkit %(version)s")
def group() -> None:
    """Finds why a PyTorch program is slow or memory-hungry, and names the line to change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments after the program's name; by default those of ``sys.argv``.

    Raises:
        SystemExit: ``profkit run`` exits with the program's own code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        with group.make_context("profkit", arguments) as context:
            code = group.invoke(context)
        return code if isinstance(code, int) else 0

    # The shell asks for completions by a variable, and click answers.
    if argv is None and (instruction := os.environ.get(_COMPLETE)):
        return shell_complete(group, {}, "profkit", _COMPLETE, instruction)

    # A program that is run has the garbage collector to itself.
    if arguments[:1] == ["run"]:
        return run_guarded(run)
    if argv is None and arguments[:1] != ["demo"]:
        # No analysis uses NumPy's linear algebra, whose threads wait busily for work at first.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if argv is None and arguments[:1] in _DRAWING:
        from profkit.readers.process_memory import reuse_free_memory

        reuse_free_memory()
    with _rare_garbage_collection():
        code = run_guarded(run)
        if argv is None:
            # The process ends: its garbage is not collected, in another tenth of a small file's
            # time. With the usual thresholds the next object would start a collection.
            gc.freeze()
    return code


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage less often while open: imports make many objects, and no cycles.

    By default each 700 more objects start a collection, which takes a tenth of a small file's time.
    A small file makes 150,000 in all.
    """
    before = gc.get_threshold()
    gc.set_threshold(_N_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
