"""Analyzes many recordings, each in a process of its own, and joins the ranks of a job.

A process returns plain results only: a report, and for a rank the data that joins it to others. A
process holds the events of one recording at a time.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import field, replace
from typing import Any, Final, Protocol

from profkit._version import __version__
from profkit.analysis.options import DEFAULT_OPTIONS, AnalysisOptions
from profkit.analysis.study import AnalysisResult, study
from profkit.dataclass import dataclass
from profkit.engine.job_context import JobContext, RankReport
from profkit.errors import (
    InternalError,
    LoadError,
    MissingFileError,
    NotATraceError,
    ProfkitError,
    SeveralTracesError,
    UnreadableFileError,
    UsageError,
)
from profkit.folders import cache_limit, limit_cache
from profkit.model.job import UnreadFile
from profkit.model.report import Report
from profkit.packed import Packed
from profkit.present.renderer import options_of, renderer
from profkit.readers.archives import MEMBER
from profkit.readers.kineto import parallel
from profkit.readers.progress import OnProgress
from profkit.readers.recordings import Recording, estimate_text_bytes, group_files, may_be_ranks
from profkit.readers.remote import is_url
from profkit.readers.report import read_report
from profkit.readers.stream import Copies, current_copies, place_of, use_copies
from profkit.readers.unpacked import unpacked
from profkit.scale.cluster import call_on_cluster, client_of_this_worker
from profkit.scale.processes import call_in_processes, can_start
from profkit.scale.resources import n_cores, processes_for
from profkit.scale.worker import outcome_of

_FUNCTION: Final = "profkit.analysis.several:analyze_item"
_OVER_RANKS: Final = "COM004"
"""A rule that does nothing on a single rank."""
_BASE_BYTES: Final = 160 << 20
"""Memory of a process that has imported what an analysis needs."""
_PER_TEXT_BYTE: Final = 0.5
"""Memory of an analysis per byte of a trace's text, rounded up."""
_WORTH_BYTES: Final = 50 << 20
"""A process takes about as long to start as this much text, twice, to analyze."""
_IN_MEMORY: Final = "memory://"
"""Files of this process alone."""


class Listener(Protocol):
    """Follows an analysis."""

    def reading(self, path: str) -> None:
        """Show that a file is read."""

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        """Show how much of a file is read, as for :func:`profkit.load`."""

    def on_stage(self, stage: str, ns: int) -> None:
        """Note a stage of reading or analyzing that has ended."""

    def finished(self, n: int, of: int, stages_ns: Mapping[str, int]) -> None:
        """Show how many recordings are analyzed, and the stages of the last one."""


