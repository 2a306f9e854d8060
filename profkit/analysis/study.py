"""Analyzes one recording."""

import os
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from profkit.analysis.cached_report import Results, find_results, results_key, rule_keys
from profkit.analysis.options import DEFAULT_OPTIONS, AnalysisOptions
from profkit.arguments import ITERABLE, PATH, require
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.job_context import RankReport, RuleChoice
from profkit.engine.registry import choose_rules, rules
from profkit.engine.relation_cache import RelationCache
from profkit.engine.runner import OnStage, run_rules
from profkit.errors import UsageError
from profkit.index.compute.peaks import given_peak
from profkit.model.flight_record import FlightRecord
from profkit.model.live_memory import LiveMemory
from profkit.model.report import Report
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace
from profkit.present.renderer import LoadedRecording
from profkit.readers.cache import STAGE, users_cache
from profkit.readers.open import load
from profkit.readers.progress import OnProgress, Stages
from profkit.readers.stored_value import entry_of
from profkit.readers.stream import place_of

Path = str | os.PathLike[str]

ONE_BY_ONE: Final = "Analyze them one by one: each report covers one program or distributed job."
_KINDS: Final[dict[type, str]] = {Trace: "trace", MemorySnapshot: "snapshot", LiveMemory: "live"}
"""The field of each kind of recording in a :class:`~profkit.engine.context.Context`."""
_PLURALS: Final = {"trace": "traces", "snapshot": "snapshots", "live": "memory records"}


@dataclass(frozen=True)
class AnalysisResult:
    """A report and the recording that it was made from.

    Attributes:
        recording: For ``render(report, format, recording=…)``, with formats that display it.
        choice: The chosen rules, some of which may not apply.
    """

    report: Report
    recording: LoadedRecording
    choice: RuleChoice

    def build_rank_report(self) -> RankReport | None:
        """Return the report as a part of its job; None if its rank is not known."""
        from profkit.engine.job import build_rank_report

        return build_rank_report(self.recording.context, self.report, self.choice)


def study(
    path: Path | Iterable[Path],
    options: AnalysisOptions = DEFAULT_OPTIONS,
    *,
    on_stage: OnStage | None = None,
    on_progress: OnProgress | None = None,
) -> AnalysisResult:
    """Analyze one recording as :func:`profkit.analyze` does, and keep the recording.

    Args:
        path: A file, or several of one process.
        options: Rules, thresholds, peaks and limits.
        on_stage: As for :func:`profkit.analyze`.
        on_progress: As for :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is not a recording.
        UsageError: There is no such rule, threshold or peak.
    """
    rules_to_run = select_rules(options)
    on_stage = on_stage or no_stage
    paths = paths_in(path)
    choice = RuleChoice(
        tuple(rule.INFO.id for rule in rules_to_run), options.thresholds, options.strict
    )

    def read() -> Context:
        return load_context(paths, options, on_stage, on_progress)

    cache, stages = users_cache(), Stages()
    with stages.stage(STAGE):
        key = results_key(cache, paths, options)
        results = (None if key is None else find_results(cache, key)) or Results()
        report = results.report(rule_keys(rules_to_run, options.thresholds))

    # The cached report is complete: the recording itself is read only if a format displays it.
    if report is not None:
        on_stage(STAGE, stages.ns[STAGE])
        return AnalysisResult(report, LoadedRecording(lru_cache(read), tuple(paths)), choice)

    ctx = read()
    results = results if results.n_rows == len(ctx.events) else Results()
    report = build_report(ctx, rules_to_run, options, on_stage, results)

    if report.source.kind == "flight-recorder":
        from profkit.engine.job import build_rank_report, merge_reports

        dump = build_rank_report(ctx, report, choice)
        report = report if dump is None else merge_reports([dump])
    elif key is not None:
        cache.store(key, lambda: entry_of(results.bounded()), stages)
        for stage, ns in stages.ns.items():
            on_stage(stage, ns)
    return AnalysisResult(report, LoadedRecording(lambda: ctx, tuple(paths)), choice)


def load_context(
    paths: Iterable[Path],
    options: AnalysisOptions,
    on_stage: OnStage,
    on_progress: OnProgress | None,
) -> Context:
    """Load files of one program.

    Raises:
        UsageError: There are two of one kind, or none, or a peak is not valid.
    """
    paths = tuple(paths)
    kept = RelationCache.of(users_cache(), map(place_of, paths))
    by_kind: dict[str, Any] = {}
    flights: list[FlightRecord] = []

    for path in paths:
        recording = load(path, limit_bytes=options.limit_bytes, on_progress=on_progress)
        if isinstance(recording, FlightRecord):
            flights.append(recording)
            continue
        kind = _KINDS[type(recording)]

        if kind in by_kind:
            message = f"{by_kind[kind][0]} and {path} are both {_PLURALS[kind]}."
            raise UsageError(message, ONE_BY_ONE)
        by_kind[kind] = (path, recording)

        if isinstance(recording, Trace | MemorySnapshot):
            for stage, ns in recording.notes.stages_ns.items():
                on_stage(stage, ns)

    if not (by_kind or flights):
        raise UsageError("There is nothing to analyze.", "Give a trace or a snapshot.")

    # Only a trace has relations. A file that changes while it is read has wrong ones.
    if "trace" not in by_kind or (kept is not None and not kept.is_current):
        kept = None

    recordings = {kind: recording for kind, (_, recording) in by_kind.items()}
    return Context(
        flights=tuple(flights),
        kept=kept,
        peaks={device: given_peak(figures) for device, figures in options.peaks.items()},
        tokens_per_step=options.tokens_per_step,
        parameters=options.parameters,
        **recordings,
    )


def no_stage(stage: str, ns: int) -> None:
    """Do nothing after a stage."""


def build_report(
    ctx: Context,
    rules_to_run: tuple[Rule, ...],
    options: AnalysisOptions,
    on_stage: OnStage,
    results: Results | None = None,
) -> Report:
    """Run some rules on a recording, and build its report.

    Args:
        results: Results of earlier runs on the recording. Missing ones are computed and added.
    """
    results = results or Results()
    keys = rule_keys(rules_to_run, options.thresholds)

    # If all results are cached, no relation is needed.
    if results.figures is None or not results.of_rules.keys() >= set(keys):
        began = time.perf_counter_ns()
        ctx.relate()
        on_stage("index", time.perf_counter_ns() - began)

    rule_results = [
        results.of_rules.get(key)
        or run_rules(ctx, [rule], options.thresholds, strict=options.strict, on_stage=on_stage)
        for key, rule in zip(keys, rules_to_run, strict=True)
    ]

    began = time.perf_counter_ns()
    report = results.complete(ctx, keys, rule_results)
    on_stage("summarize", time.perf_counter_ns() - began)
    return report


def select_rules(options: AnalysisOptions) -> tuple[Rule, ...]:
    """Return the rules that are selected and not ignored.

    Raises:
        UsageError: A word selects no rule.
    """
    return choose_rules(rules(), options.select, options.ignore)


def paths_in(paths: Path | Iterable[Path]) -> list[str]:
    """Return one path or several as a list.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(paths, str | os.PathLike):
        return [os.fspath(paths)]
    require(ITERABLE, paths, "profkit.analyze: path")
    listed = list(paths)
    for path in listed:
        require(PATH, path, "profkit.analyze: path")
    return [os.fspath(path) for path in listed]
