"""Skipped checks, faults of the recording, and the environment in which it was made."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.facts import describe_recording, rank_label, unchecked_by_reason
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.units import format_count, format_ns

_RECORDED: Final = {
    "stacks": "Python stacks", "shapes": "shapes", "memory": "memory", "modules": "modules",
    "flops": "FLOPs",
}  # fmt: skip


def build_section(report: Report, options: Options) -> Section:
    """Return what limits the report, and where the recording comes from."""
    faults = counted(len(report.health), "fault") if report.health else "no faults"
    return Section(
        id="recording",
        title="Recording",
        body=fill(
            "recording.html.j2",
            unchecked=unchecked_by_reason(report),
            n_unchecked=len(report.unchecked),
            health=report.health,
            remarks=list(describe_recording(report, everything=True)),
            environment=list(_list_environment(report, options)),
        ),
        figure=f"{faults}, {counted(len(report.unchecked), 'check')} skipped",
    )


def _list_environment(report: Report, options: Options) -> Iterator[tuple[str, str]]:
    source, summary = report.source, report.summary
    yield "Kind", source.kind
    if source.path:
        yield "File", short_path(source.path, options.base)
    if summary.window_ns:
        yield "Length", format_ns(summary.window_ns)
    if source.n_events:
        yield "Events", format_count(source.n_events)

    if source.devices:
        yield "Devices", ", ".join(dict.fromkeys(name or "unnamed" for name in source.devices))
    if source.rank is not None:
        yield "Rank", rank_label(source)
    if source.torch:
        yield "PyTorch", source.torch

    # Only traces name the options with which they were recorded.
    if source.kind == "trace":
        parts = [label for name, label in _RECORDED.items() if getattr(source.recorded_with, name)]
        yield "Recorded with", ", ".join(parts) or "times only"
    if summary.n_graph_launches:
        yield "Graph launches", format_count(summary.n_graph_launches)
    yield "profkit", report.profkit