@dataclass(frozen=True)
class AnalysisRequest:
    """What to do with each recording. It is sent to other processes.

    Attributes:
        options: Options of the analysis.
        format: Recordings outside a job are rendered in this format as long as they are loaded;
            empty for none.
        format_options: Options of the renderer, by name.
    """

    options: AnalysisOptions = DEFAULT_OPTIONS
    format: str = ""
    format_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Where recordings are analyzed.

    Attributes:
        workers: Number of processes of this machine; None to choose by its cores and memory, and
            to use none for a few small files.
        client: A ``distributed.Client`` of a Dask cluster to use instead, or None.
    """

    workers: int | None = None
    client: Any = None


LOCAL: Final = Scale()
"""Processes of this machine, as many as it has cores and memory for."""


@dataclass(frozen=True)
class Analyzed:
    """A report on a recording, or over the ranks of a job.

    Attributes:
        paths: Its files; of a job first the files of the rank that is shown.
        product: The report in the ordered format, or None if it is not rendered yet.
    """

    paths: tuple[str, ...]
    report: Report
    product: bytes | None = None

    @property
    def is_job(self) -> bool:
        """Return whether it is over the ranks of a job."""
        return self.report.source.kind == "ranks"


@dataclass(frozen=True)
class Analyses:
    """All reports on some paths.

    Attributes:
        reports: In the order of the paths; one per job.
        unread: Files that could not be read, and why.
        skipped: Files of folders that are not recordings.
    """

    reports: tuple[Analyzed, ...]
    unread: tuple[tuple[str, ProfkitError], ...]
    skipped: tuple[NotATraceError, ...]


@dataclass(frozen=True)
class _Item:
    """A recording and what a process needs to analyze it.

    Attributes:
        may_be_rank: Whether it may be shown as a part of a job, so that no product is made of it.
        root: The working folder of paths, if the process has another one.
        n_readers: How many processes may read it together.
        cache_bytes: The limit of the cache.
        is_alone: Whether it is the only recording, so that it joins no other.
        copies: The members of archives that the process can read from copies; None in this
            process, which knows them, and on other machines.
        version: Version of profkit, which has to be the same everywhere.
    """

    recording: Recording
    request: AnalysisRequest
    may_be_rank: bool = False
    root: str = ""
    n_readers: int | None = None
    cache_bytes: int | None = None
    is_alone: bool = False
    copies: Copies | None = None
    version: str = __version__


@dataclass(frozen=True)
class _Result:
    """What a process returns.

    Attributes:
        report: The report; for most ranks nobody reads it.
        rank: What joins it to other ranks, or None.
        product: As in :class:`Analyzed`.
        stages_ns: How long each stage took.
    """

    report: Packed[Report]
    rank: RankReport | None
    product: bytes | None
    stages_ns: Mapping[str, int]


def analyze_all(
    recordings: Sequence[Recording], request: AnalysisRequest, scale: Scale, listener: Listener
) -> Analyses:
    """Analyze some recordings, and join the ranks of a job.

    Raises:
        LoadError: Nothing could be read, or a given path does not exist or is not a
            recording.
        UsageError: As for :func:`profkit.analyze`.
    """
    analyzed: list[tuple[Recording, _Result]] = []
    failed: list[tuple[Recording, ProfkitError]] = []
    for recording, result in _iterate_results(recordings, request, scale, listener):
        if isinstance(result, ProfkitError):
            failed.append((recording, result))
        else:
            analyzed.append((recording, result))

    # A folder may contain anything: a file that is not a recording does not fail.
    unread = [failure for failure in failed if not isinstance(failure[1], NotATraceError)]
    if not analyzed and not failed:
        raise UsageError("There is nothing to analyze.", "Give a trace or a snapshot.")
    if not analyzed:
        raise (unread or failed)[0][1]

    return Analyses(
        tuple(_join_ranks(analyzed, unread)),
        tuple((recording.paths[0], error) for recording, error in unread),
        tuple(error for _, error in failed if isinstance(error, NotATraceError)),
    )


def read_or_analyze(
    recordings: Iterable[Recording], request: AnalysisRequest, scale: Scale, listener: Listener
) -> Analyses:
    """Analyze recordings, but take reports that were saved as JSON as they are; they come first.

    Raises:
        LoadError: As for :func:`analyze_all`, or a report is incomplete.
        UsageError: As for :func:`analyze_all`.
    """
    saved, unsaved = [], []
    for recording in recordings:
        report = None
        if len(recording.paths) == 1:
            # Files that cannot be read as a report are left to the analysis, which says why.
            with suppress(MissingFileError, UnreadableFileError, NotATraceError):
                report = read_report(place_of(recording.paths[0]), request.options.limit_bytes)

        if report is None:
            unsaved.append(recording)
        else:
            saved.append(Analyzed(recording.paths, report))

    if saved and not unsaved:
        return Analyses(tuple(saved), (), ())

    try:
        analyses = analyze_all(unsaved, request, scale, listener)
    except NotATraceError as error:
        if not saved:
            raise
        return Analyses(tuple(saved), (), (error,))

    return replace(analyses, reports=(*saved, *analyses.reports))


def find_job(
    recordings: Sequence[Recording], limit_bytes: int | None, scale: Scale, listener: Listener
) -> JobContext:
    """Return the ranks of the job that contains some recordings, without findings.

    Args:
        limit_bytes: As for :func:`profkit.load`.

    Raises:
        LoadError: Nothing could be read, or a path that was given does not exist.
        UsageError: They belong to no job, or to several.
    """
    from profkit.engine.job import group_by_job

    request = AnalysisRequest(AnalysisOptions(select=(_OVER_RANKS,), limit_bytes=limit_bytes))
    results = [result for _, result in _iterate_results(recordings, request, scale, listener)]
    ranks = (
        result.rank for result in results if isinstance(result, _Result) and result.rank is not None
    )
    jobs = [ctx for ctx in map(JobContext.of, group_by_job(ranks)) if len(ctx.ranks) > 1]
    # Dumps have no times that a replay could change.
    jobs = [ctx for ctx in jobs if ctx.ranks[0].has_trace]

    if len(jobs) == 1:
        return jobs[0]

    if error := next((result for result in results if isinstance(result, ProfkitError)), None):
        raise error

    which = f"belong to {len(jobs)} jobs" if jobs else "do not belong to a job of several ranks"
    message = f"{recordings[0].paths[0]} and the recordings with it {which}."
    raise UsageError(message, "Give the traces of all ranks of one job, recorded at the same time.")


def _iterate_results(
    recordings: Sequence[Recording], request: AnalysisRequest, scale: Scale, listener: Listener
) -> Iterator[tuple[Recording, _Result | ProfkitError]]:
    """Yield the result of each recording, and of each one in archives, in order."""
    results: list[Any] = [None] * len(recordings)
    for index, result in _iterate_unordered(recordings, request, scale, listener):
        if isinstance(result, ProfkitError):
            _raise_if_of_all(recordings[index], result, request)
        results[index] = result

    for recording, result in zip(recordings, results, strict=True):
        if isinstance(result, SeveralTracesError):
            members = group_files((member, True) for member in result.members)
            # Reading each member from the archive would take a pass over all that is before it.
            with unpacked(recording.paths[0]):
                yield from _iterate_results(members, request, scale, listener)
        else:
            yield recording, result


def _raise_if_of_all(recording: Recording, error: ProfkitError, request: AnalysisRequest) -> None:
    """Raise an error that concerns more than one file among others."""
    is_of_member = recording.is_member and isinstance(error, NotATraceError | MissingFileError)
    is_archive = isinstance(error, SeveralTracesError)
    is_path = isinstance(error, NotATraceError | MissingFileError) and not is_archive
    is_bug = isinstance(error, InternalError)

    # The user did not name the members of an archive: their faults are reported, not raised.
    if is_path and not is_of_member:
        raise error
    if not isinstance(error, LoadError) and (not is_bug or request.options.strict):
        raise error


def _iterate_unordered(
    recordings: Sequence[Recording], request: AnalysisRequest, scale: Scale, listener: Listener
) -> Iterator[tuple[int, _Result | ProfkitError]]:
    """Yield the result of each recording by index, wherever it is made."""
    # Another process would not analyze a single recording any faster.
    if len(recordings) == 1 and scale.client is None:
        item = _Item(recordings[0], request, cache_bytes=cache_limit(), is_alone=True)
        try:
            yield 0, analyze_item(item, listener)
        except SeveralTracesError as error:
            yield 0, error
        return

    with client_of_this_worker() if scale.client is None else nullcontext(scale.client) as client:
        # Estimate before any process starts whether starting processes takes longer than it saves.
        texts = estimate_text_bytes(recordings)
        # A file in memory exists in this process alone.
        shared = not any(
            p.startswith(_IN_MEMORY) for recording in recordings for p in recording.paths
        )
        saves_time = scale.workers is not None or sum(texts) >= _WORTH_BYTES
        # A worker of a cluster has a thread for each task, of which each reads with one process.
        n, n_readers = 0, (None if client is None else 1)
        needs = [_BASE_BYTES + int(_PER_TEXT_BYTE * n_bytes) for n_bytes in texts]
        if client is None and saves_time and shared and can_start():
            n = processes_for(needs, scale.workers)
            n_readers = max(1, n_cores() // n)

        root = os.getcwd() if client is not None else ""  # noqa: PTH109  (a text)
        shows = may_be_ranks(recordings) if request.format else [True] * len(recordings)
        items = [
            _Item(recording, request, may_be_rank, root, n_readers, cache_limit())
            for recording, may_be_rank in zip(recordings, shows, strict=True)
        ]

        if client is None and not n:
            for index, item in enumerate(items):
                yield index, outcome_of(lambda item: analyze_item(item, listener), item)
            return

        # The largest first, so that none is left at the end.
        by_size = sorted(range(len(items)), key=lambda index: -texts[index])
        ordered = [items[index] for index in by_size]
        if client is not None:
            # Copies of an archive's members are on this machine only.
            made = call_on_cluster(_FUNCTION, ordered, [needs[index] for index in by_size], client)
        else:
            ordered = [replace(item, copies=_find_copies(item.recording)) for item in ordered]
            made = call_in_processes(_FUNCTION, ordered, n)

        listener.finished(0, len(items), {})
        for done, (place, result) in enumerate(made, start=1):
            stages_ns = result.stages_ns if isinstance(result, _Result) else {}
            listener.finished(done, len(items), stages_ns)
            yield by_size[place], result


def _find_copies(recording: Recording) -> Copies:
    """Return the copies of its own files only, as thousands of recordings are sent."""
    copies = current_copies()
    names = [str(place_of(path)) for path in recording.paths]
    return {name: copies[name] for name in names if name in copies}


class _Stages:
    """Counter of stages, which passes everything on to another listener if there is one."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self.ns: Counter[str] = Counter()

    def on_stage(self, stage: str, ns: int) -> None:
        self.ns[stage] += ns
        if self._listener is not None:
            self._listener.on_stage(stage, ns)

    @property
    def on_progress(self) -> OnProgress | None:
        return None if self._listener is None else self._listener.on_progress


