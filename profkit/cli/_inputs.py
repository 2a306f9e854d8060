"""Reads the paths of a command line: recordings, folders and archives of them, saved reports."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._newest import Selection
from profkit.cli._progress import Progress
from profkit.cli._scale import Place
from profkit.dataclass import dataclass

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.analysis.several import Analyses, AnalysisRequest, Scale
    from profkit.api import AnalysisResult
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
        paths: Its files.
        recording: The recording behind the report; None for a saved report.
    """

    path: str
    paths: tuple[str, ...]
    report: "Report"
    recording: "LoadedRecording | None" = None

    @property
    def name(self) -> str:
        """Return the file's name without its endings."""
        return plain_name(self.path)


def plain_name(path: str) -> str:
    """Return a file's name without its endings: ``train.pt.trace.json.gz`` is ``train``.

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


def read_all(selection: Selection, options: "AnalysisOptions", shown: Progress) -> Iterator[Input]:
    """Read and analyze every recording of a selection, one at a time.

    Args:
        selection: Recordings, saved reports and archives of recordings.
        shown: Shows the progress.
    """
    return _read_recordings(selection.recordings, options, shown)


def read_jobs(
    selection: Selection, options: "AnalysisOptions", place: Place, shown: Progress
) -> Iterator[Input]:
    """Read and analyze the recordings of a selection; the ranks of a job become one input.

    That input has the recording of the first rank. The ranks are analyzed several at a time, as by
    ``profkit analyze``.

    Args:
        selection: Recordings, saved reports and archives of recordings.
        place: Where they are analyzed.
        shown: Shows the progress.
    """
    inputs = _read_jobs(selection.recordings, options, place, shown)
    return _choose_newest(inputs, selection.newest) if selection.newest else inputs


def _choose_newest(inputs: Iterator[Input], newest: str) -> Iterator[Input]:
    """Yield the input that has a file; ranks of an earlier job may have been read with it.

    If the file could not be read, the first input is that of the ranks of its job.
    """
    first: Input | None = None
    for read in inputs:
        if newest in read.paths:
            yield read
            return
        first = first or read
    if first is not None:
        yield first


def _read_jobs(
    recordings: "Sequence[Recording]", options: "AnalysisOptions", place: Place, shown: Progress
) -> Iterator[Input]:
    from profkit.analysis.several import AnalysisRequest
    from profkit.readers.recordings import Recording, may_be_ranks

    may_be_rank = may_be_ranks(recordings)
    if len(recordings) == 1:
        # A single file is a job only if it is an archive of the ranks.
        may_be_rank = [is_archive(recordings[0].paths[0])]

    ranks: list[Recording] = []
    singles: list[Recording] = []
    for recording, is_candidate in zip(recordings, may_be_rank, strict=True):
        is_rank = is_candidate and not _is_saved(recording.paths[0])
        (ranks if is_rank else singles).append(recording)

    if ranks:
        with place.scale() as scale:
            analyses = analyze_recordings(ranks, AnalysisRequest(options), scale, shown)
        for analysis in analyses.reports:
            if analysis.is_job:
                path = analysis.report.source.path
                result = run_study(analysis.paths[:1], options, shown)
                yield Input(path, analysis.paths, analysis.report, result.recording)
            else:
                singles.append(Recording(analysis.paths, is_member=True))
    yield from _read_recordings(singles, options, shown)


def read_one(selection: Selection, options: "AnalysisOptions", shown: Progress) -> Input:
    """Read the one recording, or the ranks of the one job, of a selection.

    Raises:
        UsageError: It has several.
    """
    from profkit.errors import UsageError

    inputs = read_jobs(selection, options, Place(), shown)
    recording = next(inputs)
    if next(inputs, None) is not None:
        path = selection.paths[0]
        raise UsageError(f"{path} has several recordings.", "Give the file of one of them.")
    return recording


def _is_saved(path: str) -> bool:
    """Tell whether a file is a saved report; a file that cannot be read is not."""
    from profkit.errors import LoadError
    from profkit.readers.report import is_report
    from profkit.readers.stream import place_of

    try:
        return is_report(place_of(path))
    except LoadError:
        return False


def is_archive(path: str) -> bool:
    """Tell whether a path may be an archive of several recordings, by its name."""
    return path.lower().endswith((".tar", ".zip", ".tgz", ".tar.gz"))


def _read_recordings(
    recordings: "Sequence[Recording]", options: "AnalysisOptions", shown: Progress
) -> Iterator[Input]:
    """Read and analyze recordings, and the members of archives.

    Files of a folder that are not recordings are skipped if others are.
    """
    with ExitStack() as archives:
        yield from _read_each(recordings, options, shown, archives)


def _read_each(
    recordings: "Sequence[Recording]",
    options: "AnalysisOptions",
    shown: Progress,
    archives: ExitStack,
) -> Iterator[Input]:
    from profkit.errors import NotATraceError, SeveralTracesError
    from profkit.readers.recordings import group_files
    from profkit.readers.unpacked import unpacked

    # A stack: the members of an archive are read in place of the archive.
    remaining = list(reversed(recordings))
    skipped: list[NotATraceError] = []
    is_any = False
    while remaining:
        recording = remaining.pop()
        try:
            shown.reading(recording.paths[0])
            input_ = _read(recording.paths, options, shown)
        except SeveralTracesError as several:
            archives.enter_context(unpacked(recording.paths[0]))
            remaining.extend(reversed(group_files((member, True) for member in several.members)))
            continue
        except NotATraceError as error:
            # A file that the user has named must be a recording.
            if not recording.is_member:
                raise
            skipped.append(error)
            continue
        is_any = True
        yield input_
        del input_  # its memory is free before the next one is read

    if skipped and not is_any:
        raise skipped[0]
    _say_skipped(skipped)


def _say_skipped(skipped: "Sequence[NotATraceError]") -> None:
    """Say on stderr which file is not a recording, and how many more files are not."""
    if skipped:
        click.echo(f"profkit: skipped: {skipped[0]}", err=True)
    if len(skipped) > 1:
        n = len(skipped) - 1
        files = "1 more file (not a recording)" if n == 1 else f"{n} more files (not recordings)"
        click.echo(f"profkit: skipped {files}.", err=True)


def read_reports(
    paths: Sequence[str], options: "AnalysisOptions", shown: Progress
) -> list["Report"]:
    """Read the saved reports of some paths, and analyze their recordings, a job as one.

    Args:
        paths: Recordings, reports, folders and archives of them.
    """
    from profkit.analysis.several import LOCAL, AnalysisRequest, read_or_analyze
    from profkit.readers.recordings import find_recordings

    analyses = read_or_analyze(find_recordings(paths), AnalysisRequest(options), LOCAL, shown)
    return [analysis.report for analysis in _with_notes(analyses).reports]


def analyze_recordings(
    recordings: "Sequence[Recording]", request: "AnalysisRequest", scale: "Scale", shown: Progress
) -> "Analyses":
    """Analyze some recordings; the ranks of a job have one report.

    Files that could not be read, or are not recordings, are named on stderr.
    """
    from profkit.analysis.run_figures import keep_figures
    from profkit.analysis.several import analyze_all

    analyses = _with_notes(analyze_all(recordings, request, scale, shown))
    for analysis in analyses.reports:
        keep_figures(analysis.report, analysis.paths, request.options)
    return analyses


def choose_newest(analyses: "Analyses", newest: str) -> "Analyses":
    """Choose the report on a file; ranks of an earlier job may have been analyzed with it.

    Args:
        analyses: All reports.
        newest: The file; with an empty name all reports stay.
    """
    from dataclasses import replace

    wanted = tuple(analysis for analysis in analyses.reports if newest in analysis.paths)
    return replace(analyses, reports=wanted) if wanted else analyses


def _with_notes(analyses: "Analyses") -> "Analyses":
    """Name on stderr the files that could not be read, or are not recordings."""
    for path, error in analyses.unread:
        text = str(error) if path in error.message else f"{path}: {error}"
        click.echo(f"profkit: not read: {text}", err=True)
    _say_skipped(analyses.skipped)
    return analyses


def run_study(
    paths: Sequence[str], options: "AnalysisOptions", shown: Progress
) -> "AnalysisResult":
    """Read and analyze the files of one recording, and show the progress."""
    from profkit.analysis.run_figures import keep_figures
    from profkit.analysis.study import study

    # Each analysis spares `profkit list` one.
    made = study(paths, options, on_stage=shown.on_stage, on_progress=shown.on_progress)
    keep_figures(made.report, paths, options)
    return made


def _read(paths: Sequence[str], options: "AnalysisOptions", shown: Progress) -> Input:
    from profkit.readers.report import read_report
    from profkit.readers.stream import place_of

    if len(paths) == 1:
        saved = read_report(place_of(paths[0]), options.limit_bytes)
        if saved is not None:
            return Input(paths[0], tuple(paths), saved)
    result = run_study(paths, options, shown)
    return Input(paths[0], tuple(paths), result.report, result.recording)
