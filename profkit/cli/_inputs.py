"""Reads the paths of a command line: recordings, folders and archives of them, saved reports."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from profkit.cli._progress import Progress
from profkit.cli._scale import Place
from profkit.dataclass import dataclass

if TYPE_CHECKING:
    from profkit.analysis.several import Analyses, AnalysisRequest, Scale
    from profkit.api import Study
    from profkit.errors import NotATraceError
    from profkit.model.report import Report
    from profkit.present.renderer import LoadedRecording
    from profkit.readers.recordings import Recording

_MEMBER: Final = "!"
_ENDINGS: Final = (
    ".gz", ".zst", ".zip", ".tar", ".tgz", ".json", ".pickle", ".pkl", ".trace", ".snapshot",
    ".memory", ".pt",
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """A recording, a job or a saved report.

    Attributes:
        path: Its first file; of a job its folder.
        study: What the report was made from, and how; None for a saved report.
    """

    path: str
    report: "Report"
    study: "Study | None" = None

    @property
    def recording(self) -> "LoadedRecording | None":
        """What the report was made from; None for a saved report."""
        return None if self.study is None else self.study.recording

    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return plain_name(self.path)


def plain_name(path: str) -> str:
    """A file's name without its endings: ``train.pt.trace.json.gz`` is ``train``.

    Args:
        path: A path, a URL, or a member of an archive.
    """
    archive, _, member = path.rpartition(_MEMBER)
    name = member if member.strip("./") else archive
    name = name.partition("?")[0].rstrip("/").replace("\\", "/")
    name = name.rpartition("/")[2]
    while name.lower().endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name.replace("\0", "") or "recording"


def read_all(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> Iterator[Input]:
    """Read and analyze every recording of some paths, one at a time.

    Args:
        paths: Recordings, saved reports, folders and archives of recordings.
        chosen: More arguments for :func:`profkit.api.study`.
        shown: Shows the progress.
    """
    from profkit.readers.recordings import find_recordings

    return _each(find_recordings(paths), chosen, shown)


def read_jobs(
    paths: Sequence[str], chosen: Mapping[str, Any], place: Place, shown: Progress
) -> Iterator[Input]:
    """Do the same, but join the ranks of a job to one input, with the recording of the first.

    The ranks are analyzed as by ``profkit analyze``, several at a time.

    Args:
        place: Where they are analyzed.
    """
    from profkit.analysis.several import AnalysisRequest
    from profkit.readers.recordings import Recording, find_recordings, may_be_ranks

    recordings = find_recordings(paths)
    might = may_be_ranks(recordings)
    if len(recordings) == 1:
        might = [is_archive(recordings[0].paths[0])]
    might = [is_rank and not _is_saved(each.paths[0])
             for each, is_rank in zip(recordings, might, strict=True)]  # fmt: skip
    ranks = [each for each, is_rank in zip(recordings, might, strict=True) if is_rank]
    rest = [each for each, is_rank in zip(recordings, might, strict=True) if not is_rank]
    if ranks:
        with place.scale() as scale:
            found = _analyzed(ranks, AnalysisRequest(chosen), scale, shown)
        for each in found.reports:
            if each.is_job:
                path = each.report.source.path
                yield Input(path, each.report, studied(each.paths[:1], chosen, shown))
            else:
                rest.append(Recording(each.paths, is_member=True))
    yield from _each(rest, chosen, shown)


def read_one(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> Input:
    """Read the one recording, or the ranks of the one job, that some paths have.

    Raises:
        UsageError: They have several.
    """
    from profkit.errors import UsageError

    inputs = read_jobs(paths, chosen, Place(), shown)
    found = next(inputs)
    if next(inputs, None) is not None:
        raise UsageError(f"{paths[0]} has several recordings.", "Name the file of one.")
    return found


def _is_saved(path: str) -> bool:
    """Whether a file is a saved report; one that cannot be read is none."""
    from profkit.errors import LoadError
    from profkit.readers.report import is_report
    from profkit.readers.stream import place_of

    try:
        return is_report(place_of(path))
    except LoadError:
        return False


def is_archive(path: str) -> bool:
    """Whether a path may be an archive of several recordings, by its name."""
    return path.lower().endswith((".tar", ".zip", ".tgz", ".tar.gz"))


def _each(
    recordings: "Sequence[Recording]", chosen: Mapping[str, Any], shown: Progress
) -> Iterator[Input]:
    """Read and analyze recordings, and those of archives.

    Files of a folder that are no recordings are skipped if others are.
    """
    from profkit.errors import NotATraceError, SeveralTracesError
    from profkit.readers.recordings import grouped

    remaining = list(reversed(recordings))
    skipped: list[NotATraceError] = []
    is_any = False
    while remaining:
        recording = remaining.pop()
        try:
            shown.reading(recording.paths[0])
            found = _read(recording.paths, chosen, shown)
        except SeveralTracesError as several:
            remaining.extend(reversed(grouped((member, True) for member in several.members)))
            continue
        except NotATraceError as error:
            if not recording.is_member:
                raise
            skipped.append(error)
            continue
        is_any = True
        yield found
        del found  # before the next one is read
    if skipped and not is_any:
        raise skipped[0]
    _say_skipped(skipped)


def _say_skipped(skipped: "Sequence[NotATraceError]") -> None:
    """Say on stderr which file is no recording, and how many others are none."""
    if skipped:
        click.echo(f"profkit: skipped: {skipped[0]}", err=True)
    if len(skipped) > 1:
        n = len(skipped) - 1
        files = (
            "1 more file that is no recording"
            if n == 1
            else f"{n} more files that are no recordings"
        )
        click.echo(f"profkit: skipped {files}.", err=True)


def all_reports(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> list["Report"]:
    """The reports that some paths have, and those on their recordings; of a job one.

    Args:
        chosen: More arguments for :func:`profkit.analyze`.
    """
    from profkit.analysis.several import AnalysisRequest, Scale, read_or_analyze
    from profkit.readers.recordings import find_recordings

    found = read_or_analyze(find_recordings(paths), AnalysisRequest(chosen), Scale(), shown)
    return [each.report for each in _with_notes(found).reports]


def analyzed(
    paths: Sequence[str], order: "AnalysisRequest", scale: "Scale", shown: Progress
) -> "Analyses":
    """Analyze the recordings of some paths; those of the ranks of a job are one.

    What could not be read, and what is no recording, is said on stderr.
    """
    from profkit.readers.recordings import find_recordings

    return _analyzed(find_recordings(paths), order, scale, shown)


def _analyzed(
    recordings: "Sequence[Recording]", order: "AnalysisRequest", scale: "Scale", shown: Progress
) -> "Analyses":
    from profkit.analysis.several import analyze_all

    return _with_notes(analyze_all(recordings, order, scale, shown))


def _with_notes(found: "Analyses") -> "Analyses":
    """Say on stderr what could not be read, and what is no recording."""
    for path, error in found.unread:
        text = str(error) if path in error.message else f"{path}: {error}"
        click.echo(f"profkit: not read: {text}", err=True)
    _say_skipped(found.skipped)
    return found


def studied(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> "Study":
    """Read and analyze the files of one recording, with progress. Arguments as for `read_all`."""
    from profkit.api import study

    return study(paths, on_stage=shown.on_stage, on_progress=shown.on_progress, **chosen)


def _read(paths: Sequence[str], chosen: Mapping[str, Any], shown: Progress) -> Input:
    from profkit.readers.report import read_report
    from profkit.readers.stream import place_of

    if len(paths) == 1:
        saved = read_report(place_of(paths[0]), chosen.get("limit_bytes"))
        if saved is not None:
            return Input(paths[0], saved)
    found = studied(paths, chosen, shown)
    return Input(paths[0], found.report, found)