def analyze_item(item: _Item, listener: Listener | None = None) -> _Result:
    """Analyze a recording, in whatever process.

    Raises:
        LoadError: It cannot be read.
        UsageError: This process has another version of profkit.
    """
    if item.version != __version__:
        message = f"A worker runs profkit {__version__}, but this program runs {item.version}."
        raise UsageError(message, "Install the same version on both.")

    # Another process does not have these limits: they come with the item.
    parallel.limit_processes(item.n_readers)
    limit_cache(item.cache_bytes)
    # None in this process, which has its copies, and on other machines, which have none.
    if item.copies is not None:
        use_copies(item.copies)
    stages = _Stages(listener)

    paths = item.recording.paths
    if listener is not None:
        listener.reading(paths[0])
    places = [path if is_url(path) else os.path.join(item.root, path) for path in paths]  # noqa: PTH118  (as given)

    try:
        result = study(
            places,
            item.request.options,
            on_stage=stages.on_stage,
            on_progress=stages.on_progress,
        )
    except LoadError as error:
        # The file was read by its absolute path: name it as it was given.
        for place, path in zip(places, paths, strict=True):
            _rename(error, place.partition(MEMBER)[0], path.partition(MEMBER)[0])
        raise

    if item.root:
        result = _restore_paths(result, paths)
    rank = None if item.is_alone else result.build_rank_report()

    # The report on a rank becomes a part of the job's: rendering it alone may be in vain.
    product = None
    if item.request.format and (rank is None or not item.may_be_rank):
        product = _render(result, item.request)

    if rank is not None:
        rank = replace(rank, path=str(place_of(paths[0])), whole=None)

    return _Result(Packed(result.report), rank, product, dict(stages.ns))


