"""Stacks in folded lines, for flamegraph.pl, inferno and others.

A line has the frames from the outside in with semicolons between, a blank, and a weight. The weight
is time on the host, in nanoseconds, along Python's stacks and the operators within; of a recording
without Python stacks along the operators alone. Or it is time on devices by the stack that launched
it, or bytes at the peak of memory: see the option ``weight``. The weights add up to what the
recording has.
"""

from collections import Counter
from typing import Final

from profkit.model.report import Report
from profkit.present.renderer import RendererInfo
from profkit.present.stacks import StackOptions as Options
from profkit.present.stacks import chosen_stacks, remark, site_label

__all__ = ["INFO", "Options", "remark", "render"]

INFO = RendererInfo(
    name="folded",
    suffix=".folded",
    media_type="text/plain",
    shows="recording",
    opened_by="https://www.speedscope.app, or by flamegraph.pl",
)

_BETWEEN: Final = ";"
_INSTEAD: Final = ":"


def render(report: Report, options: Options) -> bytes:
    """The stacks as folded lines in UTF-8, in the order of the alphabet; nothing without any.

    Args:
        options: Which stacks.

    Raises:
        UsageError: There are no such stacks.
    """
    found = chosen_stacks(report, options.recording, options.weight)
    weights: Counter[str] = Counter()
    for stack, weight in found.rows if found is not None else ():
        frames = (site_label(site, options.base).replace(_BETWEEN, _INSTEAD) for site in stack)
        weights[_BETWEEN.join(frames)] += weight
    lines = [f"{stack} {weight}\n" for stack, weight in sorted(weights.items())]
    return "".join(lines).encode()
