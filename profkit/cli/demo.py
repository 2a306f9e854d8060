"""``profkit demo``: records a small program with planted faults and shows its report."""

import filecmp
import os
import runpy
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import profkit
from profkit.cli._output import STDOUT, deliver, layout
from profkit.errors import CaptureError, OutputError

if TYPE_CHECKING:
    from profkit.model.report import Report

_PROGRAM: Final = Path(profkit.__file__).parent / "capture" / "demo_program.py"
_COPY: Final = "profkit_demo.py"


@click.command(
    short_help="Record a small program with planted faults; show its report.",
    epilog="\b\nExample: profkit demo --dir /tmp/traces",
)
@click.option("--dir", "folder", metavar="FOLDER",
              help="Where the trace goes; $PROFKIT_DIR, else traces.")  # fmt: skip
@click.option("--force", is_flag=True, help=f"Overwrite a {_COPY} that was changed.")
def command(*, folder: str | None, force: bool) -> int:
    """Record a small training program with three planted faults, and show its report.

    The program is put beside its trace, to be read, cured and run again.
    """
    home = Path(folder or os.environ.get("PROFKIT_DIR") or "traces")
    program = _put(home, force=force)
    click.echo(f"profkit: running {program}, which has three planted faults", err=True)
    path = _record(program, home)
    report = profkit.analyze(path)
    deliver(profkit.render(report, "text", **layout(STDOUT)), STDOUT, force=True)
    _say_next(program, report, home)
    return 0


def _put(home: Path, *, force: bool) -> Path:
    """Copy the program beside its traces, unless the user's own version of it is there."""
    program = home / _COPY
    try:
        home.mkdir(parents=True, exist_ok=True)
        if force or not program.exists():
            shutil.copyfile(_PROGRAM, program)
        elif not filecmp.cmp(_PROGRAM, program, shallow=False):
            click.echo(f"profkit: {program} was changed; --force brings the faults back", err=True)
    except OSError as error:
        message = f"{program} cannot be written: {error.strerror or error}."
        raise OutputError(message, "Choose another folder with --dir.") from error
    return program


def _record(program: Path, home: Path) -> str:
    """Run the program; returns the path of its trace.

    Raises:
        CaptureError: If it made none.
    """
    names = runpy.run_path(str(program), run_name="profkit_demo")
    path: str | None = names["main"](str(home))
    if path is None:
        raise CaptureError(
            "The demo was not recorded.", "See the warning above, or run `profkit doctor`."
        )
    return path


def _say_next(program: Path, report: "Report", home: Path) -> None:
    lines = (
        "",
        f"look:     profkit view {shlex.quote(report.source.path)}",
        f"or:       tensorboard --logdir {shlex.quote(str(home))}",
        f"cure it:  edit {program}, then: profkit demo",
        "your own: profkit run train.py",
    )
    click.echo("\n".join(lines), err=True)
