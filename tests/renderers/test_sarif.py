"""SARIF: what code hosts and editors take, checked by the rules of the standard's schema."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft7Validator

from profkit.api import render, study
from profkit.engine.registry import rules
from profkit.model.finding import Finding
from profkit.model.location import Frame, Location
from profkit.model.memory_summary import AllocationSite
from profkit.model.report import Report
from profkit.renderers import sarif
from profkit.testing import TraceBuilder
from tests.renderers import reports

BASE = "/home/me/project"
LEVELS = {"none", "note", "warning", "error"}
RESULT_KEYS = {
    "ruleId", "level", "message", "locations", "relatedLocations", "codeFlows",
    "partialFingerprints", "rank", "properties",
}  # fmt: skip
RULE_KEYS = {
    "id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration",
    "properties",
}  # fmt: skip
URI = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")


def log(report: Report, base: str = BASE) -> Any:  # noqa: ANN401  (a JSON tree)
    return json.loads(render(report, "sarif", base=base))


def run(report: Report, base: str = BASE) -> Any:  # noqa: ANN401  (a JSON tree)
    (run_log,) = log(report, base)["runs"]
    return run_log


def check(tree: Any) -> None:  # noqa: ANN401  (a JSON tree)
    """Check the rules of sarif-schema-2.1.0.json for everything that profkit writes."""
    assert set(tree) == {"$schema", "version", "runs"}
    assert tree["version"] == "2.1.0"

    for run in tree["runs"]:
        keys = {"tool", "columnKind", "invocations", "results", "originalUriBaseIds"}
        assert {"tool", "results"} <= set(run) <= keys
        assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
        driver = run["tool"]["driver"]
        assert set(driver) == {"name", "version", "rules"}
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(ids) == len(set(ids))
        for rule in driver["rules"]:
            check_rule(rule)
        for result in run["results"]:
            check_result(result, set(ids), run.get("originalUriBaseIds", {}))
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)
            for told in invocation["toolExecutionNotifications"]:
                assert set(told) <= {"level", "message", "associatedRule"}
                assert told["level"] in LEVELS
                check_message(told["message"])
                assert told.get("associatedRule", {"id": ids[0] if ids else ""})["id"] in [*ids, ""]


def check_rule(rule: dict[str, Any]) -> None:
    assert set(rule) <= RULE_KEYS
    assert isinstance(rule["id"], str)
    assert rule["id"]
    for key in ("shortDescription", "fullDescription", "help"):
        if key in rule:
            assert {"text"} <= set(rule[key]) <= {"text", "markdown"}
            check_message(rule[key])
    assert rule.get("defaultConfiguration", {}).get("level", "note") in LEVELS
    tags = rule.get("properties", {}).get("tags", [])
    assert len(tags) == len(set(tags))


def check_message(message: dict[str, Any]) -> None:
    assert isinstance(message["text"], str)
    assert message["text"]


def check_result(result: dict[str, Any], ids: set[str], roots: dict[str, Any]) -> None:
    assert set(result) <= RESULT_KEYS
    assert result["ruleId"] in ids
    assert result["level"] in LEVELS

    check_message(result["message"])
    assert 0 <= result.get("rank", 0) <= 100
    assert len(result["locations"]) == 1

    related = result.get("relatedLocations", [])
    assert [place["id"] for place in related] == list(range(1, len(related) + 1))
    for place in (*result["locations"], *related):
        assert set(place) <= {"id", "physicalLocation", "logicalLocations", "message"}
        if "physicalLocation" in place:
            artifact = place["physicalLocation"]["artifactLocation"]
            assert URI.fullmatch(artifact["uri"])
            assert artifact.get("uriBaseId", "SRCROOT") in {*roots, "SRCROOT"}
            assert "uriBaseId" not in artifact or artifact["uriBaseId"] in roots
            assert place["physicalLocation"].get("region", {"startLine": 1})["startLine"] >= 1
    for root in roots.values():
        assert URI.fullmatch(root["uri"])
        assert root["uri"].startswith("file:///")
        assert root["uri"].endswith("/")
    assert all(isinstance(value, str) for value in result["partialFingerprints"].values())


EVERY = {
    "gpu": reports.build_gpu_report(),
    "cpu": reports.build_cpu_report(),
    "empty": reports.empty_report(),
    "unchecked": reports.unchecked_report(),
    "watched": reports.watched_report(),
    "snapshot": reports.build_snapshot_report(2),
}


@pytest.mark.parametrize("report", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("base", [BASE, ""])
def test_every_log_follows_the_standard(report: Report, base: str) -> None:
    check(log(report, base))


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_logs_with_hostile_names_follow_the_standard(text: str) -> None:
    check(log(reports.build_hostile_report(text)))


def test_a_finding_is_a_result_on_its_source_line_with_level_rank_and_cost() -> None:
    report = reports.build_gpu_report()
    first, second = run(report)["results"]

    (place,) = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 31},
    }
    assert place["logicalLocations"] == [{"fullyQualifiedName": "main", "kind": "function"}]
    assert (first["ruleId"], first["level"], second["level"]) == ("DAT001", "warning", "error")

    finding = report.findings[0]
    assert first["message"]["text"].startswith(finding.message)
    assert finding.fix in first["message"]["text"]

    breakdown = report.summary.breakdown
    assert breakdown is not None
    assert breakdown.per_step_ns is not None
    assert first["rank"] == pytest.approx(65e6 / breakdown.per_step_ns * 100, abs=0.01)
    assert first["properties"]["confidence"] == "high"
    assert first["properties"]["cost"] == {
        "ns": 390_000_000,
        "per_step_ns": 65_000_000,
        "basis": "upper-bound",
    }

    other_place, holder = second["relatedLocations"]
    assert other_place["physicalLocation"]["region"]["startLine"] == 7
    (chain,) = report.findings[1].holders
    assert holder["logicalLocations"][0]["fullyQualifiedName"] == "".join(chain)


def test_skipped_checks_and_faults_are_notifications() -> None:
    run_log = run(reports.build_gpu_report())
    notes = run_log["invocations"][0]["toolExecutionNotifications"]
    assert [(note["associatedRule"]["id"], note["level"]) for note in notes] == [
        ("SYN001", "note"),
        ("DAT003", "note"),
        ("MEM002", "note"),
        ("PRF001", "note"),
    ]
    assert "The recording has no stacks." in notes[0]["message"]["text"]
    assert {result["ruleId"] for result in run_log["results"]} == {"DAT001", "MEM001"}


def test_rules_with_findings_have_their_page_and_title() -> None:
    rule_of = {
        rule["id"]: rule for rule in run(reports.build_gpu_report())["tool"]["driver"]["rules"]
    }
    info = next(rule.INFO for rule in rules() if rule.INFO.id == "DAT001")
    assert rule_of["DAT001"]["name"] == info.name
    assert rule_of["DAT001"]["shortDescription"]["text"] == info.title
    page = rule_of["DAT001"]["help"]
    assert "## How to fix it" in page["markdown"]
    assert page["markdown"].count("```") == 4
    assert "`num_workers=0`" in page["markdown"]
    assert "`" not in page["text"]
    assert "help" not in rule_of["SYN001"]


def test_a_fingerprint_ignores_line_numbers_and_times_and_is_unique() -> None:
    def prints(*findings: Finding) -> list[str]:
        report = replace(reports.build_gpu_report(), findings=findings)
        return [
            result["partialFingerprints"]["primaryLocationLineHash"]
            for result in run(report)["results"]
        ]

    starved = reports.build_starved()
    moved = replace(
        starved, locations=(replace(starved.locations[0], line=99),), message="Later.", n=7
    )
    elsewhere = replace(starved, locations=(replace(starved.locations[0], function="other"),))
    assert prints(starved) == prints(moved)
    assert prints(starved) != prints(elsewhere)
    first, second = prints(starved, starved)
    assert first.partition(":")[0] == second.partition(":")[0]
    assert first != second


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("/home/me/project/a b#c.py", "a%20b%23c.py"),
        ("/elsewhere/x.py", "file:///elsewhere/x.py"),
        ("C:\\code\\x.py", "file:///C:/code/x.py"),
        ("<ipython-input-3>", "%3Cipython-input-3%3E"),
        ("pfad/ü.py", "pfad/%C3%BC.py"),
    ],
)
def test_files_are_uris(file: str, uri: str) -> None:
    finding = replace(reports.build_starved(), locations=(Location(file, 3, "f"),))
    (result,) = run(replace(reports.build_gpu_report(), findings=(finding,)))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    assert unquote(uri).replace("file:///C:", "C:").rpartition("/")[2] in file.replace("\\", "/")


def test_a_finding_without_a_source_line_is_on_the_recording() -> None:
    finding = replace(reports.build_starved(), locations=())
    report = replace(reports.build_gpu_report(), findings=(finding,))
    (result,) = run(report)["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert report.source.path.endswith(artifact["uri"])


def test_results_above_the_limit_of_code_hosts_are_omitted_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sarif.MAX_RESULTS == 25_000
    monkeypatch.setattr(sarif, "MAX_RESULTS", 40)
    report = reports.build_gpu_report()
    report = replace(report, findings=(reports.build_starved(),) * 50)
    run_log = run(report)
    assert len(run_log["results"]) == 40
    note = run_log["invocations"][0]["toolExecutionNotifications"][-1]
    assert note["message"]["text"] == "10 more findings with lower costs are omitted."


def test_several_reports_are_one_run() -> None:
    products = [
        render(report, "sarif", base=BASE)
        for report in (reports.build_gpu_report(), reports.watched_report())
    ]
    joined = json.loads(sarif.together(products))
    check(joined)
    (joined_run,) = joined["runs"]
    assert [result["ruleId"] for result in joined_run["results"]] == ["DAT001", "MEM001", "MEM004"]
    assert len(joined_run["invocations"]) == 2
    twice = json.loads(sarif.together([products[0], products[0]]))["runs"][0]["results"]
    hashes = [result["partialFingerprints"]["primaryLocationLineHash"] for result in twice]
    assert len(set(hashes)) == 4


def frames(result: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return the file, line and function of each step of a result's only code flow."""
    (flow,) = result["codeFlows"]
    (thread,) = flow["threadFlows"]
    places = [step["location"] for step in thread["locations"]]
    return [
        (
            place["physicalLocation"]["artifactLocation"]["uri"],
            place["physicalLocation"]["region"]["startLine"],
            place["logicalLocations"][0]["fullyQualifiedName"],
        )
        for place in places
    ]


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401  (a JSON tree)
    """Return the run of a recording whose program waits for a device two calls down."""
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 5, "main"), b.frame("train.py", 12, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=900_000)
            with b.frame("losses.py", 3, "log"):
                b.item()
    studied = study(b.write(tmp_path_factory.mktemp("waited") / "t.json"))
    product = render(studied.report, "sarif", base=BASE, recording=studied.recording)
    return json.loads(product)


