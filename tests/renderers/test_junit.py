"""JUnit's XML has a test for each finding, and one root for several recordings."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from profkit import analyze
from profkit.api import render
from profkit.renderers import junit
from profkit.testing import TraceBuilder
from tests.renderers import reports


def parsed(product: bytes | str) -> ET.Element:
    """Return the root of what was written."""
    text = product if isinstance(product, str) else product.decode()
    return ET.fromstring(text)  # noqa: S314  (written by the test)


def cases(product: bytes | str) -> list[tuple[str, list[str]]]:
    """Return the class and name of each test, and its outcomes."""
    return [
        (case.get("name", ""), [outcome.tag for outcome in case])
        for case in parsed(product).iter("testcase")
    ]


def test_findings_fail_and_notes_pass() -> None:
    report = reports.build_gpu_report()
    product = junit.render(report, junit.Options())
    outcomes: dict[str, list[str]] = {
        name.split()[0]: case_list for name, case_list in cases(product)
    }
    for finding in (*report.findings, *report.health):
        assert outcomes[finding.rule] == ([] if finding.severity == "note" else ["failure"])
    for check in report.unchecked:
        assert outcomes[check.rule] == ["skipped"]

    root = parsed(product)
    all_outcomes = list(outcomes.values())
    assert root.get("tests") == str(len(cases(product))) == str(len(all_outcomes))
    assert root.get("failures") == str(all_outcomes.count(["failure"]))
    assert root.get("skipped") == str(all_outcomes.count(["skipped"]))


def test_faults_of_the_recording_are_tests_too(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    for dur_ns in (90_000, 10_000, 10_000):
        with b.step():
            b.compute("aten::mm", dur_ns)
    report = analyze(b.write(tmp_path / "trace.json"))
    (fault, *_) = report.health
    names = [name for name, _ in cases(render(report, "junit"))]
    assert any(name.startswith(fault.rule) for name in names)


def test_the_results_of_several_recordings_have_one_root() -> None:
    report = replace(reports.build_gpu_report(), unchecked=())
    products = [
        junit.render(job_report, junit.Options())
        for job_report in (report, reports.build_cpu_report())
    ]
    joined = junit.together(products)
    root = parsed(joined)
    assert root.tag == "testsuites"
    assert cases(joined) == [case for product in products for case in cases(product)]
    roots = [parsed(product) for product in products]
    for name in ("tests", "failures", "skipped"):
        assert int(root.get(name, "")) == sum(int(root.get(name, "")) for root in roots)
