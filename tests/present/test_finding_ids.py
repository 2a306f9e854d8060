"""Ids of findings: unique in a report, and found again by id, number or rule."""

from dataclasses import replace

import pytest

from profkit.errors import UsageError
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.present.finding_ids import find_finding, finding_ids, selector
from tests.renderers.reports import build_gpu_report


def finding(rule: str, file: str | None = None, line: int | None = None) -> Finding:
    places = (Location(file, line),) if file else ()
    return Finding(rule, f"name-{rule}", "warning", "high", "title", "message", "fix", places)


FINDINGS = (
    finding("SYN001", "/home/a/train.py", 41),
    finding("SYN001", "/home/a/train.py", 52),
    finding("SYN001", "/home/b/train.py", 41),
    finding("DAT001"),
)
IDS = ["SYN001@train.py:41", "SYN001@train.py:52", "SYN001@train.py:41#2", "DAT001"]
REPORT = replace(build_gpu_report(), findings=FINDINGS, health=(finding("PRF004"),))


def test_ids_have_the_rule_the_file_and_the_line_and_are_unique() -> None:
    assert finding_ids(FINDINGS) == IDS
    assert [selector(finding_id) for finding_id in IDS] == [
        finding_id.removesuffix("#2") for finding_id in IDS
    ]


@pytest.mark.parametrize(
    ("word", "number"),
    [("SYN001@train.py:52", 1), ("SYN001@train.py:41#2", 2), ("DAT001", 3), ("dat001", 3),
     ("name-DAT001", 3), ("2", 1), ("5", 4), ("PRF004", 4)],
)  # fmt: skip
def test_a_finding_is_found_by_id_number_or_rule(word: str, number: int) -> None:
    assert find_finding(REPORT, word) == number


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("SYN001", "Choose one of SYN001@train.py:41, SYN001@train.py:52, SYN001@train.py:41#2."),
        ("SYN001@train.py:41", "Choose one of SYN001@train.py:41, SYN001@train.py:41#2."),
        ("MEM001", f"It has {', '.join([*IDS, 'PRF004'])}."),
        ("0", f"It has {', '.join([*IDS, 'PRF004'])}."),
        ("6", f"It has {', '.join([*IDS, 'PRF004'])}."),
    ],
)
def test_what_names_none_or_several_is_refused_with_the_ids(word: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_finding(REPORT, word)
    assert caught.value.hint == hint
