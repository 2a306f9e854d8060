"""Reports, memory records and capture metadata in layouts that earlier versions wrote.

Each function turns decoded JSON of an older layout into that of today, in place: names alone have
changed, never a value's meaning.
"""

from collections.abc import Mapping
from typing import Any, Final

_RENAMED_IN_REPORT: Final = {
    "stretch_share": "overhead_ratio",
    "steps_are": "step_definition",
    "claimed_ns": "recoverable_ns",
    "is_earlier": "is_before_recording",
    "largest_hole_bytes": "largest_usable_block_bytes",
    "pinned_bytes": "unreleasable_bytes",
    "left_bytes": "net_active_bytes",
    "most_waiting_bytes": "peak_pending_free_bytes",
    "pins": "fragmentation_sites",
    "n_growths": "n_leaks",
    "not_seen": "not_measured",
    "watch_ns": "monitoring_ns",
    "watch_share": "monitoring_share",
    "n_watched_steps": "n_monitored_steps",
    "n_judged_steps": "n_evaluated_steps",
    "waits": "sync_sites",
    "how": "remedy",
}
_RENAMED_IN_SYNC_SITES: Final = {
    "what": "operation",
    "where": "frame",
    "allowed": "allowed_reason",
}
_RENAMED_IN_MEMORY: Final = {
    "steps_are": "step_definition",
    "watched_ns": "monitored_ns",
    "looks": "samples",
    "growths": "leaks",
    "n_judged_steps": "n_evaluated_steps",
    "not_seen": "not_measured",
    "n_looks": "n_samples",
    "n_censuses": "n_tensor_scans",
    "waits": "sync_sites",
    "stack_is": "stack_basis",
}
_RENAMED_IN_CAPTURE: Final = {
    "stretch_share": "overhead_ratio",
    "stretch_basis": "overhead_basis",
}
_EVIDENCE: Final = "evidence"
"""A finding's evidence has keys of its rule's own, which stay as they were written."""


def upgrade_report(report: dict[str, Any]) -> dict[str, Any]:
    """A report of the layout ``profkit.report/1`` as one of ``profkit.report/2``.

    Args:
        report: The decoded JSON; it is changed.
    """
    _rename(report, _RENAMED_IN_REPORT)
    return report


def upgrade_memory(record: dict[str, Any]) -> dict[str, Any]:
    """A memory record of the layout ``profkit.memory/1`` as one of ``profkit.memory/2``.

    Args:
        record: The decoded JSON; it is changed.
    """
    _rename(record, _RENAMED_IN_MEMORY)
    return record


def upgrade_capture(info: dict[str, Any]) -> dict[str, Any]:
    """The key ``profkit`` of a trace that an earlier version recorded, in today's names.

    Args:
        info: The decoded JSON; its ``cost`` is changed.
    """
    if isinstance(cost := info.get("cost"), dict):
        _rename(cost, _RENAMED_IN_CAPTURE)
    return info


def _rename(node: object, names: Mapping[str, str]) -> None:
    """Rename keys of a JSON tree, at every depth but within evidence."""
    nodes = [node]
    for each in nodes:
        if isinstance(each, list):
            nodes += each
        elif isinstance(each, dict):
            for old, new in names.items():
                if old in each:
                    each[new] = each.pop(old)
            if isinstance(sites := each.get("sync_sites"), list):
                for site in sites:
                    _rename(site, _RENAMED_IN_SYNC_SITES)
            nodes += [value for key, value in each.items() if key != _EVIDENCE]
