"""Converts reports, memory records and capture metadata of older layouts to the current layout.

Layout 2 differs from layout 1 in the names of keys, and has a tensor's shape as data.
"""

from collections.abc import Mapping
from typing import Any, Final

from profkit.model import live_memory, report
from profkit.patterns import regex

_RENAMED: Final = {
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
    "watched_ns": "monitored_ns",
    "looks": "samples",
    "growths": "leaks",
    "n_looks": "n_samples",
    "n_censuses": "n_tensor_scans",
    "stack_is": "stack_basis",
    "stretch_basis": "overhead_basis",
}
_RENAMED_IN_SYNC_SITES: Final = {
    "what": "operation",
    "where": "frame",
    "allowed": "allowed_reason",
}
_MEMORY_1: Final = "profkit.memory/1"
_SHAPE: Final = regex(r"(?:\(([\d, ]*)\) )?([a-z]+(\d*)\w*)")
_EVIDENCE: Final = "evidence"
"""A finding's evidence has the keys that its rule chose; they stay as they were written."""


def upgrade_report(tree: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Convert decoded JSON of the layout ``profkit.report/1``; other values are returned as is."""
    return _upgrade(tree, "profkit.report/1", report.SCHEMA)


def upgrade_memory(tree: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Convert decoded JSON of the layout ``profkit.memory/1``; other values are returned as is."""
    is_older = isinstance(tree, dict) and tree.get("schema") == _MEMORY_1
    tree = _upgrade(tree, _MEMORY_1, live_memory.SCHEMA)
    if is_older and isinstance(leaks := tree.get("leaks"), list):
        for leak in leaks:
            if isinstance(leak, dict):
                leak["shape"] = _parse_shape(leak.get("shape"))
    return tree


def _parse_shape(text: Any) -> dict[str, Any] | None:  # noqa: ANN401
    """Parse a tensor's shape that was recorded as text, such as ``(120, 3) float32``."""
    match = _SHAPE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    dims = None if match[1] is None else [int(size) for size in match[1].split(",") if size.strip()]
    bits = int(match[3] or 8)  # bool is the only dtype without a number in its name
    return {"dtype": match[2], "dims": dims, "element_bytes": bits // 8}


def upgrade_capture(info: dict[str, Any]) -> dict[str, Any]:
    """Convert the key ``profkit`` of a trace that an earlier version recorded, in place."""
    _rename(info.get("cost"))
    return info


def _upgrade(tree: Any, old: str, new: str) -> Any:  # noqa: ANN401
    if isinstance(tree, dict) and tree.get("schema") == old:
        _rename(tree)
        tree["schema"] = new
    return tree


def _rename(tree: object, names: Mapping[str, str] = _RENAMED) -> None:
    """Rename keys of a JSON tree in place, at every depth except within evidence."""
    # A loop over a growing list visits the tree without recursion, however deep it is.
    nodes = [tree]
    for node in nodes:
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            for old, new in names.items():
                if old in node:
                    node[new] = node.pop(old)

            # Some short names are keys of other objects as well, and stay there.
            if isinstance(sites := node.get("sync_sites"), list):
                for site in sites:
                    _rename(site, _RENAMED_IN_SYNC_SITES)
            nodes += [value for key, value in node.items() if key != _EVIDENCE]
