"""Chooses what a command works on: the given paths, or the newest run of the folder for traces."""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from profkit.cli._exit_codes import echo
from profkit.dataclass import dataclass
from profkit.folders import traces_folder, working_folder
from profkit.names import short_path, visible
from profkit.units import format_age

if TYPE_CHECKING:
    from profkit.readers.recordings import Recording
    from profkit.readers.runs import Run

_RECORD: Final = "Record a program with `profkit run train.py`, or give the path of a recording."


@dataclass(frozen=True)
class Selection:
    """The recordings that a command works on.

    Attributes:
        recordings: The recordings; an archive of several counts as one.
        paths: The paths as the user gave them, or the files of the run that was chosen.
        newest: The first file of the newest recording, if a run was chosen; otherwise empty. More
            ranks than those of its job may have been found with it.
    """

    recordings: "Sequence[Recording]"
    paths: tuple[str, ...]
    newest: str = ""


def select_recordings(paths: Sequence[str]) -> Selection:
    """Select all recordings at some paths, or without any the newest run.

    Raises:
        LoadError: There are none.
    """
    from profkit.readers.recordings import find_recordings

    if paths:
        return Selection(find_recordings(paths), tuple(paths))
    return _select_newest()


def select_run(paths: Sequence[str]) -> Selection:
    """Select the recordings at some paths; of a folder with several runs, and without a path, one.

    Raises:
        LoadError: There are none.
    """
    from profkit.readers.recordings import find_recordings

    if not paths:
        return _select_newest()

    # Only a folder has a history: who names several files means all of them.
    recordings = find_recordings(paths)
    if len(paths) == 1 and len(recordings) > 1 and os.path.isdir(paths[0]):  # noqa: PTH112  (any text)
        from profkit.readers.runs import find_runs_among

        runs = list(itertools.islice(find_runs_among(recordings), 2))
        if len(runs) > 1:
            _say_taken("newest recording", runs[0])
            return _of_run(runs[0])
    return Selection(recordings, tuple(paths))


def select_pair(paths: Sequence[str]) -> tuple[Selection, Selection]:
    """Select what to compare: two paths, or the two newest runs of one program.

    Args:
        paths: Two paths, a folder to search, or none.

    Raises:
        LoadError: There are no two recordings.
        UsageError: Only the file of one recording was given.
    """
    from profkit.errors import MissingFileError, UsageError
    from profkit.readers.remote import is_url

    # Each side may be the folder of a job, or one with a history.
    if len(paths) == 2:  # noqa: PLR2004  (a pair)
        before, after = (select_run([path]) for path in paths)
        return before, after

    folder = paths[0] if paths else traces_folder()
    if paths and not os.path.isdir(folder):  # noqa: PTH112  (any text)
        if not is_url(folder) and not os.path.lexists(folder):
            raise MissingFileError(f"There is no file {folder}.", "Check the path.")
        hint = "Give another one, or a folder to compare the two newest recordings in it."
        raise UsageError(f"A comparison needs two recordings, and {folder} is one.", hint)

    from profkit.readers.runs import take_two

    # What the newest recording is compared with has to be the same program, before a change.
    newest, *earlier = take_two(find_runs_in(folder))
    if not earlier:
        program = visible(newest.program)
        message = f"{visible(folder)} has one recording of {program} only: {name_files(newest)}."
        hint = f"Record {program} again, or give two of those that `profkit list` shows."
        raise MissingFileError(message, hint)

    _say_taken("before", earlier[0])
    _say_taken("after", newest)
    return _of_run(earlier[0]), _of_run(newest)


def is_newest(path: str) -> bool:
    """Tell whether a file is of the run that a command without a path takes."""
    from profkit.errors import ProfkitError
    from profkit.readers.runs import find_runs

    try:
        run = next(find_runs(traces_folder()), None)
    except ProfkitError:
        return False

    # The user may have given the file by a link, or by its absolute path.
    real = os.path.realpath(path)
    return run is not None and any(os.path.realpath(file) == real for file in run.paths)


def find_runs_in(folder: str) -> "Iterator[Run]":
    """Find the runs in a folder, the newest first.

    Raises:
        LoadError: There are none.
    """
    from profkit.errors import MissingFileError, UnreadableFileError
    from profkit.readers.runs import find_runs

    try:
        runs = find_runs(folder)
    except (MissingFileError, UnreadableFileError) as error:
        where = os.environ.get("PROFKIT_DIR")
        error.hint = f"PROFKIT_DIR is {visible(where)}. {_RECORD}" if where else _RECORD
        raise

    # The search is lazy: only its first result tells whether there is one.
    first = next(runs, None)
    if first is None:
        raise MissingFileError(f"There are no recordings in {visible(folder)}.", _RECORD)
    return itertools.chain([first], runs)


def _select_newest() -> Selection:
    run = next(find_runs_in(traces_folder()))
    _say_taken("newest recording", run)
    return _of_run(run)


def _of_run(run: "Run") -> Selection:
    return Selection(run.recordings, run.paths, run.newest)


def name_files(run: "Run") -> str:
    """Return the path that a command takes for a run: its file, or the folder of its ranks."""
    path = short_path(run.newest, str(working_folder()))
    return visible(path if len(run.recordings) == 1 else (os.path.split(path)[0] or "."))


def _say_taken(what: str, run: "Run") -> None:
    """Say on stderr which run is taken, and how old it is; its files are named in what follows."""
    ranks = f" ({run.n_ranks} ranks)" if run.n_ranks > 1 else ""
    age = format_age(time.time_ns() - run.time_ns)
    echo(f"profkit: {what}: {visible(run.program)}{ranks}, {age}")
