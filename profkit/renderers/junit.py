"""JUnit XML, which CI systems show as test results: a test for each finding or each budget.

Findings and faults of the recording from a warning on, and budgets that are not kept, have failed.
Notes have passed, and skipped checks and budgets without an outcome are skipped.

Source: the JUnit schema of Jenkins' xUnit plugin (``junit-10.xsd``); GitLab, Buildkite and GitHub's
reporters read the same elements.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from profkit.dataclass import dataclass
from profkit.model.check import BudgetResult, Check
from profkit.model.location import Location, first_with_file
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.patterns import regex
from profkit.present.check_document import cause_texts, outcome_text
from profkit.present.renderer import RecordingOptions as Options
from profkit.present.renderer import RendererInfo

__all__ = ["INFO", "Options", "render", "render_check", "together"]

INFO = RendererInfo(name="junit", suffix=".xml", media_type="application/xml")

_FIGURES: Final = ("tests", "failures", "errors", "skipped", "time")
_INVALID: Final = regex("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


@dataclass(frozen=True)
class _Test:
    """A test; ``outcome`` is ``failure``, ``error`` or ``skipped``, or empty if it has passed."""

    name: str
    outcome: str = ""
    message: str = ""
    details: str = ""
    where: Location | None = None


def render(report: Report, options: Options) -> bytes:
    """Return the findings and skipped checks as JUnit XML in UTF-8."""
    tests = [
        _Test(
            f"{finding.rule} {finding.name} {_place(finding.locations, options.base)}".rstrip(),
            "" if finding.severity == "note" else "failure",
            finding.title,
            f"{finding.message} {finding.fix}",
            first_with_file(finding.locations),
        )
        for finding in (*report.findings, *report.health)
    ]
    tests += [
        _Test(check.rule, "skipped", f"{check.reason} {check.remedy}") for check in report.unchecked
    ]
    return _write_suite("profkit.findings", tests, options.base)


def render_check(check: Check, options: Options) -> bytes:
    """Return the budgets as JUnit XML in UTF-8."""
    tests = [_build_budget_test(result, options.base) for result in check.results]
    return _write_suite("profkit.budgets", tests, options.base)


def together(products: Sequence[bytes]) -> bytes:
    """Join the results of several recordings: a file has one root."""
    roots = [ET.fromstring(product) for product in products]  # noqa: S314  (written above)
    sums = {name: str(sum(int(root.get(name, "0")) for root in roots)) for name in _FIGURES}
    joined = ET.Element("testsuites", {"name": "profkit", **sums})
    joined.extend(suite for root in roots for suite in root)
    return _encode(joined)


def _build_budget_test(result: BudgetResult, base: str) -> _Test:
    outcome = {"ok": "", "over": "failure", "unknown": "error"}.get(result.outcome, "skipped")
    return _Test(
        result.name,
        outcome,
        outcome_text(result),
        "\n".join(cause_texts(result, base)),
        next(iter(result.locations), None),
    )


def _place(locations: Iterable[Location], base: str) -> str:
    where = first_with_file(locations)
    if where is None or where.file is None:
        return ""
    return f"{short_path(where.file, base)}:{where.line or 0}"


def _write_suite(name: str, tests: list[_Test], base: str) -> bytes:
    def counted(outcome: str) -> str:
        return str(sum(test.outcome == outcome for test in tests))

    counts = (str(len(tests)), counted("failure"), counted("error"), counted("skipped"), "0")
    figures = dict(zip(_FIGURES, counts, strict=True))

    # Readers disagree on which of the two elements has the figures: both do.
    suites = ET.Element("testsuites", {"name": "profkit", **figures})
    suite = ET.SubElement(suites, "testsuite", {"name": name, **figures})

    for test in tests:
        facts = {"classname": name, "name": _text(test.name), "time": "0"}
        if test.where is not None and test.where.file is not None:
            facts["file"] = _text(short_path(test.where.file, base))
            if test.where.line:
                facts["line"] = str(test.where.line)

        case = ET.SubElement(suite, "testcase", facts)
        if test.outcome:
            outcome = ET.SubElement(case, test.outcome, {"message": _text(test.message)})
            outcome.text = "\n".join(map(_text, test.details.split("\n")))

    return _encode(suites)


def _encode(suites: ET.Element) -> bytes:
    ET.indent(suites)
    return bytes(ET.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def _text(text: str) -> str:
    return _INVALID.sub("?", visible(text))
