"""What the headline says of the checks that were skipped."""

from collections import Counter
from typing import Final

from profkit.engine import needs
from profkit.model.report import Report
from profkit.present.labels import is_on_cpu
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
_MIN_CHECKS: Final = 3
"""A reason of fewer checks is mostly that of rules for some programs alone."""


def describe_skipped_checks(report: Report) -> str:
    """Return why most of the skipped checks were skipped, a sentence with a space before it.

    Empty where the program has nothing that these checks examine: a program on a CPU has no
    kernels, and one that runs alone has no ranks.
    """
    n_by_reason = Counter(check.reason for check in report.unchecked)
    if (report.source.world_size or 1) == 1:
        del n_by_reason[needs.RANKS.reason]
    if is_on_cpu(report):
        for reason in _OF_DEVICES:
            del n_by_reason[reason]

    if not n_by_reason:
        return ""
    ((reason, n_checks),) = n_by_reason.most_common(1)
    if n_checks < _MIN_CHECKS:
        return ""
    return f" {reason.rstrip('.')} ({format_count(n_checks)} checks skipped)."
