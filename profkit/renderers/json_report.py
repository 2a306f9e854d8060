"""The report as JSON, whose layout other programs can rely on.

Times are integer nanoseconds, sizes integer bytes, shares from 0 to 1; a figure that is not known
is null. ``report.schema.json`` in this folder is the layout, which :func:`schema` makes from the
report's dataclasses; ``python -m profkit.renderers.json_report`` prints it.
"""

import inspect
import json
import re
import sys
from dataclasses import replace
from typing import Any, Final

import msgspec

from profkit.dataclass import dataclass
from profkit.model.change import ProgramChange
from profkit.model.check import Check
from profkit.model.difference import Difference
from profkit.model.finding import Finding
from profkit.model.rank_lanes import JobLanes, LaneSite, RankClock, RankLane
from profkit.model.report import SCHEMA, Report
from profkit.present.renderer import RendererInfo

INFO = RendererInfo(name="json", suffix=".json", media_type="application/json")

_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {6,}.*)*)", re.MULTILINE)
"""A field and its definition in a dataclass's docstring."""
INTERNAL: Final = ("spans", "change", "lanes")
"""Fields of a finding and of the report that refer to the recording, and are no part of the JSON.
"""


@dataclass(frozen=True)
class Options:
    """How the JSON is laid out.

    Attributes:
        indent: Spaces per level; 0 puts everything on one line.
    """

    indent: int = 2


def render(report: Report, options: Options) -> bytes:
    """The report as JSON in UTF-8, with a line end."""
    findings, health = _bare(report.findings), _bare(report.health)
    tree = msgspec.to_builtins(replace(report, findings=findings, health=health, lanes=None))
    _leave_out_internal([tree, *tree["findings"], *tree["health"]])
    return _encoded(tree, options)


def _bare(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings without what refers to the recording."""
    return tuple(replace(finding, spans=(), change=None) for finding in findings)


def render_difference(difference: Difference, options: Options) -> bytes:
    """A comparison as JSON in UTF-8, with a line end."""
    return _encoded(msgspec.to_builtins(difference), options)


def render_check(check: Check, options: Options) -> bytes:
    """A check of budgets as JSON in UTF-8, with a line end."""
    bare = [replace(each, causes=_bare(each.causes)) for each in check.results]
    tree = msgspec.to_builtins(replace(check, results=tuple(bare)))
    for result in tree["results"]:
        _leave_out_internal(result["causes"])
    return _encoded(tree, options)


def _leave_out_internal(parts: list[dict[str, Any]]) -> None:
    for part in parts:
        for name in INTERNAL:
            part.pop(name, None)


def _encoded(tree: Any, options: Options) -> bytes:  # noqa: ANN401  (a JSON tree)
    indent = options.indent if options.indent > 0 else -1
    return msgspec.json.format(encoded(tree), indent=indent) + b"\n"


def encoded(tree: Any) -> bytes:  # noqa: ANN401  (a JSON tree)
    """A JSON tree as text in UTF-8; what cannot be encoded is escaped."""
    try:
        return msgspec.json.encode(tree)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(tree))


def _without_surrogates(tree: Any) -> Any:  # noqa: ANN401  (any part of a JSON tree)
    """A JSON tree whose strings are valid Unicode: paths may hold bytes that are not."""
    if isinstance(tree, str):
        return tree.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(tree, list | tuple):
        return [_without_surrogates(item) for item in tree]
    if isinstance(tree, dict):
        return {_without_surrogates(key): _without_surrogates(tree[key]) for key in tree}
    return tree


def schema() -> dict[str, Any]:
    """The JSON Schema of a report, each field with its definition.

    Source: https://json-schema.org/draft/2020-12
    """
    _, parts = msgspec.json.schema_components(
        [Report], schema_hook=lambda _: {"type": "array"}, ref_template="#/$defs/{name}"
    )
    for internal in (ProgramChange, JobLanes, RankLane, LaneSite, RankClock):
        parts.pop(internal.__name__, None)
    for part in parts.values():
        if "properties" not in part:
            continue
        for name in INTERNAL:
            part["properties"].pop(name, None)
        part["required"] = list(part["properties"])
        about, _, attributes = inspect.cleandoc(part.get("description", "")).partition(
            "Attributes:"
        )
        part["description"] = " ".join(about.split())
        for name, definition in _ATTRIBUTE.findall(attributes):
            if name in part["properties"]:
                one = part["properties"][name]
                one["description"] = " ".join(definition.replace("``", "`").split())
        for one in part["properties"].values():
            one.pop("default", None)
    whole = parts.pop("Report")
    whole["title"] = "profkit report"
    whole["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": parts}


def schema_text() -> str:
    """The JSON Schema as it is shipped."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
