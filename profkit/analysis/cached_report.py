"""Reports in the cache: the figures of a recording, and the results of each rule.

With other rules or thresholds, only the rules run that have no results yet.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from profkit.analysis.options import AnalysisOptions
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.figures.summary import describe_source, summarize
from profkit.engine.runner import Overrides, RuleResults, recoverable_ns, report_on
from profkit.model.change import ProgramChange
from profkit.model.report import Report, Source, Summary
from profkit.readers.cache import Cache, Key
from profkit.readers.stored_value import find_valid, value_of
from profkit.readers.stream import place_of

_KIND: Final = b"report"
_OURS: Final = "profkit."
_MAX_RULES: Final = 1000
"""Results that are kept, of rules with some thresholds each."""
_MAX_SETS: Final = 50


@dataclass
class Results:
    """Figures and rule results of a recording, of which its reports consist.

    Attributes:
        figures: The recording and its figures, without the time that findings save
            together; None if they are not known.
        n_rows: Rows of the recording, which changes name.
        of_rules: The results of rules, by :func:`rule_keys`.
        recoverable_ns: Time that the findings of some rules save together, by their keys.
    """

    figures: tuple[Source, Summary] | None = None
    n_rows: int = 0
    of_rules: dict[str, RuleResults] = field(default_factory=dict)
    recoverable_ns: dict[str, int] = field(default_factory=dict)

    def report(self, keys: Sequence[str]) -> Report | None:
        """Return the report with some rules, by their keys; None if a part of it is not known."""
        results = [self.of_rules.get(key) for key in keys]
        complete = [result for result in results if result is not None]
        saved_ns = self.recoverable_ns.get(set_key(keys))
        if self.figures is None or saved_ns is None or len(complete) < len(results):
            return None
        return report_on(*self.figures, RuleResults.joined(complete), saved_ns)

    def complete(
        self, ctx: Context, keys: Sequence[str], rule_results: Sequence[RuleResults]
    ) -> Report:
        """Return the report with the results of some rules, and keep them for other reports.

        Results of a rule that crashed are not kept: after a retry it may not crash.
        """
        if self.figures is None:
            self.figures = describe_source(ctx), summarize(ctx)
            self.n_rows = len(ctx.events)

        together = RuleResults.joined(rule_results)
        saved_ns = self.recoverable_ns.get(set_key(keys))
        if saved_ns is None:
            saved_ns = recoverable_ns(ctx, together.on_program)

        if not together.has_crash:
            self.recoverable_ns[set_key(keys)] = saved_ns
        self.of_rules |= {
            key: result
            for key, result in zip(keys, rule_results, strict=True)
            if not result.has_crash
        }
        return report_on(*self.figures, together, saved_ns)

    def bounded(self) -> "Results":
        """Return the results to store: the latest ones."""
        return replace(
            self,
            of_rules=dict(list(self.of_rules.items())[-_MAX_RULES:]),
            recoverable_ns=dict(list(self.recoverable_ns.items())[-_MAX_SETS:]),
        )


def rule_keys(rules: Iterable[Rule], thresholds: Overrides) -> list[str]:
    """Return the keys of rules' results, with all that they depend on besides the recording."""
    return [repr((rule.INFO.id, thresholds.get(rule.INFO.name), _state_of(rule))) for rule in rules]


def set_key(rules: Iterable[str]) -> str:
    """Return the key of several rules together."""
    return "\n".join(rules)


def _state_of(rule: Rule) -> tuple[object, ...]:
    """Return the state on which another package's rule depends: its file, size and time."""
    if rule.__name__.startswith(_OURS):
        return ()
    file = getattr(rule, "__file__", None)
    status = os.stat(file) if file and Path(file).is_file() else None  # noqa: PTH116
    return rule.__name__, file, status and (status.st_size, status.st_mtime_ns)


def results_key(cache: Cache, paths: Sequence[str], options: AnalysisOptions) -> Key | None:
    """Return the key of the results on some files; None if they are not to be cached."""
    # Rules and thresholds are not part of it: the results of each rule have a key of their own.
    figures_options = (
        options.limit_bytes,
        options.peaks,
        options.tokens_per_step,
        options.parameters,
    )
    try:
        given = msgspec.msgpack.encode((paths, figures_options))
    except (TypeError, ValueError, OverflowError):
        # Options that are not plain data: reading the recording reports them.
        return None
    return cache.key([place_of(path) for path in paths], _KIND, given)


def find_results(cache: Cache, key: Key) -> Results | None:
    """Find the cached results; an entry that has no valid ones is removed."""
    return find_valid(cache, key, lambda entry: value_of(Results, entry, _fits_recording))


def _fits_recording(results: Results) -> bool:
    """Return whether the rows of all changes are rows of the recording."""
    # The cache is input like any other: rows beyond the recording would break a replay.
    changes = (
        finding.change
        for result in results.of_rules.values()
        for finding in result.findings
        if finding.change is not None
    )
    return all(_is_within(change, results.n_rows) for change in changes)


def _is_within(change: ProgramChange, n_rows: int) -> bool:
    """Return whether the rows of a change are rows of a recording."""
    row_sets: list[Any] = [change.calls, change.captured, *(rows for rows, _ in change.scaled)]
    return all(
        isinstance(rows, np.ndarray)
        and rows.dtype == np.int64
        and (not len(rows) or 0 <= rows.min() <= rows.max() < n_rows)
        for rows in row_sets
    )
