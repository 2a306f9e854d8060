"""The options of an analysis: rules, thresholds, peaks of devices, limits.

Every function from :func:`profkit.analyze` down to the reading of a file takes them as one value.
Public functions build it from their arguments, commands from ``pyproject.toml`` and the command
line.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, Self

from profkit.dataclass import dataclass

Peaks = Mapping[str, Mapping[str, float]]
"""By device name, its peaks by :data:`~profkit.index.compute.peaks.PEAK_FIGURES`."""


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of an analysis, as plain data that can be sent to other processes.

    Attributes:
        select: Rules to run: ids, names, or families such as ``SYN``. Empty means all.
        ignore: Rules not to run, in the same form.
        thresholds: By rule name, thresholds that differ from the default.
        strict: Whether a rule that crashes raises, instead of being reported as a skipped check.
        limit_bytes: Maximum decompressed size of a file; None for the default.
        peaks: Peak figures by device name, for devices that profkit does not know.
        tokens_per_step: Total tokens of a step, for model FLOP utilization, or None.
        parameters: Model parameters that each token uses, for model FLOP utilization, or None.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    strict: bool = False
    limit_bytes: int | None = None
    peaks: Peaks = field(default_factory=dict)
    tokens_per_step: int | None = None
    parameters: int | None = None

    def with_rules(self, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> Self:
        """Return the options with the rules of a command line, if it names any.

        Args:
            select: Rules that replace both lists.
            ignore: Rules that replace the list of the same name.
        """
        # A list of ignored rules in pyproject.toml is not meant for rules selected by hand.
        kept = () if select else self.ignore
        return replace(self, select=select or self.select, ignore=ignore or kept)


DEFAULT_OPTIONS: Final = AnalysisOptions()
