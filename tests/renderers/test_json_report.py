"""The JSON report follows its schema."""

import json
from pathlib import Path

import jsonschema
import pytest

from profkit.model.report import SCHEMA, Report
from profkit.renderers import json_report
from tests.renderers import reports

SHIPPED = Path(json_report.__file__).parent / "report.schema.json"


def as_json(report: Report, indent: int = 2) -> str:
    return json_report.render(report, json_report.Options(indent=indent)).decode()


def test_the_shipped_schema_matches_the_dataclasses() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == json_report.write_schema(), "make docs"


@pytest.mark.parametrize(
    "report",
    [
        reports.build_gpu_report(),
        reports.build_cpu_report(),
        reports.empty_report(),
        reports.unchecked_report(),
        reports.watched_report(),
        reports.build_snapshot_report(2),
        *(reports.build_hostile_report(text) for text in reports.HOSTILE),
    ],
)
def test_every_report_validates(report: Report) -> None:
    schema = json.loads(SHIPPED.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(as_json(report)), schema)


def test_a_report_with_a_missing_key_or_a_wrong_value_does_not_validate() -> None:
    schema = json.loads(SHIPPED.read_text(encoding="utf-8"))
    tree = json.loads(as_json(reports.build_gpu_report()))
    del tree["summary"]["window_ns"]
    with pytest.raises(jsonschema.ValidationError, match="window_ns"):
        jsonschema.validate(tree, schema)
    tree = json.loads(as_json(reports.build_gpu_report()))
    tree["findings"][0]["severity"] = "fatal"
    with pytest.raises(jsonschema.ValidationError, match="fatal"):
        jsonschema.validate(tree, schema)


def test_spans_and_changes_are_not_in_the_json() -> None:
    report = reports.build_gpu_report()
    assert report.findings[0].spans
    assert "spans" not in as_json(report)


def test_every_field_of_the_schema_is_defined() -> None:
    schema = json_report.build_schema()
    undefined = [
        f"{name}.{field}"
        for name, part in schema["$defs"].items()
        for field, about in part.get("properties", {}).items()
        if not about.get("description")
    ]
    assert [name for name in undefined if not name.startswith("RecordedWith.")] == []


def test_figures_match_the_report() -> None:
    tree = json.loads(as_json(reports.build_gpu_report()))
    assert tree["schema"] == SCHEMA
    assert tree["summary"]["devices"][0]["busy_ns"] == 640_000_000
    assert tree["findings"][0]["cost"] == {
        "ns": 390_000_000,
        "bytes": None,
        "per_step_ns": 65_000_000,
        "per_step_bytes": None,
        "basis": "upper-bound",
        "low_ns": None,
        "high_ns": None,
    }
    assert tree["findings"][1]["holders"] == [["__main__.losses", "[17]"]]


def test_without_indent_it_is_one_line() -> None:
    assert as_json(reports.build_gpu_report(), indent=0).count("\n") == 1
