"""How budgets are written: numbers, units, relative to a baseline, and what is refused."""

import pytest

from profkit.budgets.limits import budgets_of
from profkit.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "value", "baseline", "limit"),
    [
        ("step_ms", 12.5, None, 12_500_000),
        ("step_ms", "12.5 ms", None, 12_500_000),
        ("gpu_ms", "3s", None, 3_000_000_000),
        ("step_ms", "+5%", 200, 210),
        ("step_ms", "+2", 1_000_000, 3_000_000),
        ("peak", 4096, None, 4096),
        ("peak", "2 GiB", None, 2048 * MIB),
        ("peak", "1.5 MB", None, 1_500_000),
        ("peak", "+64 MiB", MIB, 65 * MIB),
        ("peak", "+20%", 10 * MIB, 12 * MIB),
        ("syncs", 0, None, 0),
        ("kernels", "+2", 40, 42),
        ("kernels", "+0%", 40, 40),
        ("step_ms", "+5%", None, None),
        ("kernels", 7, 1000, 7),
    ],
)
def test_limits_in_the_units_of_figures(
    name: str, value: object, baseline: int | None, limit: int | None
) -> None:
    (budget,) = budgets_of({name: value}, "the table")
    assert budget.figure.name == name
    assert budget.limit(baseline) == limit


def test_a_severity_or_limits_by_severity_rule_and_family() -> None:
    (none,) = budgets_of({"findings": "warning"}, "the table")
    assert (none.figure.name, none.limit(None)) == ("findings.warning", 0)
    every = budgets_of({"findings": {"error": 0, "item-sync": 2, "MEM": 1}}, "the table")
    assert [(limit.figure.name, limit.limit(None)) for limit in every] == [
        ("findings.error", 0),
        ("findings.item-sync", 2),
        ("findings.MEM", 1),
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"step": 1}, "there is no budget 'step'"),
        ({"step_ms": "fast"}, "step_ms must be a limit, not 'fast'"),
        ({"step_ms": "2 GiB"}, "step_ms must be a limit, not '2 GiB'"),
        ({"syncs": "3 ms"}, "syncs must be a limit, not '3 ms'"),
        ({"syncs": True}, "syncs must be a limit, not True"),
        ({"syncs": -1}, "syncs must be a limit, not -1"),
        ({"peak": "5%"}, "peak must be a limit, not '5%'"),
        ({"peak": float("nan")}, "peak must be a limit, not nan"),
        ({"peak": [1]}, "peak must be a limit"),
        ({"findings": 3}, "findings must be a severity or a table, not 3"),
        ({"findings": "item-sink"}, "there is no severity or rule 'item-sink'"),
    ],
)
def test_what_is_not_a_limit_is_refused_with_its_name(
    table: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=r"the table") as refused:
        budgets_of(table, "the table")
    assert message in refused.value.message
