"""The judge of distributed jobs: a verdict is right if rule, ranks, line and exit code are."""

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.__main__ import JOBS, PROGRAM, judge, select_jobs

SLEEP = "time.sleep(15e-3)"


def report(*rules: str, ranks: tuple[int, ...] = (1,), code: str = SLEEP) -> dict[str, Any]:
    lines = PROGRAM.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if code in line)
    location = {"file": Path(PROGRAM.name).name, "line": number}
    findings = [
        {"rule": rule, "ranks": list(ranks), "locations": [location], "message": f"by {rule}"}
        for rule in rules
    ]
    return {"findings": findings}


def test_the_planted_rank_and_line_are_right() -> None:
    assert judge("ddp2", "sleep50", 0, report("KER001", "COM004")) == (
        True,
        f"exit 0: by COM004 [{SLEEP}]",
    )
    assert judge("ddp2", "balanced", 0, report("KER001")) == (True, "exit 0: silent []")


def test_a_slow_rank_of_a_pipeline_is_a_stage() -> None:
    assert judge("1f1b2", "hook", 0, report("COM005"))[0]
    assert not judge("ddp2", "hook", 0, report("COM005"))[0]


@pytest.mark.parametrize(
    ("fault", "code", "wrong"),
    [
        ("sleep50", 0, report("COM004", ranks=(0,))),
        ("sleep50", 0, report("COM004", "COM005")),
        ("sleep50", 0, report("COM004", code="weights @ weights")),
        ("sleep50", 1, report("COM004")),
        ("sleep50", 0, report()),
        ("balanced", 0, report("COM004")),
        ("balanced", 0, {}),
    ],
)
def test_another_verdict_is_wrong(fault: str, code: int, wrong: dict[str, Any]) -> None:
    is_right, _ = judge("ddp2", fault, code, wrong)
    assert not is_right


def test_words_select_jobs() -> None:
    assert [*select_jobs(["tp2", "ddp4/kill"])] == [
        ("ddp4", "kill"),
        *(("tp2", fault) for fault in JOBS["tp2"]),
    ]
    assert len([*select_jobs([])]) == sum(map(len, JOBS.values()))
