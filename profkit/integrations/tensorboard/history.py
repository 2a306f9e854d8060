"""Writes figures over commits as TensorBoard scalars: a run for each program and device.

The step is the commit's place in the history, so that runs on different devices have the same axis.
"""

from pathlib import Path
from typing import Final

from profkit.integrations.tensorboard.export import FILE_VERSION, EventsFile, ScalarPoint, safe
from profkit.model.history import History

_TAG: Final = "profkit_history"
_NS_PER_MS: Final = 1e6


def write_history(history: History, folder: Path) -> tuple[Path, ...]:
    """Write a file for each program and device.

    Args:
        folder: A logdir; it is created if it does not exist.

    Raises:
        OutputError: A file cannot be written, or TensorBoard is not installed.
    """
    files: dict[str, EventsFile] = {}
    for line in history.lines:
        run = safe(" ".join((line.program, *line.devices)))
        if run not in files:
            files[run] = EventsFile()
            files[run].add(0.0, file_version=FILE_VERSION)

        scale = _NS_PER_MS if line.unit == "ns" else 1
        for place in line.entries:
            entry = history.entries[place]
            value = entry.figures[line.name].value / scale
            about = f"{line.title}, by commit; the step is the commit's place in the history."
            wall_s = (entry.recorded_unix_ns or 0) / 1e9
            files[run].add_scalar(wall_s, ScalarPoint(f"{_TAG}/{line.name}", place, value, about))

    written = []
    for run, file in files.items():
        # One name for one run: a longer history replaces the shorter one.
        target = folder / run / _TAG / "events.out.tfevents.0000000000.profkit.history"
        file.write(target)
        written.append(target)
    return tuple(written)
