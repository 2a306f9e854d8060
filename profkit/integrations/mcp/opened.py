"""The recordings under one folder, of which the last ones stay analyzed."""

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from profkit.api import analyze, study
from profkit.dataclass import dataclass
from profkit.errors import MissingFileError, UsageError
from profkit.model.report import Report
from profkit.present.renderer import LoadedRecording
from profkit.readers.recordings import Recording, find_recordings
from profkit.readers.report import read_report

_MAX_OPEN: Final = 2
"""Analyzed recordings that are kept: a large one takes as much memory as its file."""

Identity = tuple[tuple[str, int, int], ...]
"""Of each file its path, size and time of the last change in nanoseconds."""


@dataclass(frozen=True)
class Opened:
    """A report and what it was made from.

    Attributes:
        recording: None for a saved report, and for the ranks of a job.
    """

    report: Report
    recording: LoadedRecording | None


class Recordings:
    """Reads and analyzes recordings of one folder, and nothing outside of it.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._opened: OrderedDict[Identity, Opened] = OrderedDict()
        self._lock = threading.Lock()

    def listed(self, given: str) -> list[Recording]:
        """Return the recordings of a folder, or the recording that a file is part of.

        Raises:
            LoadError: There are none.
            UsageError: It is outside of the root.
        """
        recordings = find_recordings([self.path(given)])
        # A link in the folder may lead out of it.
        for recording in recordings:
            for path in recording.paths:
                self.path(path)
        return recordings

    def path(self, given: str) -> str:
        """Return a path below the root, with symbolic links followed.

        Raises:
            MissingFileError: There is nothing.
            UsageError: It is outside of the root.
        """
        path = Path(os.path.realpath(self.root / given))
        if not path.is_relative_to(self.root):
            raise UsageError(f"{given} is outside of {self.root}.", "Give a path below it.")
        if not path.exists():
            raise MissingFileError(f"There is no file {given}.", "The tool recordings lists them.")
        return str(path)

    def shown(self, path: str) -> str:
        """Return a path relative to the root."""
        return os.path.relpath(path, self.root)

    def open(self, given: str) -> Opened:
        """Return the report of a file, or of a folder with the files of one program or job.

        Raises:
            ProfkitError: It cannot be read, has recordings of several programs, or is outside of
                the root.
        """
        recordings = self.listed(given)
        # One analysis at a time: two of the same recording would be one too many.
        with self._lock:
            identity = tuple(
                (path, Path(path).stat().st_size, Path(path).stat().st_mtime_ns)
                for recording in recordings
                for path in recording.paths
            )
            if identity not in self._opened:
                self._opened[identity] = _analyze(recordings)
                while len(self._opened) > _MAX_OPEN:
                    self._opened.popitem(last=False)

            self._opened.move_to_end(identity)
            return self._opened[identity]


def _analyze(recordings: list[Recording]) -> Opened:
    if len(recordings) > 1:
        paths = [path for recording in recordings for path in recording.paths]
        return Opened(analyze(paths), None)

    files = recordings[0].paths
    saved = read_report(Path(files[0])) if len(files) == 1 else None
    if saved is not None:
        return Opened(saved, None)
    studied = study(files)
    return Opened(studied.report, studied.recording)
