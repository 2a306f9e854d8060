"""The report as JSON, whose layout other programs can rely on.

Times are integer nanoseconds, sizes integer bytes, shares from 0 to 1; a figure that is not known
is null. ``report.schema.json`` in this folder is the layout, which :func:`build_schema` makes from
the report's dataclasses; ``python -m profkit.renderers.json_report`` prints it.
"""

import inspect
import json
import re
from dataclasses import replace
from typing import Any, Final

import msgspec

from profkit.dataclass import dataclass
from profkit.json_text import encode
from profkit.model.change import ProgramChange
from profkit.model.check import Check
from profkit.model.difference import Difference
from profkit.model.explanation import Explanation
from profkit.model.finding import Finding
from profkit.model.history import History
from profkit.model.rank_lanes import JobLanes, LaneSite, RankClock, RankLane
from profkit.model.report import SCHEMA, Report
from profkit.patterns import regex
from profkit.present.bounded import cut_report, page
from profkit.present.finding_ids import finding_ids
from profkit.present.renderer import RendererInfo

INFO = RendererInfo(name="json", suffix=".json", media_type="application/json")

_ATTRIBUTE: Final = regex(r"^ {4}(\w+): (.*(?:\n {6,}.*)*)", re.MULTILINE)
"""A field and its definition in a dataclass's docstring."""
INTERNAL: Final = ("spans", "change", "lanes")
"""Fields of a finding and of the report that refer to the recording, and are not part of the JSON.
"""

_ID: Final = "Names the finding in this report, as in `profkit explain`."


@dataclass(frozen=True)
class Options:
    """How the JSON is laid out.

    Attributes:
        indent: Spaces per level; 0 puts everything on one line.
        budget_bytes: Maximum size of a report, which is then on one line; 0 for all of it.
        cursor: A table and its first row, such as ``findings:5``: only these rows.
    """

    indent: int = 2
    budget_bytes: int = 0
    cursor: str = ""


def render(report: Report, options: Options) -> bytes:
    """Return the report as JSON in UTF-8, with a line end.

    Raises:
        UsageError: The budget is too small, or there is no such table or row.
    """
    tree = _build_tree(report)
    if not (options.budget_bytes or options.cursor):
        return _lay_out(tree, options)

    plain = msgspec.json.decode(encode(tree))
    budget_bytes = options.budget_bytes - 1 if options.budget_bytes else 0  # the line end
    if options.cursor:
        part = page(plain, options.cursor, budget_bytes)
    else:
        part = cut_report(plain, budget_bytes)
    return encode(part) + b"\n"


def _build_tree(report: Report) -> dict[str, Any]:
    """Return the report as a JSON tree; findings have ids."""
    findings, health = _strip(report.findings), _strip(report.health)
    bare = replace(report, findings=findings, health=health, lanes=None)
    tree: dict[str, Any] = msgspec.to_builtins(bare)
    _leave_out_internal([tree, *tree["findings"], *tree["health"]])

    ids = iter(finding_ids((*report.findings, *report.health)))
    for table in ("findings", "health"):
        tree[table] = [{"id": next(ids), **finding} for finding in tree[table]]
    return tree


def _strip(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings without the fields that refer to the recording."""
    return tuple(replace(finding, spans=(), change=None) for finding in findings)


def render_difference(difference: Difference, options: Options) -> bytes:
    """Return a comparison as JSON in UTF-8, with a line end."""
    return _lay_out(msgspec.to_builtins(difference), options)


def render_check(check: Check, options: Options) -> bytes:
    """Return a check of budgets as JSON in UTF-8, with a line end."""
    bare = [replace(result, causes=_strip(result.causes)) for result in check.results]
    tree = msgspec.to_builtins(replace(check, results=tuple(bare)))
    for result in tree["results"]:
        _leave_out_internal(result["causes"])
    return _lay_out(tree, options)


def render_explanation(explanation: Explanation, options: Options) -> bytes:
    """Return a finding and the facts on it as JSON in UTF-8, with a line end."""
    (bare,) = _strip((explanation.finding,))
    tree = msgspec.to_builtins(replace(explanation, finding=bare))
    _leave_out_internal([tree["finding"]])
    return _lay_out(tree, options)


def render_history(history: History, options: Options) -> bytes:
    """Return figures and findings over commits as JSON in UTF-8, with a line end."""
    return _lay_out(msgspec.to_builtins(history), options)


def _leave_out_internal(parts: list[dict[str, Any]]) -> None:
    for part in parts:
        for name in INTERNAL:
            part.pop(name, None)


def _lay_out(tree: Any, options: Options) -> bytes:  # noqa: ANN401  (a JSON tree)
    indent = options.indent if options.indent > 0 else -1
    return msgspec.json.format(encode(tree), indent=indent) + b"\n"


def build_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report, each field with its definition.

    Source: https://json-schema.org/draft/2020-12
    """
    _, parts = msgspec.json.schema_components(
        [Report], schema_hook=lambda _: {"type": "array"}, ref_template="#/$defs/{name}"
    )
    for internal in (ProgramChange, JobLanes, RankLane, LaneSite, RankClock):
        parts.pop(internal.__name__, None)
    for part in parts.values():
        if "properties" in part:
            _describe_part(part)

    # Ids are given when a report is written: the dataclass has none.
    finding = parts["Finding"]
    id_property = {"id": {"type": "string", "description": _ID}}
    finding["properties"] = id_property | finding["properties"]
    finding["required"].insert(0, "id")

    whole = parts.pop("Report")
    whole["title"] = "profkit report"
    whole["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": parts}


def _describe_part(part: dict[str, Any]) -> None:
    """Add the definitions of a dataclass's docstring to its schema; require every field."""
    properties = part["properties"]
    for name in INTERNAL:
        properties.pop(name, None)
    # A field with a default is written all the same.
    part["required"] = list(properties)
    for field in properties.values():
        field.pop("default", None)

    docstring = inspect.cleandoc(part.get("description", ""))
    about, _, attributes = docstring.partition("Attributes:")
    part["description"] = " ".join(about.split())
    for name, definition in _ATTRIBUTE.findall(attributes):
        if name in properties:
            text = definition.replace("``", "`")
            properties[name]["description"] = " ".join(text.split())


def write_schema() -> str:
    """Return the JSON Schema as it is shipped."""
    return json.dumps(build_schema(), indent=2) + "\n"