def test_the_call_stack_of_a_finding_is_its_code_flow(
    waited: Any,  # noqa: ANN401  (a JSON tree)
) -> None:
    check(waited)
    results = {result["ruleId"]: result for result in waited["runs"][0]["results"]}
    assert frames(results["SYN001"]) == [
        ("train.py", 5, "main"),
        ("train.py", 12, "train_step"),
        ("losses.py", 3, "log"),
    ]


def test_an_allocation_site_has_its_recorded_stack() -> None:
    report = reports.build_snapshot_report(1)
    memory = report.summary.memory
    assert memory is not None
    finding = replace(reports.build_starved(), locations=(Location("model.py", 9, "forward"),))
    stack = (Frame("model.py", 9, "forward"), Frame("train.py", 4, "main"))
    site = AllocationSite(finding.locations[0], stack, n=1, bytes=64)
    devices = tuple(replace(device, peak_sites=(site,)) for device in memory.devices)
    memory = replace(memory, devices=devices)
    summary = replace(report.summary, memory=memory)
    (result,) = run(replace(report, summary=summary, findings=(finding,)))["results"]
    assert frames(result) == [("train.py", 4, "main"), ("model.py", 9, "forward")]


def test_holders_are_related_locations_by_name() -> None:
    chains = (("__main__.history", "[17]"), ("train.Trainer", ".losses"))
    finding = replace(reports.build_starved(), holders=chains)
    report = replace(reports.build_gpu_report(), findings=(finding,))
    check(log(report))
    (result,) = run(report)["results"]
    holders = [place for place in result["relatedLocations"] if "physicalLocation" not in place]
    assert [holder["logicalLocations"][0] for holder in holders] == [
        {"fullyQualifiedName": "__main__.history[17]", "kind": "variable"},
        {"fullyQualifiedName": "train.Trainer.losses", "kind": "variable"},
    ]


@pytest.fixture(scope="module")
def standard() -> Draft7Validator:
    """Return the schema of the standard."""
    path = Path(__file__).parents[2] / "build/sarif/package/lib/schemas/sarif-2.1.0-rtm.5.json"
    if not path.is_file():
        pytest.skip("the SARIF schema is missing: `make install` fetches it if npm is installed")
    return Draft7Validator(json.loads(path.read_text(encoding="utf-8")))


def test_logs_validate_against_the_schema_of_the_standard(
    standard: Draft7Validator,
    waited: Any,  # noqa: ANN401  (a JSON tree)
) -> None:
    held = replace(reports.build_starved(), holders=(("a", ".b"),))
    trees = [log(report, base) for report in EVERY.values() for base in (BASE, "")]
    trees += [log(reports.build_hostile_report(text)) for text in reports.HOSTILE]
    trees += [waited, log(replace(reports.build_gpu_report(), findings=(held,)))]
    assert [error.message for tree in trees for error in standard.iter_errors(tree)] == []
    assert list(standard.iter_errors({**waited, "version": "2.0.0"}))
