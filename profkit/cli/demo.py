"""``profkit demo``: records a small program with planted problems and shows its report."""

import filecmp
import runpy
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import profkit
from profkit.cli._output import STDOUT, deliver, layout
from profkit.errors import CaptureError, OutputError
from profkit.folders import traces_folder

if TYPE_CHECKING:
    from profkit.model.report import Report

_PROGRAM: Final = Path(profkit.__file__).parent / "capture" / "run" / "demo_program.py"
_COPY: Final = "profkit_demo.py"


@click.command(
    short_help="Record a small program with planted problems; show its report.",
    epilog="\b\nExample: profkit demo --dir /tmp/traces",
)
@click.option(
    "--dir", "folder", metavar="FOLDER", help="Folder for the trace; $PROFKIT_DIR, else traces."
)
@click.option("--force", is_flag=True, help=f"Overwrite a changed {_COPY}.")
def command(*, folder: str | None, force: bool) -> int:
    """Record a small training program with planted problems, and show its report.

    The program is copied beside its trace, so that you can fix it and run it again.
    """
    home = Path(folder or traces_folder())
    program = _copy_program(home, force=force)
    click.echo(f"profkit: running {program}, which has planted problems", err=True)
    path = _record(program, home)
    report = profkit.analyze(path)
    deliver(profkit.render(report, "text", **layout(STDOUT)), STDOUT, force=True)
    _suggest_next(program, report, home)
    return 0


def _copy_program(home: Path, *, force: bool) -> Path:
    """Copy the program next to its traces, unless the user has changed a copy there."""
    program = home / _COPY
    try:
        home.mkdir(parents=True, exist_ok=True)
        # A copy that the user has changed may be the fixed program.
        if force or not program.exists():
            shutil.copyfile(_PROGRAM, program)
        elif not filecmp.cmp(_PROGRAM, program, shallow=False):
            click.echo(f"profkit: using your changed {program}; --force restores it", err=True)
    except OSError as error:
        message = f"{program} cannot be written: {error.strerror or error}."
        raise OutputError(message, "Choose another folder with --dir.") from error
    return program


def _record(program: Path, home: Path) -> str:
    """Run the program and return the path of its trace.

    Raises:
        CaptureError: The program wrote no trace.
    """
    names = runpy.run_path(str(program), run_name="profkit_demo")
    path: str | None = names["main"](str(home))
    if path is None:
        raise CaptureError(
            "The demo was not recorded.", "See the warning above, or run `profkit doctor`."
        )
    return path


def _suggest_next(program: Path, report: "Report", home: Path) -> None:
    lines = (
        "",
        f"browser:      profkit view {shlex.quote(report.source.path)}",
        f"TensorBoard:  tensorboard --logdir {shlex.quote(str(home))}",
        f"fix it:       edit {program}, then: profkit demo",
        "your program: profkit run train.py",
    )
    click.echo("\n".join(lines), err=True)
