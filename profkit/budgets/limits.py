"""Reads budgets: the limits of figures."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from profkit.arguments import is_number
from profkit.budgets.figures import FIGURES, FINDINGS, BudgetFigure, build_findings_figure
from profkit.dataclass import dataclass
from profkit.errors import UsageError
from profkit.patterns import regex

_MS: Final = 1_000_000
_AMOUNT: Final = regex(
    r"(?P<sign>\+)?\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>%|[a-zµ]+)?", re.IGNORECASE
)
_TIMES: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": _MS, "s": 1_000_000_000}
_SIZES: Final = {"b": 1} | {
    f"{prefix}{binary}b": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for binary, base in (("", 1000), ("i", 1024))
}


@dataclass(frozen=True)
class BudgetLimit:
    """A limit on a figure.

    Attributes:
        most: What the figure may be at most, in its unit; None if it is relative alone.
        more: By how much it may exceed the baseline's, in its unit; None if it is not relative to
            one, or by a share.
        more_share: By which share of the baseline's it may exceed it.
    """

    figure: BudgetFigure
    most: int | None = None
    more: int | None = None
    more_share: float | None = None

    @property
    def is_relative(self) -> bool:
        """Return whether it needs a baseline."""
        return self.most is None

    def limit(self, baseline: int | None) -> int | None:
        """Return the highest value of the figure; None without the baseline that it needs."""
        if self.most is not None:
            return self.most
        if baseline is None:
            return None
        if self.more is not None:
            return baseline + self.more
        return baseline + round(baseline * (self.more_share or 0.0))


def budgets_of(table: Mapping[str, Any], where: str) -> tuple[BudgetLimit, ...]:
    """Read a table of budgets.

    Args:
        table: By the figure's name a limit: a number (milliseconds for names in ``_ms``, else bytes
            or a count), a text with a unit (``"12 ms"``, ``"2 GiB"``), or relative to the baseline
            (``"+5%"``, ``"+64 MiB"``, ``"+2"``). ``findings`` is a severity, of which there may be
            none, or a table of limits by severity and rule.
        where: The name of the table, for errors.

    Raises:
        UsageError: A name or a limit is not valid.
    """
    figures = {figure.name: figure for figure in FIGURES}
    limits: list[BudgetLimit] = []

    for name, value in table.items():
        if name == FINDINGS:
            limits += _of_findings(value, f"{where}: {name}")
        elif name in figures:
            limits.append(budget_of(figures[name], value, f"{where}: {name}"))
        else:
            names = ", ".join([*figures, FINDINGS])
            raise UsageError(f"{where}: there is no budget {name!r}.", f"Budgets are {names}.")

    return tuple(limits)


def _of_findings(value: object, where: str) -> Iterator[BudgetLimit]:
    # `findings = "warning"` is short for a table with none of them.
    if isinstance(value, str):
        value = {value: 0}
    if not isinstance(value, Mapping):
        hint = 'Write "warning", or a table such as {warning = 0, item-sync = 2}.'
        raise UsageError(f"{where} must be a severity or a table, not {value!r}.", hint)

    for word, limit in value.items():
        figure = build_findings_figure(str(word))
        if figure is None:
            hint = "See `profkit rules`; severities are note, warning and error."
            raise UsageError(f"{where}: there is no severity or rule {word!r}.", hint)
        yield budget_of(figure, limit, f"{where}.{word}")


def budget_of(figure: BudgetFigure, value: object, where: str) -> BudgetLimit:
    """Read one limit.

    Args:
        value: As for :func:`budgets_of`.
        where: The name of the budget, for errors.

    Raises:
        UsageError: It is not valid.
    """
    is_amount = is_number(value) or isinstance(value, str)
    match = _AMOUNT.fullmatch(f"{value}".strip()) if is_amount else None
    if match is None:
        raise _error(figure, value, where)

    number, unit, is_more = float(match["number"]), match["unit"], match["sign"] is not None
    if unit == "%":
        # A share is relative to a baseline, which the sign states.
        if not is_more:
            raise _error(figure, value, where)
        return BudgetLimit(figure, more_share=number / 100)

    amount = round(number * _scale(figure, unit, value, where))
    return BudgetLimit(figure, more=amount) if is_more else BudgetLimit(figure, most=amount)


def _scale(figure: BudgetFigure, unit: str | None, value: object, where: str) -> int:
    """Return how many of the figure's units make one of the limit's unit."""
    if unit is None:
        return _MS if figure.unit == "ns" else 1
    scales: dict[str, int] = {"ns": _TIMES, "bytes": _SIZES, "count": {}}[figure.unit]
    if unit.lower() not in scales:
        raise _error(figure, value, where)
    return scales[unit.lower()]


def _error(figure: BudgetFigure, value: object, where: str) -> UsageError:
    example = {"ns": '12.5, "12.5 ms"', "bytes": '"2 GiB"', "count": "0"}[figure.unit]
    return UsageError(
        f"{where} must be a limit, not {value!r}.",
        f'Write {example}, or relative to the baseline "+5%".',
    )
