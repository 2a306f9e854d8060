"""Reads the paths of a command line: recordings, folders and archives of them, saved reports."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from profkit.cli._progress import Progress

if TYPE_CHECKING:
    from profkit.api import Study
    from profkit.model.report import Report
    from profkit.present.renderer import LoadedRecording

T = TypeVar("T")

_MEMBER: Final = "!"
_ENDINGS: Final = (
    ".gz", ".zst", ".zip", ".json", ".pickle", ".pkl", ".trace", ".snapshot", ".memory", ".pt",
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """One path, or one file of a folder or an archive, with its report.

    Attributes:
        recording: What the report was made from; None for a saved report.
    """

    path: str
    report: "Report"
    recording: "LoadedRecording | None"

    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return plain_name(self.path)


def plain_name(path: str) -> str:
    """A file's name without its endings: ``train.pt.trace.json.gz`` is ``train``.

    Args:
        path: A path, a URL, or a member of an archive.
    """
    name = path.rpartition(_MEMBER)[2].partition("?")[0].rstrip("/").replace("\\", "/")
    name = name.rpartition("/")[2]
    while name.lower().endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name.replace("\0", "") or "recording"


def read_all(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> Iterator[Input]:
    """Read and analyze every file of some paths, one at a time.

    Args:
        paths: Recordings, saved reports, folders and archives of recordings.
        chosen: More arguments for :func:`profkit.api.study`.
        shown: Shows the progress.
    """
    return each_of(paths, lambda path: _read(path, chosen, shown), shown)


def each_of(paths: Sequence[str], read: Callable[[str], T], shown: Progress) -> Iterator[T]:
    """Call ``read`` for every file of some paths, also for those of folders and archives.

    Files of a folder that are no recordings are skipped if others are.
    """
    from profkit.errors import NotATraceError, SeveralTracesError

    remaining = [(path, False) for path in reversed(paths)]
    skipped: list[NotATraceError] = []
    is_any = False
    while remaining:
        path, is_member = remaining.pop()
        try:
            shown.reading(path)
            found = read(path)
        except SeveralTracesError as several:
            remaining.extend((member, True) for member in reversed(several.members))
            continue
        except NotATraceError as error:
            if not is_member:
                raise
            skipped.append(error)
            continue
        is_any = True
        yield found
        del found  # before the next one is read
    if skipped and not is_any:
        raise skipped[0]
    for skip in skipped:
        click.echo(f"profkit: skipped: {skip}", err=True)


def studied(path: str, chosen: Mapping[str, Any], shown: Progress) -> "Study":
    """Read and analyze a recording, with progress. Arguments as for :func:`read_all`."""
    from profkit.api import study

    return study(path, on_stage=shown.on_stage, on_progress=shown.on_progress, **chosen)


def _read(path: str, chosen: Mapping[str, Any], shown: Progress) -> Input:
    from profkit.readers.report import read_report
    from profkit.readers.stream import is_folder, place_of

    place = place_of(path)
    if not is_folder(place):
        saved = read_report(place, chosen.get("limit_bytes"))
        if saved is not None:
            return Input(path, saved, None)
    found = studied(path, chosen, shown)
    return Input(path, found.report, found.recording)
