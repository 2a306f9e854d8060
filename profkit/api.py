"""Load, analyze, render: puts the rooms together and has no logic of its own."""

import os
import time
from collections.abc import Iterable
from typing import Any

from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.registry import chosen, rules
from profkit.engine.renderer import accepted, renderer
from profkit.engine.runner import Told, report_on, run_rules
from profkit.engine.thresholds import Overrides
from profkit.load.open import load
from profkit.model.report import Report


def analyze(
    path: str | os.PathLike[str],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    thresholds: Overrides | None = None,
    strict: bool = False,
    told: Told | None = None,
    limit_bytes: int | None = None,
) -> Report:
    """Read a trace and report what makes the program slow and its memory grow.

    Needs neither a GPU nor torch.

    Args:
        path: A Kineto trace or an autograd profiler's array, gzipped or not.
        select: Rules to run: ids, names, or families such as ``SYN``. Empty means all.
        ignore: Rules not to run, likewise.
        thresholds: By a rule's name, the thresholds to change.
        strict: Raise when a rule crashes, instead of reporting it as unchecked.
        told: Is told each stage's name and how long it took, in nanoseconds.
        limit_bytes: As in :func:`profkit.load`.

    Raises:
        LoadError: The file cannot be read, or is no trace.
        UsageError: There is no such rule or threshold.
        PluginError: A third party's rule does not keep its contract.
    """
    wanted = chosen(rules(), select, ignore)
    told = told or _nobody
    trace = load(path, limit_bytes=limit_bytes)
    for stage, ns in trace.notes.stages_ns.items():
        told(stage, ns)
    return _report(Context(trace), wanted, thresholds or {}, strict=strict, told=told)


def _nobody(stage: str, ns: int) -> None:
    """Nobody wants to know how long a stage took."""


def _report(
    ctx: Context, wanted: tuple[Rule, ...], thresholds: Overrides, *, strict: bool, told: Told
) -> Report:
    began = time.perf_counter_ns()
    ctx.relate()
    told("index", time.perf_counter_ns() - began)
    outcome = run_rules(ctx, wanted, thresholds, strict=strict, told=told)
    began = time.perf_counter_ns()
    health_ids = {rule.INFO.id for rule in wanted if rule.INFO.is_health}
    report = report_on(ctx, outcome, health_ids)
    told("summarize", time.perf_counter_ns() - began)
    return report


def render(report: Report, format: str = "text", **options: Any) -> bytes:  # noqa: A002, ANN401  (the word of the command line; each renderer has its own options)
    """A report in some format.

    Args:
        report: The report.
        format: The renderer's name, such as ``text``, ``json``, ``md``.
        **options: What the renderer can be told, such as ``width=80``; those that it does not
            have are passed over.

    Raises:
        UsageError: There is no such format.
    """
    module = renderer(format)
    return module.render(report, module.Options(**accepted(module, options)))
