"""Reports in the cache: the figures of a recording, and the results of each rule.

With other rules, or other thresholds of some, only those run whose results are not known yet.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.figures.summary import describe_source, summarize
from profkit.engine.runner import Overrides, RuleResults, recoverable_ns, report_on
from profkit.model.change import ProgramChange
from profkit.model.report import Report, Source, Summary
from profkit.readers.cache import Cache, Key
from profkit.readers.stored_value import NotValidError, value_of
from profkit.readers.stream import place_of

_KIND: Final = b"report"
_OURS: Final = "profkit."
_MAX_RULES: Final = 1000
"""Results that are kept, of rules with some thresholds each."""
_MAX_SETS: Final = 50


@dataclass
class Results:
    """What reports on a recording consist of.

    Attributes:
        figures: The recording and its figures, without what findings save together; None if they
            are not known.
        n_rows: Rows of the recording, which changes name.
        of_rules: The results of rules, by :func:`rule_keys`.
        recoverable_ns: Time that the findings of some rules save together, by their keys.
    """

    figures: tuple[Source, Summary] | None = None
    n_rows: int = 0
    of_rules: dict[str, RuleResults] = field(default_factory=dict)
    recoverable_ns: dict[str, int] = field(default_factory=dict)

    def report(self, keys: Sequence[str]) -> Report | None:
        """The report with some rules, by their keys; None if something of it is not known."""
        every = [self.of_rules.get(key) for key in keys]
        known = [each for each in every if each is not None]
        saved_ns = self.recoverable_ns.get(set_key(keys))
        if self.figures is None or saved_ns is None or len(known) < len(every):
            return None
        return report_on(*self.figures, RuleResults.joined(known), saved_ns)

    def complete(self, ctx: Context, keys: Sequence[str], found: Sequence[RuleResults]) -> Report:
        """The report with some rules, whose results were found; what is new is added.

        The results of a rule that crashed are not: after a retry it may not.
        """
        if self.figures is None:
            self.figures = describe_source(ctx), summarize(ctx)
            self.n_rows = len(ctx.events)
        together = RuleResults.joined(found)
        saved_ns = self.recoverable_ns.get(set_key(keys))
        if saved_ns is None:
            saved_ns = recoverable_ns(ctx, together.on_program)
        if not together.has_crash:
            self.recoverable_ns[set_key(keys)] = saved_ns
        self.of_rules |= {
            key: each for key, each in zip(keys, found, strict=True) if not each.has_crash
        }
        return report_on(*self.figures, together, saved_ns)

    def bounded(self) -> "Results":
        """The results to store: the latest ones."""
        return replace(
            self,
            of_rules=dict(list(self.of_rules.items())[-_MAX_RULES:]),
            recoverable_ns=dict(list(self.recoverable_ns.items())[-_MAX_SETS:]),
        )


def rule_keys(rules: Iterable[Rule], thresholds: Overrides) -> list[str]:
    """The keys of rules' results: what these depend on beside the recording."""
    return [repr((rule.INFO.id, thresholds.get(rule.INFO.name), _state_of(rule))) for rule in rules]


def set_key(rules: Iterable[str]) -> str:
    """The key of several rules together."""
    return "\n".join(rules)


def _state_of(rule: Rule) -> tuple[object, ...]:
    """What changes with the rule of another package."""
    if rule.__name__.startswith(_OURS):
        return ()
    file = getattr(rule, "__file__", None)
    status = os.stat(file) if file and Path(file).is_file() else None  # noqa: PTH116
    return rule.__name__, file, status and (status.st_size, status.st_mtime_ns)


def results_key(cache: Cache, paths: Sequence[str], options: Sequence[object]) -> Key | None:
    """The key of the results on some files; None if they are not to be cached.

    Args:
        options: What all of them depend on, as plain data.
    """
    try:
        given = msgspec.msgpack.encode((paths, options))
    except (
        TypeError,
        ValueError,
        OverflowError,
    ):  # options that are no plain data; reading says so
        return None
    return cache.key([place_of(path) for path in paths], _KIND, given)


def find_results(cache: Cache, key: Key) -> Results | None:
    """The cached results; an entry that has no valid ones is removed."""
    entry = cache.find(key)
    if entry is None:
        return None
    try:
        found = value_of(Results, entry)
        if all(_is_within(change, found.n_rows) for change in _changes(found)):
            return found
    except NotValidError:
        pass
    cache.remove(key)
    return None


def _changes(results: Results) -> Iterator[ProgramChange]:
    for each in results.of_rules.values():
        yield from (finding.change for finding in each.findings if finding.change is not None)


def _is_within(change: ProgramChange, n_rows: int) -> bool:
    """Whether the rows of a change are those of a recording."""
    every: list[Any] = [change.calls, change.captured, *(rows for rows, _ in change.scaled)]
    return all(
        isinstance(rows, np.ndarray)
        and rows.dtype == np.int64
        and (not len(rows) or 0 <= rows.min() <= rows.max() < n_rows)
        for rows in every
    )
