"""A report in JSON cut to a size: within it, findings first, and all rows reachable."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.errors import UsageError
from profkit.present.bounded import PAGE_SCHEMA, cut_report, page, take_fitting_rows

TREE: dict[str, Any] = {
    "schema": "profkit.report/2",
    "summary": {
        "window_ns": 5,
        "top_ops": [{"name": f"op{i}", "n_calls": i, "location": None} for i in range(40)],
        "memory": None,
    },
    "findings": [
        {"id": f"SYN00{i}@a.py:{i}", "message": "m" * 50, "evidence": {"events": list(range(20))}}
        for i in range(9)
    ],
    "ranks": [],
}


def size(tree: object) -> int:
    return len(json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.parametrize("budget_bytes", [300, 600, 1_000, 2_000, 4_000, 100_000])
def test_it_keeps_the_budget_and_says_what_is_left_out(budget_bytes: int) -> None:
    cut = cut_report(TREE, budget_bytes)
    assert size(cut) <= budget_bytes
    for name, rows in (
        ("findings", TREE["findings"]),
        ("summary.top_ops", TREE["summary"]["top_ops"]),
    ):
        kept = cut["findings"] if name == "findings" else cut["summary"]["top_ops"]
        if len(kept) < len(rows):
            assert cut["cut"][name] == {"n": len(rows), "next": f"{name}:{len(kept)}"}
        else:
            assert name not in cut["cut"]
    assert cut["summary"]["window_ns"] == 5
    assert cut["ranks"] == []


def test_findings_come_before_other_rows() -> None:
    cut = cut_report(TREE, 1_200)
    assert len(cut["findings"]) >= 3
    assert 0 < len(cut["summary"]["top_ops"]) < 10


def test_rows_have_ids_no_unknown_figures_and_the_number_of_items_left_out() -> None:
    cut = cut_report(TREE, 100_000)
    assert cut["summary"]["top_ops"][3] == {"id": "summary.top_ops.3", "name": "op3", "n_calls": 3}
    first = cut["findings"][0]
    assert first["id"] == "SYN000@a.py:0"
    assert first["evidence"] == {"events": list(range(8)), "cut": {"events": 20}}


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    with pytest.raises(UsageError) as caught:
        cut_report(TREE, 50)
    needed = int("".join(filter(str.isdigit, caught.value.hint)))
    assert size(cut_report(TREE, needed)) <= needed
    with pytest.raises(UsageError):
        cut_report(TREE, needed - 1)


@pytest.mark.parametrize("budget_bytes", [300, 700, 5_000, 0])
def test_following_the_cursors_gives_every_row_once(budget_bytes: int) -> None:
    cursor: str | None = "summary.top_ops:0"
    names: list[str] = []
    while cursor is not None:
        shown = page(TREE, cursor, budget_bytes)
        assert shown["schema"] == PAGE_SCHEMA
        assert not budget_bytes or size(shown) <= budget_bytes
        names += [row["name"] for row in shown["rows"]]
        cursor = shown["next"]
    assert names == [row["name"] for row in TREE["summary"]["top_ops"]]


def test_lists_within_rows_have_pages_too() -> None:
    shown = page(TREE, "findings.2.evidence.events:17", 0)
    assert (shown["n"], shown["rows"], shown["next"]) == (20, [17, 18, 19], None)


@pytest.mark.parametrize(
    "cursor", ["findings", "findings:x", ":3", "nothing:0", "summary:0", "findings.99.evidence:0",
               "findings:10", "summary.window_ns:0", "findings.-1.evidence.events:0"],
)  # fmt: skip
def test_a_cursor_that_leads_nowhere_is_refused(cursor: str) -> None:
    with pytest.raises(UsageError):
        page(TREE, cursor, 0)


def test_a_first_row_that_does_not_fit_is_shortened_or_refused() -> None:
    (short,) = take_fitting_rows([{"text": "x" * 10_000}], 1_000)
    assert short["text"].endswith("x…")
    with pytest.raises(UsageError, match="too small"):
        take_fitting_rows([{"text": "x" * 10_000}], 100)


_VALUES = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("abc", min_size=1), inner),
    max_leaves=40,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), _VALUES), st.integers(2, 2_000))
@settings(deadline=None, max_examples=40)
def test_any_tree_is_cut_to_the_budget_or_refused(tree: dict[str, Any], budget_bytes: int) -> None:
    try:
        cut = cut_report(tree, budget_bytes)
    except UsageError:
        return
    assert size(cut) <= budget_bytes
