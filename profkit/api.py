"""The public functions: analyze, compare, render and predict."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

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
    optional,
    require,
    whole,
)
from profkit.budgets.baseline import read_baseline
from profkit.budgets.check import check as checked
from profkit.budgets.limits import budgets_of
from profkit.comparison.compare import Side
from profkit.comparison.compare import compare as differ
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.job import job_report, jobs_of, rank_report
from profkit.engine.job_context import RankReport, RuleChoice
from profkit.engine.registry import chosen, rules
from profkit.engine.runner import OnStage, Overrides, report_on, run_rules
from profkit.engine.what_if import (
    checked_factors,
    in_graphs,
    predict,
    removed,
    scaled,
    without_data_waits,
)
from profkit.errors import NotATraceError, SeveralTracesError, UsageError
from profkit.index.compute.peaks import given_peak
from profkit.model.check import Check
from profkit.model.difference import Difference
from profkit.model.live_memory import LiveMemory
from profkit.model.report import Report
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace
from profkit.model.what_if import Prediction
from profkit.present.renderer import LoadedRecording, accepted, render_result, renderer
from profkit.readers.open import load
from profkit.readers.progress import OnProgress
from profkit.readers.report import read_report
from profkit.readers.stream import is_folder, place_of

Path = str | os.PathLike[str]
Peaks = Mapping[str, Mapping[str, float]]

_COMMON: Final = {
    "thresholds": optional(MAPPING),
    "limit_bytes": optional(whole()),
    "on_progress": optional(CALLABLE),
}
_ANALYZE: Final = Arguments(
    "profkit.analyze", strict=FLAG, on_stage=optional(CALLABLE), peaks=optional(MAPPING),
    tokens_per_step=optional(whole(1)), parameters=optional(whole(1)), **_COMMON,
)  # fmt: skip
_RECORDING: Final = either(PATH, instance_of((Report,), "a report"))
_COMPARE: Final = Arguments("profkit.compare", before=_RECORDING, after=_RECORDING, **_COMMON)
_WHAT_IF: Final = Arguments(
    "profkit.what_if", recording=either(PATH, instance_of((Trace,), "a trace")),
    scale=optional(MAPPING), graph=FLAG, data_wait=FLAG, **_COMMON,
)  # fmt: skip
_RENDER: Final = Arguments(
    "profkit.render",
    report=instance_of((Report, Difference, Check), "a report, a difference or a check"),
    format=NAME,
)  # fmt: skip
_CHECK: Final = Arguments("profkit.check", budgets=MAPPING, baseline=optional(PATH), **_COMMON)

_KINDS: Final[dict[type, str]] = {Trace: "trace", MemorySnapshot: "snapshot", LiveMemory: "live"}
"""The field of each kind of recording in a :class:`~profkit.engine.context.Context`."""


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
) -> Report:
    """Read a recording and report why the program is slow or its memory grows.

    Needs neither a GPU nor torch.

    Args:
        path: A trace, a snapshot or a memory record, as for :func:`profkit.load`; several files of
            one program, one of each kind; or the traces of the ranks of a job, or their folder.
        select: Rules to run: ids, names, or families such as ``SYN``. Empty means all.
        ignore: Rules not to run, in the same form.
        thresholds: By rule name, thresholds that differ from the default.
        strict: Raise if a rule crashes, instead of reporting it as a skipped check.
        on_stage: Called after each stage with its name and duration in nanoseconds.
        limit_bytes: Maximum decompressed size of a file, as for :func:`profkit.load`.
        peaks: By device name, what it computes and moves at most, for devices that profkit does not
            know: ``{"NVIDIA L4": {"float16_tflops": 121, "bandwidth_gb_per_s": 300}}``; ``"cpu"``
            without devices.
        tokens_per_step: Tokens that a step processes in all, for model FLOP utilization.
        parameters: Parameters of the model that each token uses, for the same.

    Raises:
        LoadError: A file cannot be read, or is not a recording.
        UsageError: There is no such rule, threshold or peak, or there are two files of one kind
            that are not ranks of one job.
        PluginError: A rule of another package cannot be used.
    """

    def one(files: Path | Iterable[Path]) -> Study:
        return study(
            files,
            select=select,
            ignore=ignore,
            thresholds=thresholds,
            strict=strict,
            on_stage=on_stage,
            limit_bytes=limit_bytes,
            peaks=peaks,
            tokens_per_step=tokens_per_step,
            parameters=parameters,
        )

    paths = [path] if isinstance(path, str | os.PathLike) else _paths(path)
    try:
        return one(paths).report
    except (SeveralTracesError, _SameKindError) as several:
        found = _of_ranks(several.members, one)
        if found is None:
            raise
        return found


@dataclass(frozen=True)
class Study:
    """A report and the recording that it was made from.

    Attributes:
        recording: For ``render(report, format, recording=…)``, with formats that display it.
        choice: The rules that were to run.
    """

    report: Report
    recording: LoadedRecording
    choice: RuleChoice

    def rank_report(self) -> RankReport | None:
        """The report with what joins it to those of other ranks; None if its rank is not known."""
        return rank_report(self.recording.context, self.report, self.choice)


def study(  # noqa: PLR0913  (options, by name)
    path: Path | Iterable[Path],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    strict: bool = False,
    on_stage: OnStage | None = None,
    on_progress: OnProgress | None = None,
    limit_bytes: int | None = None,
    peaks: Peaks | None = None,
    tokens_per_step: int | None = None,
    parameters: int | None = None,
) -> Study:
    """Return what :func:`analyze` does, with the recording; arguments and errors are the same.

    Args:
        on_progress: As for :func:`profkit.load`.
    """
    _ANALYZE.check(
        strict=strict, on_stage=on_stage, thresholds=thresholds, limit_bytes=limit_bytes,
        on_progress=on_progress, peaks=peaks, tokens_per_step=tokens_per_step,
        parameters=parameters,
    )  # fmt: skip
    wanted = _chosen("profkit.analyze", select, ignore)
    on_stage = on_stage or _no_stage
    paths = [path] if isinstance(path, str | os.PathLike) else _paths(path)
    ctx = replace(
        _context(paths, limit_bytes, on_stage, on_progress),
        peaks={device: given_peak(figures) for device, figures in (peaks or {}).items()},
        tokens_per_step=tokens_per_step,
        parameters=parameters,
    )
    report = _report(ctx, wanted, thresholds or {}, strict=strict, on_stage=on_stage)
    ids = tuple(rule.INFO.id for rule in wanted)
    choice = RuleChoice(ids, thresholds or {}, strict)
    return Study(report, LoadedRecording(ctx, tuple(os.fspath(each) for each in paths)), choice)


class _SameKindError(UsageError):
    """Several files are of one kind.

    Args:
        members: All files.
    """

    def __init__(self, message: str, hint: str, members: Iterable[Path]) -> None:
        super().__init__(message, hint)
        self.members = tuple(members)


def _of_ranks(paths: Iterable[Path], one: Callable[[Path], Study]) -> Report | None:
    """The report over the ranks of one job, or None if the files are not that.

    One recording is in memory at a time. Files that are no recordings are skipped.

    Args:
        one: Analyzes one file.
    """
    ranks = []
    for path in paths:
        try:
            rank = one(path).rank_report()
        except NotATraceError:
            continue
        if rank is None:
            return None
        ranks.append(rank)
    jobs = jobs_of(ranks)
    return job_report(jobs[0]) if len(jobs) == 1 and len(jobs[0]) == len(ranks) else None


def _context(
    paths: list[Path], limit_bytes: int | None, on_stage: OnStage, on_progress: OnProgress | None
) -> Context:
    """Load files of one program.

    Raises:
        UsageError: There are two of one kind, or none.
    """
    found: dict[str, Any] = {}
    for path in paths:
        loaded = load(path, limit_bytes=limit_bytes, on_progress=on_progress)
        kind = _KINDS[type(loaded)]
        if kind in found:
            message = f"{found[kind][0]} and {path} are both a {kind}."
            hint = "Analyze them one by one; a report is of one program, or of the ranks of a job."
            raise _SameKindError(message, hint, paths)
        found[kind] = (path, loaded)
        if not isinstance(loaded, LiveMemory):
            for stage, ns in loaded.notes.stages_ns.items():
                on_stage(stage, ns)
    if not found:
        raise UsageError("There is nothing to analyze.", "Give a trace or a snapshot.")
    return Context(**{kind: loaded for kind, (_, loaded) in found.items()})


def _no_stage(stage: str, ns: int) -> None:
    """Do nothing after a stage."""


def _report(
    ctx: Context,
    wanted: tuple[Rule, ...],
    thresholds: Overrides,
    *,
    strict: bool,
    on_stage: OnStage,
) -> Report:
    began = time.perf_counter_ns()
    ctx.relate()
    on_stage("index", time.perf_counter_ns() - began)
    outcome = run_rules(ctx, wanted, thresholds, strict=strict, on_stage=on_stage)
    began = time.perf_counter_ns()
    health_ids = {rule.INFO.id for rule in wanted if rule.INFO.is_health}
    report = report_on(ctx, outcome, health_ids)
    on_stage("summarize", time.perf_counter_ns() - began)
    return report


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
        after: Another one of the same kind.
        select: Rules to run, as for :func:`profkit.analyze`.
        ignore: Rules not to run.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.
        on_progress: As for :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is none of these.
        UsageError: They are of two kinds, or there is no such rule or threshold.
    """
    _COMPARE.check(
        before=before, after=after, thresholds=thresholds, limit_bytes=limit_bytes,
        on_progress=on_progress,
    )  # fmt: skip
    wanted = _chosen("profkit.compare", select, ignore)

    def side(recording: Path | Report) -> Side:
        if isinstance(recording, Report):
            return Side(recording)
        place = place_of(recording)
        saved = None if is_folder(place) else read_report(place, limit_bytes)
        if saved is not None:
            return Side(saved, path=str(recording))
        try:
            ctx = _context([recording], limit_bytes, _no_stage, on_progress)
        except SeveralTracesError:
            report = analyze(recording, select=select, ignore=ignore, thresholds=thresholds,
                             limit_bytes=limit_bytes)  # fmt: skip
            return Side(report, path=str(recording))
        report = _report(ctx, wanted, thresholds or {}, strict=False, on_stage=_no_stage)
        return Side(report, ctx.snapshot, str(recording))

    return differ(side(before), side(after))


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
            ``@train.py:41`` only those in that file or line.
        scale: What the time is multiplied by, by pattern: ``{"nccl*": 0.5}``. A pattern matches a
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
        recording=recording, scale=scale, graph=graph, data_wait=data_wait, thresholds=thresholds,
        limit_bytes=limit_bytes, on_progress=on_progress,
    )  # fmt: skip
    factors = tuple(checked_factors(scale or {}))
    words = names_in(remove, "profkit.what_if: remove")
    if not (words or factors or graph or not data_wait):
        hint = "Give what to remove or to scale, a graph, or no wait for data."
        raise UsageError("No change is given.", hint)
    wanted = [(word, chosen(rules(), [word.partition("@")[0]], ())) for word in words]
    if isinstance(recording, Trace):
        ctx = Context(trace=recording)
    else:
        ctx = _context([recording], limit_bytes, _no_stage, on_progress)
    if not ctx.has_trace:
        raise NotATraceError(f"{recording} is not a trace.", "Predictions need a trace.")
    changes = [*(scaled(ctx, pattern, factor) for pattern, factor in factors)]
    for word, found in wanted:
        results = run_rules(ctx, found, thresholds or {}, on_stage=_no_stage)
        skipped = results.unchecked[0] if len(results.unchecked) == len(found) else None
        changes.append(removed(ctx, word, results.findings, skipped))
    changes += [in_graphs(ctx)] if graph else []
    changes += [] if data_wait else [without_data_waits(ctx)]
    return predict(ctx, changes)


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
        paths: A recording or a report, or several: of repeated runs, or the trace and the memory of
            one run.
        budgets: By name what a figure may be at most, as in ``[tool.profkit.budgets]``:
            ``{"step_ms": 12.5, "syncs": 0, "peak": "2 GiB", "findings": "error"}``, or relative to
            the baseline, ``{"gpu_ms": "+5%"}``.
        baseline: What ``profkit check --update-baseline`` wrote, or a report saved as JSON.
        thresholds: By rule name, thresholds that differ from the default.
        limit_bytes: As for :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is no recording and no report.
        UsageError: A budget is not valid.
    """
    _CHECK.check(budgets=budgets, baseline=baseline, thresholds=thresholds, limit_bytes=limit_bytes)
    wanted = budgets_of(budgets, "profkit.check: budgets")
    kept = read_baseline(os.fspath(baseline)) if baseline is not None else None
    every = [paths] if isinstance(paths, str | os.PathLike | Report) else list(paths)
    require(ITERABLE, every, "profkit.check: paths")

    def report_of(each: Path | Report) -> Report:
        if isinstance(each, Report):
            return each
        place = place_of(each)
        saved = None if is_folder(place) else read_report(place, limit_bytes)
        return saved or analyze(each, thresholds=thresholds, limit_bytes=limit_bytes)

    return checked(list(map(report_of, every)), wanted, kept)


def render(report: Report | Difference | Check, format: str = "text", **options: Any) -> bytes:  # noqa: A002, ANN401  (the word of the command line; each renderer has its own options)
    """Render a report, a comparison or a check.

    Args:
        report: The report, or the result of :func:`profkit.compare` or :func:`profkit.check`.
        format: The renderer's name, such as ``text``, ``json``, ``md``.
        **options: The renderer's options, such as ``width=80``; others are ignored.

    Raises:
        UsageError: There is no such format, or an argument is invalid.
    """
    _RENDER.check(report=report, format=format)
    if isinstance(report, Difference | Check):
        return render_result(report, format, options)
    module = renderer(format)
    return module.render(report, module.Options(**accepted(module, options)))


def _chosen(function: str, select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """The rules that are selected and not ignored.

    Raises:
        UsageError: A word selects no rule, or is no string.
    """
    return chosen(
        rules(), names_in(select, f"{function}: select"), names_in(ignore, f"{function}: ignore")
    )


def _paths(paths: Iterable[Path]) -> list[Path]:
    """Several paths.

    Raises:
        UsageError: It is something else.
    """
    require(ITERABLE, paths, "profkit.analyze: path")
    return list(paths)
