"""What every renderer keeps, profkit's own and third parties'."""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from profkit.engine.renderer import Renderer, RendererInfo, accepted, renderers
from profkit.model.report import Report
from profkit.units import format_bytes, format_count, format_ns, format_share
from tests.render import reports

EVERY = renderers()
IDS = [each.INFO.name for each in EVERY]
OF_REPORTS = tuple(each for each in EVERY if each.INFO.shows == "report")
"""Those that a person reads; the others hand the recording on to another program."""
OF_REPORTS_IDS = [each.INFO.name for each in OF_REPORTS]
DATA = ("json", "csv", "sarif")
"""Formats of reports for programs: they hold every finding, and leave words to their readers."""
IN_TEXT = tuple(
    each for each in EVERY if re.search("text|json", each.INFO.media_type, re.IGNORECASE)
)
IN_TEXT_IDS = [each.INFO.name for each in IN_TEXT]
FIGURE = re.compile(r"(?<![\w.])[\d,]+(?:\.\d+)?(?: (?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b|%)")


def render(module: Renderer, report: Report, **options: object) -> str:
    return module.render(report, module.Options(**accepted(module, options))).decode()


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_it_says_what_it_is_and_has_options_with_defaults(module: Renderer) -> None:
    assert isinstance(module.INFO, RendererInfo)
    assert module.INFO.suffix.startswith(".")
    assert "/" in module.INFO.media_type
    assert (module.__doc__ or "").strip()
    assert is_dataclass(module.Options)
    assert fields(module.Options())


def test_the_formats_of_the_command_line_are_there() -> None:
    assert {"text", "json", "md"} <= set(IDS)


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
@pytest.mark.parametrize("module", IN_TEXT, ids=IN_TEXT_IDS)
def test_hostile_names_reach_no_terminal(module: Renderer, text: str) -> None:
    for options in ({}, {"verbose": True}, {"width": 40}):
        shown = render(module, reports.hostile_report(text), **options)
        dangerous = [
            char
            for char in shown
            if char not in "\n\u200d" and unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}
        ]
        if module.INFO.name == "json":
            assert json.loads(shown)["findings"][0]["severity"] == "warning"
            dangerous = [char for char in dangerous if ord(char) < 32]
        assert dangerous == []


@pytest.mark.parametrize("module", OF_REPORTS, ids=OF_REPORTS_IDS)
def test_ten_thousand_findings_are_no_trouble(module: Renderer) -> None:
    report = reports.many_findings()
    shown = render(module, report)
    assert "DAT001" in shown
    if module.INFO.name in DATA:
        assert sum(shown.count(finding.rule) for finding in report.findings[:2]) >= 10_000
    else:
        assert "9,995 more" in shown
        assert len(shown.splitlines()) < 120


@pytest.mark.parametrize("module", OF_REPORTS, ids=OF_REPORTS_IDS)
def test_nothing_found_is_said(module: Renderer) -> None:
    shown = render(module, reports.empty_report())
    if module.INFO.name in DATA:
        assert "DAT001" not in shown
    else:
        assert "No rule found anything to change" in shown


@pytest.mark.parametrize("module", OF_REPORTS, ids=OF_REPORTS_IDS)
def test_not_looked_at_never_looks_clean(module: Renderer) -> None:
    shown = render(module, reports.unchecked_report())
    assert "SYN012" in shown
    assert "There are no operators." in shown
    assert "No rule found anything" not in shown


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_the_same_report_gives_the_same_bytes(module: Renderer) -> None:
    options = module.Options()
    products = [module.render(reports.gpu_report(), options) for _ in range(2)]
    assert products[0] == products[1]


def leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def known_figures(tree: dict[str, Any]) -> set[str]:
    """Every figure of a JSON report as text, and the shares that follow from two of them."""
    known: set[str] = set()
    shares: list[float] = []
    for leaf in leaves(tree):
        if isinstance(leaf, str):
            known.update(FIGURE.findall(leaf))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            known |= {format_ns(leaf), format_bytes(abs(leaf)), format_count(round(leaf))}
            shares.append(leaf)
    breakdown = tree["summary"]["breakdown"]
    if breakdown:
        parts = breakdown["parts"]
        work = ("compute", "communication", "copy", "operators", "backward", "optimizer")
        shares.append(sum(part["share"] for part in parts if part["kind"] in work))
        shares.append(breakdown["total_ns"] / tree["summary"]["window_ns"])
        shares += [
            finding["cost"]["per_step_ns"] / breakdown["per_step_ns"]
            for finding in tree["findings"]
            if finding["cost"]["per_step_ns"]
        ]
    for device in tree["summary"]["devices"]:
        shares += [device[key] / device["span_ns"] for key in device if key.endswith("_ns")]
    memory = tree["summary"]["memory"] or {"devices": []}
    for device in memory["devices"]:
        totals = [device[key] for key in device if key.endswith("_bytes")]
        every = [*device["top_sites"], *device["peak_sites"]]
        every += [site for oom in device["oom"] for site in oom["sites"]]
        shares += [site["bytes"] / total for site in every for total in totals if total]
    return known | {format_share(share) for share in shares}


REPORTS = {
    "gpu": reports.gpu_report(),
    "cpu": reports.cpu_report(),
    "watched": reports.watched_report(),
    "snapshot": reports.snapshot_report(),
    "snapshot of two": reports.snapshot_report(2),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("module", OF_REPORTS, ids=OF_REPORTS_IDS)
def test_every_figure_shown_is_in_the_json(module: Renderer, report: Report) -> None:
    tree = json.loads(render(next(each for each in EVERY if each.INFO.name == "json"), report))
    shown = set(FIGURE.findall(render(module, report, width=120, verbose=True)))
    assert shown <= known_figures(tree)
    if module.INFO.name not in DATA:
        assert len(shown) > 5
