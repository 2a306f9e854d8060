"""Stacks in folded lines, for flamegraph.pl, inferno and others.

A line has the frames from the outside in with semicolons between, a blank, and a weight. The weight
is time on the host, in nanoseconds, along Python's stacks and the operators within; of a recording
without Python stacks along the operators alone. Or it is time on devices by the stack that launched
it, or bytes at the peak of memory: see the option ``weight``. The weights add up to what the
recording has.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from profkit.engine.renderer import Recording, RendererInfo
from profkit.engine.stacks import chosen_stacks, instead_of_stacks, label
from profkit.model.report import Report

INFO = RendererInfo(
    name="folded",
    suffix=".folded",
    media_type="text/plain",
    shows="recording",
    opened_by="https://www.speedscope.app, or by flamegraph.pl",
)

_BETWEEN: Final = ";"
_INSTEAD: Final = ":"


@dataclass(frozen=True)
class Options:
    """Which stacks are written.

    Attributes:
        weight: ``host``, ``device``, ``memory``, or the name of a flame graph such as
            ``device-module``; empty for the first that there is.
        recording: What the report was made from; without it there is what the report has kept.
        base: An absolute folder; paths inside are shown relative to it.
    """

    weight: str = ""
    recording: Recording | None = None
    base: str = ""


def render(report: Report, options: Options) -> bytes:
    """The stacks as folded lines in UTF-8, in the order of the alphabet; nothing without any.

    Args:
        report: The report.
        options: Which stacks.

    Raises:
        UsageError: There are no such stacks.
    """
    found = chosen_stacks(report, options.recording, options.weight)
    weights: Counter[str] = Counter()
    for stack, weight in found.rows if found is not None else ():
        frames = (label(site, options.base).replace(_BETWEEN, _INSTEAD) for site in stack)
        weights[_BETWEEN.join(frames)] += weight
    lines = [f"{stack} {weight}\n" for stack, weight in sorted(weights.items())]
    return "".join(lines).encode()


def remark(report: Report, options: Options) -> str:
    """What stands in the place of stacks that were not recorded.

    Args:
        report: The report.
        options: What it was made from.
    """
    return instead_of_stacks(options.recording)
