"""What a rule is: a module with a docstring, ``INFO``, ``Thresholds`` and ``detect``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from profkit.engine.context import Context
from profkit.model.finding import Confidence, Cost, EvidenceValue, Finding, Severity
from profkit.model.location import Location


class Needs(Enum):
    """What a rule must have in the recording; without it the rule is Unchecked."""

    OPS = "operators"
    DEVICE = "device"
    """Kernels, copies or fills of a device."""
    COMPUTE_CAPABILITY = "compute-capability"
    """What an NVIDIA device can do."""
    CUDA_OR_ROCM = "cuda-or-rocm"
    """Calls of CUDA's or HIP's runtime: PyTorch's kernels have the same names on both."""
    STEPS = "steps"
    """At least one step."""
    STACKS = "stacks"
    """Lines of the user's code, in the window or lent."""
    MEMORY = "memory"
    """``[memory]`` events."""
    MEMORY_ADDRESSES = "memory-addresses"
    """``[memory]`` events with addresses, so that frees find their allocations."""
    SNAPSHOT = "snapshot"
    """A snapshot of the allocator's memory."""
    HISTORY = "history"
    """A snapshot that has kept what the allocator did."""
    DRIVER_CALLS = "driver-calls"
    """Steps in which a device worked, or a snapshot that has kept what the allocator did."""
    EXCHANGES = "exchanges"
    """Device work, if the program was seen to start exchanges that devices run."""
    COMPILED_RUNS = "compiled-runs"
    """Rows around what ``torch.compile`` compiled, if it compiled anything."""
    LIVE = "live"
    """The running program's memory, watched over enough steps to judge growth."""


@dataclass(frozen=True)
class RuleInfo:
    """A rule's card.

    Attributes:
        id: Family and number, such as ``SYN001``. Never used twice.
        name: The bad pattern in dashes; the module's name in underscores.
        title: A few words for a heading.
        severity: The severity of most of its findings.
        needs: What it must have in the recording.
        since: Version of profkit that brought it.
    """

    id: str
    name: str
    title: str
    severity: Severity
    needs: frozenset[Needs]
    since: str

    def finding(  # noqa: PLR0913  (the fields of a Finding)
        self,
        *,
        severity: Severity,
        confidence: Confidence,
        message: str,
        fix: str,
        locations: tuple[Location, ...] = (),
        n: int = 1,
        cost: Cost | None = None,
        holders: tuple[tuple[str, ...], ...] = (),
        evidence: Mapping[str, EvidenceValue] | None = None,
        claims: tuple[tuple[int, int], ...] = (),
    ) -> Finding:
        """What the rule found, under its id, name and title.

        Args:
            severity: As in :class:`~profkit.model.finding.Finding`, like all that follow.
            confidence: How sure it is.
            message: What was found, in a sentence or two.
            fix: What to write instead.
            locations: Where, the costliest first.
            n: How often.
            cost: What it costs; nothing that is known by default.
            holders: For a live object, who holds it.
            evidence: The figures and event ids that it rests on.
            claims: The stretches of time that the cost is taken from.
        """
        return Finding(
            rule=self.id,
            name=self.name,
            severity=severity,
            confidence=confidence,
            title=self.title,
            message=message,
            fix=fix,
            locations=locations,
            n=n,
            cost=cost or Cost(),
            holders=holders,
            evidence=evidence or {},
            claims=claims,
        )

    @property
    def is_health(self) -> bool:
        """Whether it judges the recording instead of the program."""
        return self.id.startswith("PRF")


class Rule(Protocol):
    """The shape of a rule's module."""

    __doc__: str | None
    __name__: str
    INFO: RuleInfo
    Thresholds: type[Any]

    @staticmethod
    def detect(ctx: Context, thresholds: Any) -> Iterator[Finding]:  # noqa: ANN401  (each rule has its own)
        """Yield what the rule finds."""
        ...
