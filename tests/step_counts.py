"""How many steps a report is of, those included that other tests have disturbed.

Tests run side by side, so that to the program of one the others are other programs: now and then
they take its core in one recorded step and not in the next, and the report leaves that step out.
"""

from collections.abc import Mapping
from typing import Any

from profkit.model.report import Summary


def count_steps(summary: Summary | Mapping[str, Any]) -> int:
    """Return the number of whole steps that were recorded.

    Args:
        summary: Of a report, or of a report as JSON.
    """
    if isinstance(summary, Summary):
        return len(summary.steps) + summary.n_disturbed_steps
    return len(summary["steps"]) + int(summary["n_disturbed_steps"])
