"""Stacks for speedscope.app: host time, device time, and memory at its peak.

A file has a profile for each kind of stacks in the recording, with the files and lines of their
frames. Weights are whole nanoseconds or bytes.

Source: ``src/lib/file-format-spec.ts`` of jlfwong/speedscope.
"""

from typing import Any, Final

import msgspec

from profkit.model.flame import FlameSite
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.renderer import RendererInfo
from profkit.present.stacks import StackOptions as Options
from profkit.present.stacks import WeightedStacks, all_stacks, choose_stacks, remark, site_label

__all__ = ["INFO", "Options", "remark", "render"]

INFO = RendererInfo(
    name="speedscope",
    suffix=".speedscope.json",
    media_type="application/json",
    shows="recording",
    opened_by="https://www.speedscope.app",
)

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_UNITS: Final = {"ns": "nanoseconds", "bytes": "bytes"}


def render(report: Report, options: Options) -> bytes:
    """Return the stacks in speedscope's file format.

    Raises:
        UsageError: There are no such stacks.
    """
    if options.weight:
        kinds = [choose_stacks(report, options.recording, options.weight)]
    else:
        kinds = [*all_stacks(report, options.recording)]

    # The profiles fill the numbers of their frames, which the file lists before them.
    numbers: dict[FlameSite, int] = {}
    profiles = [_build_profile(stacks, numbers) for stacks in kinds if stacks is not None]
    file = {
        "$schema": _SCHEMA,
        "shared": {"frames": [_frame(site, options.base) for site in numbers]},
        "profiles": profiles,
        "name": visible(short_path(report.source.path, options.base)) or "profkit",
        "activeProfileIndex": 0,
        "exporter": f"profkit@{report.profkit}",
    }
    return msgspec.json.encode(file) + b"\n"


def _build_profile(stacks: WeightedStacks, numbers: dict[FlameSite, int]) -> dict[str, Any]:
    """Return one kind of stacks; sites are numbered in the order of their first use."""
    weights = [weight for _, weight in stacks.rows]

    return {
        "type": "sampled",
        "name": f"{stacks.title}: {stacks.of}",
        "unit": _UNITS[stacks.unit],
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [
            [numbers.setdefault(site, len(numbers)) for site in stack] for stack, _ in stacks.rows
        ],
        "weights": weights,
    }


def _frame(site: FlameSite, base: str) -> dict[str, Any]:
    if site.frame is None:
        return {"name": site_label(site)}
    file = visible(short_path(site.frame.file, base))
    line = {} if site.frame.line is None else {"line": site.frame.line}
    return {"name": visible(site.name) or "(no name)", "file": file, **line}
