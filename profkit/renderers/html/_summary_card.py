"""What a page tells of its report to a page of several reports, which shows them side by side."""

from typing import Any

from profkit.model.device_summary import DeviceSummary
from profkit.model.report import Report
from profkit.present.headline import part_label
from profkit.renderers.html._colors import color_of
from profkit.renderers.html._table import cell


def card(report: Report) -> dict[str, Any]:
    """The figures of a report that can be compared with another's."""
    source, summary = report.source, report.summary
    breakdown = summary.breakdown
    memory = summary.memory
    return {
        "version": report.profkit,
        "path": cell(source.path),
        "rank": source.rank,
        "worldSize": source.world_size,
        "nSteps": len(summary.steps) or None,
        "wholeNs": None if breakdown is None else breakdown.per_step_ns or breakdown.total_ns,
        "parts": [
            {
                "kind": part.kind,
                "label": part_label(part.kind),
                "color": color_of(part.kind),
                "ns": part.per_step_ns if part.per_step_ns is not None else part.ns,
            }
            for part in (breakdown.parts if breakdown else ())
        ],
        "busyShare": _share(summary.devices, "busy_ns"),
        "computeShare": _share(summary.devices, "compute_ns"),
        "communicationShare": _share(summary.devices, "communication_ns"),
        "overlapShare": _share(summary.devices, "overlap_ns"),
        "peakBytes": max(
            (
                *(peak.bytes for peak in (memory.peak if memory else ())),
                *(device.at_peak_bytes for device in (memory.devices if memory else ())),
            ),
            default=None,
        ),
        "nFindings": len(report.findings),
        "worst": cell(report.findings[0].title) if report.findings else "",
    }


def _share(devices: tuple[DeviceSummary, ...], figure: str) -> float | None:
    """A figure of all devices as a share of the time that they were in use."""
    span_ns = sum(device.span_ns for device in devices)
    return sum(getattr(device, figure) for device in devices) / span_ns if span_ns else None
