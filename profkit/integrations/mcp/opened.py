"""The recordings under one folder, of which the last ones stay analyzed."""

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from profkit.api import report_on_ranks, study
from profkit.dataclass import dataclass
from profkit.errors import LoadError, MissingFileError, UsageError
from profkit.folders import traces_folder
from profkit.model.report import Report
from profkit.present.renderer import LoadedRecording
from profkit.readers.recordings import Recording, find_recordings
from profkit.readers.report import read_report
from profkit.readers.runs import Run, find_runs, find_runs_among, take_two

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
        """Return the recordings of a folder, the newest first, or the one that a file is part of.

        Saved reports come last. Links that lead out of the root are left out.

        Raises:
            LoadError: There are none.
            UsageError: It is outside of the root.
        """
        recordings = list(filter(self._is_inside, find_recordings([self.path(given)])))
        if not recordings:
            raise MissingFileError(f"There are no recordings in {given}.")
        # Saved reports are no runs, but can be opened.
        newest_first = [
            recording for run in find_runs_among(recordings) for recording in run.recordings
        ]
        return [*newest_first, *(other for other in recordings if other not in newest_first)]

    def _is_inside(self, recording: Recording) -> bool:
        """Tell whether all files of a recording are below the root; a link may lead out of it."""
        return all(
            Path(os.path.realpath(path)).is_relative_to(self.root) for path in recording.paths
        )

    def _find_runs(self) -> Iterator[Run]:
        """Find the runs in the folder for traces below the root, or else in all of it.

        Raises:
            MissingFileError: There are none.
        """
        # The root may be a whole project, of which only this folder has recordings.
        for folder in (self.root / traces_folder(), self.root):
            if not Path(os.path.realpath(folder)).is_relative_to(self.root):
                continue
            try:
                runs = filter(self._has_run, find_runs(str(folder)))
            except LoadError:
                continue
            first = next(runs, None)
            if first is not None:
                return itertools.chain([first], runs)
        message = f"There are no recordings in {self.root}."
        raise MissingFileError(message, "Record a program with `profkit run train.py`.")

    def _has_run(self, run: Run) -> bool:
        return all(map(self._is_inside, run.recordings))

    def _choose(self, given: str) -> Sequence[Recording]:
        """Return one recording, or those of the ranks of a job: of several runs the newest.

        Args:
            given: A file or a folder; empty for the newest run of all.

        Raises:
            LoadError: There is none.
            UsageError: It is outside of the root.
        """
        if not given:
            return next(self._find_runs()).recordings
        # Saved reports alone are no run, and are opened as they are.
        recordings = self.listed(given)
        run = next(find_runs_among(recordings), None) if len(recordings) > 1 else None
        return recordings if run is None else run.recordings

    def take_two(self) -> tuple[str | Report, str | Report]:
        """Return the two newest runs of one program, the earlier one first.

        Raises:
            MissingFileError: There is one only.
        """
        newest, *earlier = take_two(self._find_runs())
        if not earlier:
            message = f"There is one recording of {newest.program} only."
            raise MissingFileError(message, "Record it again, or give two recordings.")
        return self._compared(earlier[0].recordings), self._compared(newest.recordings)

    def compared(self, given: str) -> str | Report:
        """Return what a comparison takes for a file or folder: a path, or the report on a job."""
        return self._compared(self._choose(given))

    def _compared(self, recordings: Sequence[Recording]) -> str | Report:
        # The report on a snapshot does not have the stacks by which two are compared.
        if len(recordings) == 1:
            return recordings[0].paths[0]
        return self._open(recordings).report

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
        """Return the report of a file, or of a folder, of which the newest run is taken.

        Args:
            given: The path; empty for the newest run of all.

        Raises:
            ProfkitError: It cannot be read, or is outside of the root.
        """
        return self._open(self._choose(given))

    def _open(self, recordings: Sequence[Recording]) -> Opened:
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


def _analyze(recordings: Sequence[Recording]) -> Opened:
    if len(recordings) > 1:
        ranks = [recording.paths for recording in recordings]
        job = report_on_ranks(ranks, of=recordings[0].paths[0])
        if job is not None:
            return Opened(job, None)

    files = recordings[0].paths
    saved = read_report(Path(files[0])) if len(files) == 1 else None
    if saved is not None:
        return Opened(saved, None)
    studied = study(files)
    return Opened(studied.report, studied.recording)
