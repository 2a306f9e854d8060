"""Load, analyze, render: puts the rooms together and has no logic of its own."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from profkit.comparison.compare import Side
from profkit.comparison.compare import compare as differ
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.registry import chosen, rules
from profkit.engine.runner import OnStage, report_on, run_rules
from profkit.engine.thresholds import Overrides
from profkit.errors import UsageError
from profkit.model.difference import Difference
from profkit.model.live_memory import LiveMemory
from profkit.model.report import Report
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import Trace
from profkit.present.renderer import LoadedRecording, accepted, render_difference, renderer
from profkit.readers.open import load
from profkit.readers.progress import OnProgress
from profkit.readers.report import read_report
from profkit.readers.stream import place_of

Path = str | os.PathLike[str]

_KINDS: Final[dict[type, str]] = {Trace: "trace", MemorySnapshot: "snapshot", LiveMemory: "live"}
"""What each kind of file is in a :class:`~profkit.engine.context.Context`."""


def analyze(
    path: Path | Iterable[Path],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    strict: bool = False,
    on_stage: OnStage | None = None,
    limit_bytes: int | None = None,
) -> Report:
    """Read a recording and report what makes the program slow and its memory grow.

    Needs neither a GPU nor torch.

    Args:
        path: A trace, a snapshot of the allocator's memory, or what ``profkit run`` wrote of a
            program's memory, as for :func:`profkit.load`; several of them (one of each kind) if
            they are of one program.
        select: Rules to run: ids, names, or families such as ``SYN``. Empty means all.
        ignore: Rules not to run, likewise.
        thresholds: By a rule's name, the thresholds to change.
        strict: Raise when a rule crashes, instead of reporting it as unchecked.
        on_stage: Is told each stage's name and how long it took, in nanoseconds.
        limit_bytes: As in :func:`profkit.load`.

    Raises:
        LoadError: The file cannot be read, or is no trace.
        UsageError: There is no such rule or threshold, or the files do not belong together.
        PluginError: A third party's rule does not keep its contract.
    """
    return study(
        path,
        select=select,
        ignore=ignore,
        thresholds=thresholds,
        strict=strict,
        on_stage=on_stage,
        limit_bytes=limit_bytes,
    ).report


@dataclass(frozen=True)
class Study:
    """A report, and what it was made from.

    Attributes:
        report: The report.
        recording: What ``render(report, format, recording=…)`` takes for the formats that draw it.
    """

    report: Report
    recording: LoadedRecording


def study(
    path: Path | Iterable[Path],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    strict: bool = False,
    on_stage: OnStage | None = None,
    on_progress: OnProgress | None = None,
    limit_bytes: int | None = None,
) -> Study:
    """As :func:`analyze`, and keep what was read.

    Args:
        path: As there, and so are all others.
        select: Rules to run.
        ignore: Rules not to run.
        thresholds: Thresholds to change.
        strict: Raise when a rule crashes.
        on_stage: Is told how long each stage took.
        on_progress: Is told how far each file has been read, as in :func:`profkit.load`.
        limit_bytes: How large a file may be unpacked.

    Raises:
        LoadError: The file cannot be read, or is no trace.
        UsageError: There is no such rule or threshold, or the files do not belong together.
        PluginError: A third party's rule does not keep its contract.
    """
    wanted = chosen(rules(), select, ignore)
    on_stage = on_stage or _nobody
    paths = _paths(path)
    ctx = _context(paths, limit_bytes, on_stage, on_progress)
    report = _report(ctx, wanted, thresholds or {}, strict=strict, on_stage=on_stage)
    return Study(report, LoadedRecording(ctx, tuple(os.fspath(each) for each in paths)))


def _paths(path: Path | Iterable[Path]) -> list[Path]:
    return [path] if isinstance(path, str | os.PathLike) else list(path)


def _context(
    paths: list[Path], limit_bytes: int | None, on_stage: OnStage, on_progress: OnProgress | None
) -> Context:
    """What files of one program hold together.

    Raises:
        UsageError: There are several of one kind, or none at all.
    """
    found: dict[str, Any] = {}
    for path in paths:
        loaded = load(path, limit_bytes=limit_bytes, on_progress=on_progress)
        kind = _KINDS[type(loaded)]
        if kind in found:
            message = f"{found[kind][0]} and {path} are both a {kind}."
            raise UsageError(message, "Analyze them one by one; one report is of one program.")
        found[kind] = (path, loaded)
        if not isinstance(loaded, LiveMemory):
            for stage, ns in loaded.notes.stages_ns.items():
                on_stage(stage, ns)
    if not found:
        raise UsageError("There is nothing to analyze.", "Give a trace or a snapshot.")
    return Context(**{kind: loaded for kind, (_, loaded) in found.items()})


def _nobody(stage: str, ns: int) -> None:
    """Nobody wants to know how long a stage took."""


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
    limit_bytes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Difference:
    """Say what appeared, went, grew and shrank from one recording to another.

    Two memory snapshots are compared by stack, in bytes; traces and reports by step time, findings
    and kernels.

    Args:
        before: A snapshot, a trace, or a report: as it is, or saved as JSON.
        after: Another one of the same kind.
        select: Rules to run, as in :func:`profkit.analyze`.
        ignore: Rules not to run, likewise.
        limit_bytes: As in :func:`profkit.load`.
        on_progress: As in :func:`profkit.load`.

    Raises:
        LoadError: A file cannot be read, or is none of these.
        UsageError: They are of two kinds, or there is no such rule.
    """
    wanted = chosen(rules(), select, ignore)
    return differ(
        _side(before, wanted, limit_bytes, on_progress),
        _side(after, wanted, limit_bytes, on_progress),
    )


def _side(
    what: Path | Report,
    wanted: tuple[Rule, ...],
    limit_bytes: int | None,
    on_progress: OnProgress | None,
) -> Side:
    if isinstance(what, Report):
        return Side(what)
    place = place_of(what)
    is_folder = isinstance(place, FilePath) and place.is_dir()
    saved = None if is_folder else read_report(place, limit_bytes)
    if saved is not None:
        return Side(saved, path=str(what))
    ctx = _context([what], limit_bytes, _nobody, on_progress)
    return Side(_report(ctx, wanted, {}, strict=False, on_stage=_nobody), ctx.snapshot, str(what))


def render(report: Report | Difference, format: str = "text", **options: Any) -> bytes:  # noqa: A002, ANN401  (the word of the command line; each renderer has its own options)
    """A report, or what changed between two recordings, in some format.

    Args:
        report: The report, or what :func:`profkit.compare` says.
        format: The renderer's name, such as ``text``, ``json``, ``md``.
        **options: What the renderer can be told, such as ``width=80``; those that it does not
            have are passed over.

    Raises:
        UsageError: There is no such format.
    """
    if isinstance(report, Difference):
        return render_difference(report, format, options)
    module = renderer(format)
    return module.render(report, module.Options(**accepted(module, options)))
