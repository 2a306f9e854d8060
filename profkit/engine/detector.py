"""The interface of a rule: a module with a docstring, ``INFO``, ``Thresholds`` and ``detect``."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from profkit.dataclass import dataclass
from profkit.engine.needs import Need
from profkit.model.change import ProgramChange
from profkit.model.finding import Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.growth import Growth
from profkit.model.location import Location


@dataclass(frozen=True)
class RuleInfo:
    """Name of a rule and its needs.

    Attributes:
        id: Family and number, such as ``SYN001``. Never used twice.
        name: The bad pattern in dashes; the module's name in underscores.
        title: A short heading for its findings.
        severity: The severity of most of its findings.
        needs: Data without which it is skipped, in the order in which it is checked.
        since: The version of profkit that introduced it.
        no_example: Why there is no program with and without the problem under ``examples``; empty
            for a rule that has one.
    """

    id: str
    name: str
    title: str
    severity: Severity
    needs: tuple[Need, ...]
    since: str
    no_example: str = ""

    def finding(  # noqa: PLR0913  (the fields of a Finding)
        self,
        *,
        severity: Severity | None = None,
        confidence: Confidence,
        message: str,
        fix: str,
        locations: tuple[Location, ...] = (),
        n: int = 1,
        cost: Cost | None = None,
        holders: tuple[tuple[str, ...], ...] = (),
        evidence: Mapping[str, EvidenceValue] | None = None,
        growth: Growth | None = None,
        spans: tuple[tuple[int, int], ...] = (),
        change: ProgramChange | None = None,
        ranks: tuple[int, ...] = (),
    ) -> Finding:
        """Build a :class:`~profkit.model.finding.Finding` with this rule's id, name and title.

        Args:
            severity: By default the rule's.
        """
        return Finding(
            rule=self.id,
            name=self.name,
            severity=severity or self.severity,
            confidence=confidence,
            title=self.title,
            message=message,
            fix=fix,
            locations=locations,
            n=n,
            cost=cost or Cost(),
            holders=holders,
            evidence=evidence or {},
            growth=growth,
            spans=spans,
            change=change,
            ranks=ranks,
        )

    @property
    def is_health(self) -> bool:
        """Return whether its findings are about the recording and not about the program."""
        return is_health(self.id)


def is_health(rule: str) -> bool:
    """Return whether the rule of an id checks the recording instead of the program."""
    return rule.startswith("PRF")


class Rule(Protocol):
    """The interface of a rule's module.

    A module may also have ``over_ranks(job, rank, finding)``, which adds to a finding on the rank
    of that index what only the :class:`~profkit.engine.job_context.JobContext` shows.
    """

    __doc__: str | None
    __name__: str
    INFO: RuleInfo
    Thresholds: type[Any]

    @staticmethod
    def detect(ctx: Any, thresholds: Any) -> Iterator[Finding]:  # noqa: ANN401  (each rule has its own)
        """Yield the findings in a recording.

        Args:
            ctx: A :class:`~profkit.engine.context.Context`, or of a rule over ranks a
                :class:`~profkit.engine.job_context.JobContext`.
        """
        ...
