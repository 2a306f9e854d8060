"""Stacks as folded lines, for flamegraph.pl, inferno and other flame graph tools.

A line has the frames from the outermost to the innermost, separated by semicolons, a blank, and a
weight. The option ``weight`` selects host time in nanoseconds by Python stack and operator (by
operator alone where no Python stacks were recorded), device time by the stack of the launch, or
bytes at the peak of memory. The weights add up to the recorded total.
"""

from collections import Counter
from typing import Final

from profkit.model.report import Report
from profkit.present.renderer import RendererInfo
from profkit.present.stacks import StackOptions as Options
from profkit.present.stacks import choose_stacks, remark, site_label

__all__ = ["INFO", "Options", "remark", "render"]

INFO = RendererInfo(
    name="folded",
    suffix=".folded",
    media_type="text/plain",
    shows="recording",
    opened_by="https://www.speedscope.app, or by flamegraph.pl",
)

_SEPARATOR: Final = ";"
_REPLACEMENT: Final = ":"


def render(report: Report, options: Options) -> bytes:
    """Return the stacks as folded lines in UTF-8, sorted; empty if there are none.

    Raises:
        UsageError: There are no such stacks.
    """
    stacks = choose_stacks(report, options.recording, options.weight)
    # Different stacks may have the same labels: each line is written once.
    weights: Counter[str] = Counter()
    for stack, weight in stacks.rows if stacks is not None else ():
        labels = (site_label(site, options.base) for site in stack)
        line = _SEPARATOR.join(label.replace(_SEPARATOR, _REPLACEMENT) for label in labels)
        weights[line] += weight

    lines = [f"{stack} {weight}\n" for stack, weight in sorted(weights.items())]
    return "".join(lines).encode()
