"""Analyzes one recording."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from profkit.analysis.cached_report import Results, find_results, results_key, rule_keys
from profkit.arguments import (
    CALLABLE,
    FLAG,
    ITERABLE,
    MAPPING,
    PATH,
    Arguments,
    names_in,
    optional,
    require,
    whole,
)
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.job_context import RankReport, RuleChoice
from profkit.engine.registry import choose_rules, rules
from profkit.engine.relation_cache import RelationCache
from profkit.engine.runner import OnStage, Overrides, run_rules
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
Peaks = Mapping[str, Mapping[str, float]]

COMMON: Final = {
    "thresholds": optional(MAPPING),
    "limit_bytes": optional(whole()),
    "on_progress": optional(CALLABLE),
}
"""Arguments of several public functions."""
ANALYZE: Final = Arguments(
    "profkit.analyze", strict=FLAG, on_stage=optional(CALLABLE), peaks=optional(MAPPING),
    tokens_per_step=optional(whole(1)), parameters=optional(whole(1)), workers=optional(whole(1)),
    **COMMON,
)  # fmt: skip
_KINDS: Final[dict[type, str]] = {Trace: "trace", MemorySnapshot: "snapshot", LiveMemory: "live"}
"""The field of each kind of recording in a :class:`~profkit.engine.context.Context`."""


@dataclass(frozen=True)
class Study:
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
    """Analyze one recording as :func:`profkit.analyze` does, and keep the recording.

    Arguments and errors are as there.

    Args:
        on_progress: As for :func:`profkit.load`.
    """
    ANALYZE.check(
        strict=strict, on_stage=on_stage, thresholds=thresholds, limit_bytes=limit_bytes,
        on_progress=on_progress, peaks=peaks, tokens_per_step=tokens_per_step,
        parameters=parameters,
    )  # fmt: skip
    rules_to_run = chosen_rules("profkit.analyze", select, ignore)

    on_stage = on_stage or no_stage
    paths = paths_in(path)
    choice = RuleChoice(tuple(rule.INFO.id for rule in rules_to_run), thresholds or {}, strict)

    def read() -> Context:
        return replace(
            load_context(paths, limit_bytes, on_stage, on_progress),
            peaks={device: given_peak(figures) for device, figures in (peaks or {}).items()},
            tokens_per_step=tokens_per_step,
            parameters=parameters,
        )

    cache, stages = users_cache(), Stages()
    options = (limit_bytes, plain(peaks or {}), tokens_per_step, parameters)
    with stages.stage(STAGE):
        key = results_key(cache, paths, options)
        results = (None if key is None else find_results(cache, key)) or Results()
        report = results.report(rule_keys(rules_to_run, choice.thresholds))

    # The cached report is complete: the recording itself is read only if a format displays it.
    if report is not None:
        on_stage(STAGE, stages.ns[STAGE])
        return Study(report, LoadedRecording(lru_cache(read), tuple(paths)), choice)

    ctx = read()
    results = results if results.n_rows == len(ctx.events) else Results()
    report = report_of(
        ctx, rules_to_run, choice.thresholds, strict=strict, on_stage=on_stage, results=results
    )

    if report.source.kind == "flight-recorder":
        from profkit.engine.job import build_rank_report, merge_reports

        dump = build_rank_report(ctx, report, choice)
        report = report if dump is None else merge_reports([dump])
    elif key is not None:
        cache.store(key, lambda: entry_of(results.bounded()), stages)
        for stage, ns in stages.ns.items():
            on_stage(stage, ns)
    return Study(report, LoadedRecording(lambda: ctx, tuple(paths)), choice)


def load_context(
    paths: Iterable[Path],
    limit_bytes: int | None,
    on_stage: OnStage,
    on_progress: OnProgress | None,
) -> Context:
    """Load files of one program.

    Raises:
        UsageError: There are two of one kind, or none.
    """
    paths = tuple(paths)
    kept = RelationCache.of(users_cache(), map(place_of, paths))
    by_kind: dict[str, Any] = {}
    flights: list[FlightRecord] = []

    for path in paths:
        recording = load(path, limit_bytes=limit_bytes, on_progress=on_progress)
        if isinstance(recording, FlightRecord):
            flights.append(recording)
            continue
        kind = _KINDS[type(recording)]

        if kind in by_kind:
            message = f"{by_kind[kind][0]} and {path} are both a {kind}."
            hint = "Analyze them one by one; a report is of one program, or of the ranks of a job."
            raise UsageError(message, hint)
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
    return Context(flights=tuple(flights), kept=kept, **recordings)


def no_stage(stage: str, ns: int) -> None:
    """Do nothing after a stage."""


def report_of(
    ctx: Context,
    rules_to_run: tuple[Rule, ...],
    thresholds: Overrides,
    *,
    strict: bool,
    on_stage: OnStage,
    results: Results | None = None,
) -> Report:
    """Run some rules on a recording.

    Args:
        results: Results of earlier runs on the recording. Missing ones are computed and added.
    """
    results = results or Results()
    keys = rule_keys(rules_to_run, thresholds)

    # If all results are cached, no relation is needed.
    if results.figures is None or not results.of_rules.keys() >= set(keys):
        began = time.perf_counter_ns()
        ctx.relate()
        on_stage("index", time.perf_counter_ns() - began)

    rule_results = [
        results.of_rules.get(key)
        or run_rules(ctx, [rule], thresholds, strict=strict, on_stage=on_stage)
        for key, rule in zip(keys, rules_to_run, strict=True)
    ]

    began = time.perf_counter_ns()
    report = results.complete(ctx, keys, rule_results)
    on_stage("summarize", time.perf_counter_ns() - began)
    return report


def chosen_rules(function: str, select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules that are selected and not ignored.

    Raises:
        UsageError: A word selects no rule, or is not a string.
    """
    return choose_rules(
        rules(), names_in(select, f"{function}: select"), names_in(ignore, f"{function}: ignore")
    )


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


def plain(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return settings by name as dictionaries, which can be sent to another process."""
    if values is None:
        return None
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }
