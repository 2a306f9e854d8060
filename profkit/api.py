"""The public functions: analyze, compare, render and predict."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from profkit.analysis.options import DEFAULT_OPTIONS, AnalysisOptions, Peaks
from profkit.analysis.several import (
    LOCAL,
    AnalysisRequest,
    Scale,
    analyze_all,
    find_job,
    read_or_analyze,
)
from profkit.analysis.study import (
    ONE_BY_ONE,
    AnalysisResult,
    Path,
    build_report,
    load_context,
    no_stage,
    paths_in,
    select_rules,
    study,
)
from profkit.arguments import (
    CALLABLE,
    FLAG,
    ITERABLE,
    MAPPING,
    NAME,
    PATH,
    Arguments,
    either,
    instance_of,
    names_in,
    numbers_in,
    optional,
    require,
    whole,
)
from profkit.budgets.baseline import read_baseline
from profkit.budgets.check import check as checked
from profkit.budgets.history import build_history
from profkit.budgets.limits import budgets_of
from profkit.comparison.compare import Side
from profkit.comparison.compare import compare as differ
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.registry import choose_rules, rules
from profkit.engine.runner import OnStage, Overrides, run_rules
from profkit.engine.what_if import (
    check_factors,
    predict,
    predict_usual_changes,
    remove_findings,
    scale_matches,
    use_graphs,
    without_data_waits,
)
from profkit.engine.what_if_ranks import RanksChoice, check_bandwidth, predict_job
from profkit.errors import (
    LoadError,
    NotATraceError,
    SeveralTracesError,
    UsageError,
)
from profkit.model.check import Check
from profkit.model.difference import Difference
from profkit.model.history import History
from profkit.model.report import Report
from profkit.model.trace import Trace
from profkit.model.what_if import JobPrediction, Prediction
from profkit.present.flame_difference import FlameDifference, flame_differences
from profkit.present.renderer import options_of, renderer
from profkit.present.results import Result, render_result
from profkit.readers.progress import OnProgress
from profkit.readers.recordings import KINDS, Recording, detect_kind, find_recordings
from profkit.readers.report import is_report, read_report
from profkit.readers.stream import place_of

__all__ = [
    "AnalysisResult", "analyze", "check", "compare", "history", "render", "study",
    "what_if", "what_if_ranks",
]  # fmt: skip

_RECORDING: Final = either(PATH, instance_of((Report,), "a report"))
_WORKERS: Final = optional(whole(1))
_CALLBACK: Final = optional(CALLABLE)
_ANALYZE: Final = Arguments("profkit.analyze", on_stage=_CALLBACK, workers=_WORKERS)
_COMPARE: Final = Arguments(
    "profkit.compare", before=_RECORDING, after=_RECORDING, on_progress=_CALLBACK
)
_WHAT_IF: Final = Arguments(
    "profkit.what_if", recording=either(PATH, instance_of((Trace,), "a trace")),
    scale=optional(MAPPING), graph=FLAG, data_wait=FLAG, on_progress=_CALLBACK,
)  # fmt: skip
_WHAT_IF_RANKS: Final = Arguments(
    "profkit.what_if_ranks", even=FLAG, waiting=FLAG, workers=_WORKERS
)
_RENDER: Final = Arguments(
    "profkit.render",
    report=instance_of(
        (Report, *get_args(Result)),
        "a report, a difference, a check or a history",
    ),
    format=NAME,
)  # fmt: skip
_HISTORY: Final = Arguments("profkit.history", workers=_WORKERS)
_CHECK: Final = Arguments("profkit.check", budgets=MAPPING, baseline=optional(PATH))
_OPTIONS: Final = {
    "thresholds": optional(MAPPING),
    "strict": FLAG,
    "limit_bytes": optional(whole()),
    "peaks": optional(MAPPING),
    "tokens_per_step": optional(whole(1)),
    "parameters": optional(whole(1)),
}
"""Options of the analysis, which several functions have."""


def analyze(  # noqa: PLR0913  (options, by name)
    path: Path | Iterable[Path],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    strict: bool = False,
    on_stage: OnStage | None = None,
    limit_bytes: int | None = None,
    peaks: Peaks | None = None,
    tokens_per_step: int | None = None,
    parameters: int | None = None,
    workers: int | None = None,
    client: Any = None,  # noqa: ANN401  (distributed.Client, of an extra)
) -> Report:
    """Read a recording and report why the program is slow or its memory grows.

    Needs neither a GPU nor torch.

    Args:
        path: A trace, a snapshot, a memory record or a FlightRecorder dump, as for
            :func:`profkit.load`; several files of one program, one of each kind; or the traces or
            dumps of the ranks of a job, their folder, or a glob.
        select: Rules to run: ids, names, or families such as ``SYN``. Empty means all.
        ignore: Rules not to run, in the same form.
        thresholds: By rule name, thresholds that differ from the default.
        strict: Raise if a rule crashes, instead of reporting it as a skipped check.
        on_stage: Called after each stage with its name and duration in nanoseconds.
        limit_bytes: Maximum decompressed size of a file, as for :func:`profkit.load`.
        peaks: Peak figures by device name, for devices that profkit does not know:
            ``{"NVIDIA L4": {"float16_tflops": 121, "bandwidth_gb_per_s": 300}}``; ``"cpu"``
            without devices.
        tokens_per_step: Total tokens of a step, for model FLOP utilization.
        parameters: Model parameters that each token uses, for model FLOP utilization.
        workers: Number of processes that analyze several recordings; by default as many as
            cores and memory allow, and none for a few small files.
        client: A ``distributed.Client`` of a Dask cluster that analyzes several recordings instead
            of processes of this machine. In a task of a cluster it is that cluster's by default.

    Raises:
        LoadError: A file cannot be read, or is not a recording. The report on a job lists such
            files instead.
        UsageError: There is no such rule, threshold or peak, or there are recordings of several
            programs.
        PluginError: A rule of another package cannot be used.
    """
    _ANALYZE.check(on_stage=on_stage, workers=workers)
    options = _check_options(
        "profkit.analyze",
        select=select,
        ignore=ignore,
        thresholds=thresholds,
        strict=strict,
        limit_bytes=limit_bytes,
        peaks=peaks,
        tokens_per_step=tokens_per_step,
        parameters=parameters,
    )
    return analyze_with(path, options, Scale(workers, client), on_stage or no_stage)


def _check_options(
    function: str,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    **values: Any,  # noqa: ANN401  (by name)
) -> AnalysisOptions:
    """Check the options that a public function was called with.

    Args:
        function: Its public name, such as ``profkit.analyze``, for the error.
        values: More attributes of :class:`AnalysisOptions`; None stands for the default.

    Raises:
        UsageError: One has the wrong type or value.
    """
    for name, value in values.items():
        require(_OPTIONS[name], value, f"{function}: {name}")

    return AnalysisOptions(
        select=names_in(select, f"{function}: select"),
        ignore=names_in(ignore, f"{function}: ignore"),
        **{name: _to_plain(value) for name, value in values.items() if value is not None},
    )


def _to_plain(value: Any) -> Any:  # noqa: ANN401  (the value of any option)
    """Convert mappings to dictionaries, since other mappings may not be sent to a process."""
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return value


def analyze_with(
    path: Path | Iterable[Path],
    options: AnalysisOptions,
    scale: Scale = LOCAL,
    on_stage: OnStage = no_stage,
) -> Report:
    """Report on a recording or a job as :func:`analyze` does, with options that are checked."""
    # Files of different kinds belong to one program, whatever their names are.
    paths = paths_in(path)
    recordings = _join_kinds(paths) or find_recordings(paths)

    results = analyze_all(recordings, AnalysisRequest(options), scale, _Stages(on_stage))

    # The report on a job lists its unread files. Without a job, each file must be read.
    reports = results.reports
    if len(reports) == 1 and (reports[0].is_job or not results.unread):
        return reports[0].report
    if results.unread:
        raise results.unread[0][1]

    files = [result.paths[0] for result in reports]
    message = f"{files[0]} and {files[1]} were recorded from different programs."
    if len(paths) > 1:
        raise UsageError(message, ONE_BY_ONE)
    raise SeveralTracesError(message, ONE_BY_ONE, files)


def report_on_ranks(
    files: Iterable[Iterable[str]],
    options: AnalysisOptions = DEFAULT_OPTIONS,
    of: str | None = None,
) -> Report | None:
    """Report on the ranks of a job; None if fewer than two have recorded at the same time.

    Args:
        files: The files of each rank: its trace, its memory record, its dumps.
        options: Rules, thresholds and peaks.
        of: A file that the job has to have; by default it is the one with the most ranks.

    Raises:
        LoadError: No file can be read.
    """
    recordings = [Recording(tuple(rank_files), is_member=True) for rank_files in files]
    results = analyze_all(recordings, AnalysisRequest(options), LOCAL, _Stages(no_stage))
    jobs = [result for result in results.reports if result.is_job or _tells_failure(result.report)]
    reports = [job.report for job in jobs if of is None or of in job.paths]
    return max(reports, key=lambda report: len(report.ranks), default=None)


def _tells_failure(report: Report) -> bool:
    """Return whether a report says why a rank failed, which may be another than the recorded."""
    return any(finding.name == "failed-rank" for finding in report.findings)


def _join_kinds(paths: list[str]) -> list[Recording]:
    """Join files of different kinds to one recording; empty if two are of one kind."""
    if not 1 < len(paths) <= len(KINDS):
        return []

    # A folder or a missing file has no kind: the search for recordings handles it.
    try:
        kinds = {detect_kind(place_of(path)) for path in paths}
    except LoadError:
        return []
    return [Recording(tuple(paths))] if len(kinds) == len(paths) else []


@dataclass(frozen=True)
class _Stages:
    """Passes on the stages of all recordings."""

    on_stage: OnStage

    def reading(self, path: str) -> None:
        """Ignore that a file is read."""

    def on_progress(self, n_bytes: int, of_bytes: int) -> None:
        """Ignore how far it has been read."""

    def finished(self, n: int, of: int, stages_ns: Mapping[str, int]) -> None:  # noqa: ARG002  (of a listener)
        """Pass on the stages of another process."""
        for stage, ns in stages_ns.items():
            self.on_stage(stage, ns)


def compare(
    before: Path | Report,
    after: Path | Report,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Difference:
    """Report what is new, worse, better or fixed from one recording to another.

    Two memory snapshots are compared by stack, in bytes; traces and reports by step time, findings
    and kernels.

    Args:
        before: A snapshot, a trace, the folder of the ranks of a job, or a report, which may be
            saved as JSON.
        after: Another recording or report of the same kind.
        select: Rules to run, as for :func:`profkit.analyze`.
        ignore: Rules not to run.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.
        on_progress: As for :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is none of these.
        UsageError: They are of two kinds, or there is no such rule or threshold.
    """
    _COMPARE.check(before=before, after=after, on_progress=on_progress)
    options = _check_options(
        "profkit.compare",
        select=select,
        ignore=ignore,
        thresholds=thresholds,
        limit_bytes=limit_bytes,
    )
    return compare_with(before, after, options, on_progress)


def compare_with(
    before: Path | Report,
    after: Path | Report,
    options: AnalysisOptions,
    on_progress: OnProgress | None = None,
) -> Difference:
    """Compare two recordings as :func:`compare` does, with options that are checked."""
    rules_to_run = select_rules(options)

    def read_side(recording: Path | Report) -> Side:
        if isinstance(recording, Report):
            return Side(recording)
        # A saved report keeps the rules and thresholds that it was made with.
        saved = read_report(place_of(recording), options.limit_bytes)
        if saved is not None:
            return Side(saved, path=str(recording))

        recordings = find_recordings([os.fspath(recording)])
        try:
            files = recordings[0].paths if len(recordings) == 1 else [recording]
            ctx = load_context(files, options, no_stage, on_progress)
        except SeveralTracesError:
            # The ranks of a job have a report, but no snapshot to compare by stack.
            return Side(analyze_with(recording, options), path=str(recording))

        report = build_report(ctx, rules_to_run, options, no_stage)
        return Side(report, ctx.snapshot, str(recording))

    return differ(read_side(before), read_side(after))


def compared_flames(
    before: Path, after: Path, options: AnalysisOptions
) -> tuple[FlameDifference, ...]:
    """Return the flame graphs that both recordings have, as differences per step.

    Args:
        before: A file with a recording, or the folder of one.
        after: Another file or folder.
        options: The maximum size of a file; rules are not run.

    Returns:
        Nothing for reports and for the ranks of a job, which have no single recording.

    Raises:
        LoadError: A file cannot be read.
    """
    contexts = []
    for path in (before, after):
        recordings = find_recordings([os.fspath(path)])
        if len(recordings) != 1 or is_report(place_of(path)):
            return ()
        try:
            contexts.append(load_context(recordings[0].paths, options, no_stage, None))
        except SeveralTracesError:
            return ()
    return flame_differences(*contexts)


def what_if(
    recording: Path | Trace,
    *,
    remove: Iterable[str] = (),
    scale: Mapping[str, float] | None = None,
    graph: bool = False,
    data_wait: bool = True,
    thresholds: Overrides | None = None,
    limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Prediction:
    """Predict the step time of a recorded program with changes, all of them made at once.

    The recording is replayed as a graph of dependencies, in which everything starts as soon as what
    it waited for in the recording has ended.

    Args:
        recording: A trace, or its path or URL.
        remove: Rules whose findings are fixed: ids, names or families; with ``@train.py`` or
            ``@train.py:41`` only its findings in that file or line.
        scale: Factors of the time, by pattern: ``{"nccl*": 0.5}``. A pattern matches a
            whole name of kernels, copies, operators, Python functions, regions or runtime calls;
            ``*`` stands for any characters and ``?`` for any one. Operators, regions and functions
            change with the kernels that they launched; if a pattern matches device work, host
            events of matching names do not change.
        graph: Launch the device work of each step as one graph: from the first to the last launch
            of a step, the host spends time only on blocking calls and on waiting for data.
        data_wait: Keep the waits for the next batch.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.
        on_progress: As for :func:`profkit.load`.

    Raises:
        LoadError: The file cannot be read, or is not a trace.
        UsageError: No change is given, there is no such rule, a rule found nothing, a pattern
            matches nothing, or a factor is not a number of 0 or more.
    """
    _WHAT_IF.check(
        recording=recording, scale=scale, graph=graph, data_wait=data_wait, on_progress=on_progress
    )
    options = _check_options("profkit.what_if", thresholds=thresholds, limit_bytes=limit_bytes)
    factors = tuple(check_factors(scale or {}))
    words = names_in(remove, "profkit.what_if: remove")
    if not (words or factors or graph or not data_wait):
        hint = "Remove findings, scale times, use a graph, or leave out the waits for data."
        raise UsageError("No change is given.", hint)

    # An unknown rule is reported before the recording is read, which may take a minute.
    rules_by_word = [(word, choose_rules(rules(), [word.partition("@")[0]], ())) for word in words]

    ctx = _load_trace(recording, options, on_progress)
    changes = [*(scale_matches(ctx, pattern, factor) for pattern, factor in factors)]
    # Only the rules that are named run: a prediction needs no other finding.
    for word, word_rules in rules_by_word:
        results = run_rules(ctx, word_rules, options.thresholds, on_stage=no_stage)
        # A family may have found nothing because all of its rules were skipped.
        skipped = results.unchecked[0] if len(results.unchecked) == len(word_rules) else None
        changes.append(remove_findings(ctx, word, results.findings, skipped))

    changes += [use_graphs(ctx)] if graph else []
    changes += [] if data_wait else [without_data_waits(ctx)]
    return predict(ctx, changes)


def what_if_each(
    recording: Path | Trace,
    options: AnalysisOptions,
    on_progress: OnProgress | None = None,
) -> tuple[Prediction, ...]:
    """Predict the usual changes of a recorded program, each alone; the best one first.

    Raises:
        LoadError: The file cannot be read, or is not a trace.
    """
    ctx = _load_trace(recording, options, on_progress)
    chosen = choose_rules(rules(), options.select, options.ignore)
    results = run_rules(ctx, chosen, options.thresholds, on_stage=no_stage)
    return predict_usual_changes(ctx, results.findings)


def _load_trace(
    recording: Path | Trace, options: AnalysisOptions, on_progress: OnProgress | None
) -> Context:
    """Load what a prediction replays.

    Raises:
        LoadError: The file cannot be read, or is not a trace.
    """
    if isinstance(recording, Trace):
        return Context(trace=recording)
    ctx = load_context([recording], options, no_stage, on_progress)
    if not ctx.has_trace:
        raise NotATraceError(f"{recording} is not a trace.", "Predictions need a trace.")
    return ctx


def what_if_ranks(  # noqa: PLR0913  (options, by name)
    path: Path | Iterable[Path],
    *,
    ranks: Iterable[int] = (),
    stages: Iterable[int] = (),
    even: bool = False,
    waiting: bool = True,
    bandwidth: Mapping[str, float] | float | None = None,
    limit_bytes: int | None = None,
    workers: int | None = None,
    client: Any = None,  # noqa: ANN401  (distributed.Client, of an extra)
) -> JobPrediction:
    """Predict the step time of a job with changes of its ranks, all of them made at once.

    All ranks are replayed together: each alternates between time of its own and waiting for
    collectives, which begin when their last rank has joined. Without a change, the result has each
    usual one alone: the ranks that cost most, each stage of a pipeline, all ranks with equal time,
    no waiting, twice the bandwidth.

    Args:
        path: The traces of the ranks of a job, their folder, or a glob, as for
            :func:`profkit.analyze`.
        ranks: Ranks that keep up with the median of the other ranks, where that is shorter.
        stages: Stages of the pipeline, from 0, whose ranks take the mean of all ranks.
        even: All ranks take their mean.
        waiting: Keep the waits of ranks for each other; without them each goes on at its own pace,
            and the slowest decides.
        bandwidth: Factors of the bandwidth of matched collectives: one of all, or by a pattern of
            their kind or process group, such as ``{"all-gather": 2}``. Their transfers
            take that much less time; waiting for other ranks does not change.
        limit_bytes: As for :func:`profkit.load`.
        workers: As for :func:`profkit.analyze`.
        client: As for :func:`profkit.analyze`.

    Raises:
        LoadError: A file cannot be read, or is not a recording.
        UsageError: The files are not of one job, too few of its collectives could be matched, there
            is no such rank or stage, a pattern matches nothing, or a factor is not above 0.
    """
    _WHAT_IF_RANKS.check(even=even, waiting=waiting, workers=workers)
    options = _check_options("profkit.what_if_ranks", limit_bytes=limit_bytes)
    choice = RanksChoice(
        ranks=numbers_in(ranks, "profkit.what_if_ranks: ranks"),
        stages=numbers_in(stages, "profkit.what_if_ranks: stages"),
        even=even,
        waiting=waiting,
        bandwidth=check_bandwidth(bandwidth),
    )
    recordings = find_recordings(paths_in(path))
    scale, listener = Scale(workers, client), _Stages(no_stage)
    return predict_job(find_job(recordings, options.limit_bytes, scale, listener), choice)


def check(
    paths: Path | Report | Iterable[Path | Report],
    budgets: Mapping[str, Any],
    *,
    baseline: Path | None = None,
    thresholds: Overrides | None = None,
    limit_bytes: int | None = None,
) -> Check:
    """Compare the figures of a program with its budgets.

    Args:
        paths: A recording or a report, or several: from repeated runs, or the trace and the memory
            record of one run.
        budgets: The limit of each figure by name, as in ``[tool.profkit.budgets]``:
            ``{"step_ms": 12.5, "syncs": 0, "peak": "2 GiB", "findings": "error"}``, or relative to
            the baseline, ``{"gpu_ms": "+5%"}``.
        baseline: A file that ``profkit check --update-baseline`` wrote, or a report saved as JSON.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is neither a recording nor a report.
        UsageError: A budget is not valid.
    """
    _CHECK.check(budgets=budgets, baseline=baseline)
    options = _check_options("profkit.check", thresholds=thresholds, limit_bytes=limit_bytes)
    limits = budgets_of(budgets, "profkit.check: budgets")
    reference = read_baseline(os.fspath(baseline)) if baseline is not None else None
    recordings = _reports_or_paths(paths, "profkit.check: paths")

    def report_on(recording: Path | Report) -> Report:
        if isinstance(recording, Report):
            return recording
        saved = read_report(place_of(recording), options.limit_bytes)
        return saved or analyze_with(recording, options)

    return checked(list(map(report_on, recordings)), limits, reference)


def history(
    paths: Path | Report | Iterable[Path | Report],
    *,
    thresholds: Overrides | None = None,
    limit_bytes: int | None = None,
    workers: int | None = None,
) -> History:
    """Compare figures and findings of a program over its commits.

    Args:
        paths: Recordings and reports, or folders of them. Recordings of one commit, on one device
            and with one version of PyTorch, are repeated runs.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.
        workers: As for :func:`profkit.analyze`.

    Raises:
        LoadError: Nothing could be read, or a given path does not exist, or is neither a recording
            nor a report.
        UsageError: A threshold is not valid.
    """
    _HISTORY.check(workers=workers)
    options = _check_options("profkit.history", thresholds=thresholds, limit_bytes=limit_bytes)
    sources = _reports_or_paths(paths, "profkit.history: paths")
    reports = [source for source in sources if isinstance(source, Report)]
    files = [os.fspath(source) for source in sources if not isinstance(source, Report)]
    if files:
        request = AnalysisRequest(options)
        recordings = find_recordings(files)
        results = read_or_analyze(recordings, request, Scale(workers), _Stages(no_stage))
        reports += [result.report for result in results.reports]
    return build_history(reports)


def _reports_or_paths(
    value: Path | Report | Iterable[Path | Report], what: str
) -> list[Path | Report]:
    """Check one or several reports and paths, and return them as a list."""
    if isinstance(value, str | os.PathLike | Report):
        value = [value]
    require(ITERABLE, value, what)
    recordings = list(value)
    for recording in recordings:
        require(_RECORDING, recording, what)
    return recordings


def render(
    report: Report | Result,
    format: str = "text",  # noqa: A002  (the word of the command line)
    **options: Any,  # noqa: ANN401  (each renderer has its own options)
) -> bytes:
    """Render a report, a comparison, a check or a history.

    Args:
        report: The report, or the result of :func:`profkit.compare`, :func:`profkit.check` or
            :func:`profkit.history`.
        format: The renderer's name, such as ``text``, ``json``, ``md``.
        **options: The renderer's options, such as ``width=80``; others are ignored.

    Raises:
        UsageError: There is no such format, or an argument is invalid.
    """
    _RENDER.check(report=report, format=format)
    if not isinstance(report, Report):
        return render_result(report, format, options)
    module = renderer(format)
    return module.render(report, options_of(module, options))