def _rename(error: LoadError, place: str, path: str) -> None:
    """Name a file in an error as it was given."""
    error.message = error.message.replace(place, path)
    error.hint = error.hint.replace(place, path)
    if isinstance(error, SeveralTracesError):
        error.members = tuple(member.replace(place, path, 1) for member in error.members)


def _restore_paths(result: AnalysisResult, paths: tuple[str, ...]) -> AnalysisResult:
    """Return a result with the paths of its files as they were given, not absolute."""
    source = replace(result.report.source, path=str(place_of(paths[0])))
    recording = replace(result.recording, paths=paths)
    return replace(result, report=replace(result.report, source=source), recording=recording)


def _render(result: AnalysisResult, request: AnalysisRequest) -> bytes:
    module = renderer(request.format)
    options = {**request.format_options, "recording": result.recording}
    return module.render(result.report, options_of(module, options))


def _join_ranks(
    analyzed: Sequence[tuple[Recording, _Result]], unread: Sequence[tuple[Recording, ProfkitError]]
) -> Iterator[Analyzed]:
    """Yield one report in place of the reports on a job's ranks, where the first of them was.

    Files that could not be read are in the report on a job with files of the same folder.
    """
    if all(result.rank is None for _, result in analyzed):
        for recording, result in analyzed:
            yield Analyzed(recording.paths, result.report.value, result.product)
        return

    from profkit.engine.job import group_by_job, merge_reports

    by_rank = {id(result.rank): (recording, result) for recording, result in analyzed}
    job_of = {
        id(rank): job
        for job in group_by_job(result.rank for _, result in analyzed if result.rank is not None)
        for rank in job
    }
    joined: set[int] = set()

    for recording, result in analyzed:
        job = job_of.get(id(result.rank))
        if job is None:
            yield Analyzed(recording.paths, result.report.value, result.product)
        elif id(job) not in joined:
            joined.add(id(job))
            paths = [path for rank in job for path in by_rank[id(rank)][0].paths]
            folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120  (also of a URL)
            # Other processes return a rank's report without details: the shown rank needs all of
            # it.
            shown = replace(job[0], whole=by_rank[id(job[0])][1].report.value)
            report = merge_reports([shown, *job[1:]])

            unread_files = tuple(
                UnreadFile(recording.paths[0], error.message)
                for recording, error in unread
                if os.path.dirname(recording.paths[0]) in folders  # noqa: PTH120
            )

            yield Analyzed(tuple(paths), replace(report, unread=unread_files))
