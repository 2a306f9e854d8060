"""The evidence of a finding has units on every surface, and no unknown figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.api import render
from profkit.cli.main import main
from profkit.present.evidence import evidence_texts
from tests.renderers import reports
from tests.renderers.reports import MS, build_starved

ROOT = Path(__file__).parents[2]


def test_figures_have_their_units_and_unknown_ones_are_left_out() -> None:
    finding = replace(
        build_starved(),
        evidence={
            "loader": "DataLoader",
            "loader_ns": [2 * MS, 3 * MS],
            "free_bytes": 1 << 30,
            "busy_share": 0.25,
            "n_workers": 4,
            "events": list(range(20)),
            "outside_bytes": None,
        },
    )

    assert dict(evidence_texts(finding)) == {
        "loader": "DataLoader",
        "loader time": "2.00 ms, 3.00 ms",
        "free": "1.00 GiB",
        "busy": "25%",
        "workers": "4",
        "event ids": "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more",
    }


@pytest.mark.parametrize("name", ["text", "md", "html"])
def test_it_reads_the_same_on_every_surface(name: str) -> None:
    shown = render(reports.build_gpu_report(), name, verbose=True)
    assert b"63.0 ms, 67.0 ms" in b" ".join(shown.split())
    assert b"data_wait_ns" not in shown


def test_an_explanation_has_units_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "1", str(ROOT / "traces" / "starved_loader")]) == 0
    evidence = capsys.readouterr().out.partition("\nEvidence\n")[2].partition("\n\n")[0]
    assert "  - loader time: 1" in evidence
    assert " ms" in evidence
    assert "_ns" not in evidence
