"""The syncs and the copies of a report."""

from profkit.dataclass import dataclass
from profkit.model.location import Location


@dataclass(frozen=True)
class SyncSummary:
    """All calls of one synchronizing function.

    Attributes:
        call: Such as ``cudaStreamSynchronize``.
        n_calls: Number of calls, without driver calls made by a synchronizing runtime call.
        total_ns: Sum of their durations on the host.
        per_step_ns: The part of ``total_ns`` that begins in the steps on the host, divided by their
            number; None without steps.
    """

    call: str
    n_calls: int
    total_ns: int
    per_step_ns: int | None = None


@dataclass(frozen=True)
class SyncSiteSummary:
    """A source line that synchronized with a device, as detected while the program ran.

    Attributes:
        operation: The synchronizing operation.
        n_calls: Number of synchronizations.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None.
        location: The source line, or None in a thread without user code.
    """

    operation: str
    n_calls: int
    allowed_reason: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class SyncLine:
    """The calls of one source line that :attr:`StepSummary.n_syncs` counts.

    Attributes:
        location: The line, or without one the operator or call.
        n_calls: Number of calls in all steps.
        n_in_step: Number of calls in the step with most calls.
    """

    location: Location
    n_calls: int
    n_in_step: int


@dataclass(frozen=True)
class CopySummary:
    """All copies of one kind.

    Attributes:
        kind: Such as ``Memcpy HtoD (Pageable -> Device)``.
        n_calls: Number of copies.
        total_ns: Sum of their durations on the device.
        bytes: Bytes copied, or None where they were not recorded.
        per_step_ns: The part of ``total_ns`` that begins in the time of the steps, divided by their
            number; None without steps.
    """

    kind: str
    n_calls: int
    total_ns: int
    bytes: int | None
    per_step_ns: int | None = None
