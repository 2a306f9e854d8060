"""What the headline says of the checks that were skipped."""

from collections import Counter
from typing import Final

from profkit.engine import needs
from profkit.model.report import Report
from profkit.present.labels import inline_title, is_on_cpu
from profkit.units import format_count

_OF_DEVICES: Final = frozenset(
    need.reason
    for need in (
        needs.DEVICE_WORK,
        needs.CUDA,
        needs.COMPUTE_CAPABILITY,
        needs.SNAPSHOT,
        needs.HISTORY,
    )
)
"""What a program on a CPU cannot record."""
_OF_OTHER_KINDS: Final = {
    "snapshot": (needs.MONITORING.reason, needs.TRACE.reason),
    "flight-recorder": (needs.MONITORING.reason, needs.SNAPSHOT.reason, needs.TRACE.reason),
}
"""What recordings of these kinds never have."""
_OF_A_TRACE: Final = (needs.MONITORING.reason, needs.SNAPSHOT.reason)
"""What a trace never has."""
_MIN_CHECKS: Final = 3
"""A reason of fewer checks is mostly that of rules for some programs alone."""


def with_skipped_checks(sentence: str, report: Report) -> str:
    """Return a sentence with the reason for which most of the skipped checks were skipped.

    It is unchanged where the program has nothing that these checks examine: a program on a CPU has
    no kernels, one that runs alone has no ranks, and no trace has the memory of a whole run.
    """
    n_by_reason = Counter(check.reason for check in report.unchecked)
    for reason in _OF_OTHER_KINDS.get(report.source.kind, _OF_A_TRACE):
        del n_by_reason[reason]
    if (report.source.world_size or 1) == 1:
        del n_by_reason[needs.RANKS.reason]
    # The headline says in other words that no work of a device was recorded.
    breakdown = report.summary.breakdown
    if is_on_cpu(report) or (breakdown is not None and not breakdown.on_device):
        for reason in _OF_DEVICES:
            del n_by_reason[reason]

    if not n_by_reason:
        return sentence
    ((reason, n_checks),) = n_by_reason.most_common(1)
    if n_checks < _MIN_CHECKS:
        return sentence
    skipped = f"{format_count(n_checks)} checks skipped: {inline_title(reason)}"
    return f"{sentence.rstrip('.')}; {skipped}."
