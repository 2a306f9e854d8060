"""The report as SARIF 2.1.0, for code hosts and editors: each finding on the line that it is about.

A finding's severity is its level, what it costs is among its properties, and its place comes first
among the results by cost. Fingerprints rest on the rule, the file and the function, so a finding is
known again when lines move. Other lines of a finding and the chains that hold an object are related
locations; the calls that lead to its line, where they were recorded, are a code flow of the
costliest. What was not checked, and faults of the recording, are notifications of
the run: "clean" and "not looked at" do not look alike. Where no line is known the recording itself
is the place.

Source: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0"; "SARIF support for
code scanning" in GitHub's documentation (at most 25,000 results, 1,000 locations a result).
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final
from urllib.parse import quote

import msgspec

from profkit.engine.detector import Rule
from profkit.engine.registry import rules
from profkit.model.finding import Finding, Unchecked
from profkit.model.location import Frame, Location
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.call_path import call_path
from profkit.present.headline import cost_share, cost_text
from profkit.present.renderer import LoadedRecording, RendererInfo
from profkit.present.rule_page import Passage, rule_page
from profkit.units import format_count

INFO = RendererInfo(name="sarif", suffix=".sarif", media_type="application/sarif+json")

MOST_RESULTS: Final = 25_000
MOST_LOCATIONS: Final = 100
MOST_PATHS: Final = 100
"""Findings, the costliest first, whose calls are looked up in the recording."""
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "SRCROOT"
_SECTIONS: Final = ("What it finds", "Why it matters", "How to fix it", "Example", "Use instead")
_TAGS: Final = {"MEM": "memory"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What paths are relative to.

    Attributes:
        base: An absolute folder, the root of the source code; files inside are given relative to
            it, as code hosts want them.
        recording: What the report was made from; without it there are the calls that the report
            has kept.
    """

    base: str = ""
    recording: LoadedRecording | None = None


def render(report: Report, options: Options) -> bytes:
    """The report as SARIF: a log of one run.

    Args:
        options: What paths are relative to, and what the report was made from.
    """
    base = options.base
    results = [_result(report, each, base) for each in report.findings[:MOST_RESULTS]]
    for finding, result in zip(report.findings[:MOST_PATHS], results, strict=False):
        path = call_path(report, options.recording, finding)
        if path:
            result["codeFlows"] = [_flow(report, path, base)]
    told = [*(_unchecked(each) for each in report.unchecked)]
    told += [_fault(each) for each in report.health]
    n_more = len(report.findings) - len(results)
    if n_more:
        text = f"{format_count(n_more)} more findings, each less costly, are left out."
        told.append({"level": "note", "message": {"text": text}})
    run: Json = {
        "tool": {"driver": _driver(report)},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": told}],
        "results": results,
    }
    if base:
        run["originalUriBaseIds"] = {_ROOT: {"uri": f"{_absolute(base).rstrip('/')}/"}}
    return _log(run)


def together(products: Sequence[bytes]) -> bytes:
    """The results of several reports as one run: code hosts want one run a tool.

    Args:
        products: A log each.
    """
    (run, *others) = [msgspec.json.decode(product)["runs"][0] for product in products]
    driver = run["tool"]["driver"]
    for other in others:
        known = {rule["id"] for rule in driver["rules"]}
        driver["rules"] += [
            rule for rule in other["tool"]["driver"]["rules"] if rule["id"] not in known
        ]
        run["invocations"] += other["invocations"]
        run["results"] += other["results"]
    driver["rules"].sort(key=lambda rule: rule["id"])
    return _log(run)


def _log(run: Json) -> bytes:
    """A log of one run, its fingerprints told apart where two results have the same."""
    seen: Counter[str] = Counter()
    for result in run["results"]:
        prints = result["partialFingerprints"]
        (key,) = {value.partition(":")[0] for value in prints.values()}
        seen[key] += 1
        result["partialFingerprints"] = dict.fromkeys(prints, f"{key}:{seen[key]}")
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=1) + b"\n"


def _driver(report: Report) -> Json:
    """The tool, and every rule that the run tells of; with its page where something was found."""
    known = {rule.INFO.id: rule for rule in rules()}
    found = {each.rule: each.title for each in report.findings}
    titles = {each.rule: each.title for each in report.health} | found
    told = sorted({*titles, *(each.rule for each in report.unchecked)})
    return {
        "name": "profkit",
        "version": report.profkit,
        "rules": [
            _rule(known[rule], with_help=rule in found)
            if rule in known
            else _unknown_rule(rule, titles.get(rule, ""))
            for rule in told
        ],
    }


def _rule(rule: Rule, *, with_help: bool) -> Json:
    info = rule.INFO
    card: Json = {
        "id": info.id,
        "name": info.name,
        "shortDescription": {"text": info.title},
        "defaultConfiguration": {"level": info.severity},
        "properties": {"tags": ["performance", _TAGS.get(info.id[:3], "time")]},
    }
    if with_help:
        page = rule_page(rule)
        sections = [(title, page[title]) for title in _SECTIONS if title in page]
        first = next(iter(page.get(_SECTIONS[0], ())), Passage(info.title, is_code=False))
        card["fullDescription"] = {"text": _without_marks(first.text)}
        card["help"] = {"text": _plain_page(sections), "markdown": _markdown_page(sections)}
    return card


Sections = Sequence[tuple[str, Sequence[Passage]]]


def _plain_page(sections: Sections) -> str:
    blocks = []
    for title, passages in sections:
        blocks.append(f"{title}:")
        blocks += [each.text if each.is_code else _without_marks(each.text) for each in passages]
    return "\n\n".join(blocks)


def _markdown_page(sections: Sections) -> str:
    blocks = []
    for title, passages in sections:
        blocks.append(f"## {title}")
        blocks += [
            f"```python\n{each.text}\n```" if each.is_code else each.text.replace("``", "`")
            for each in passages
        ]
    return "\n\n".join(blocks)


def _without_marks(text: str) -> str:
    return text.replace("``", "")


def _unknown_rule(rule: str, title: str) -> Json:
    """A rule that is not installed here."""
    return {"id": visible(rule) or "unknown", "shortDescription": {"text": _said(title or rule)}}


def _result(report: Report, finding: Finding, base: str) -> Json:
    cost = cost_text(report, finding)
    said = " ".join(part for part in (finding.message, finding.fix) if part)
    places = finding.locations[: MOST_LOCATIONS + 1] or (Location(),)
    located = [_location(report, place, base) for place in places]
    fingerprint = f"{_fingerprint(finding, base)}:1"
    result: Json = {
        "ruleId": visible(finding.rule) or "unknown",
        "level": finding.severity,
        "message": {"text": _said(f"{said} ({cost})" if cost else said)},
        "locations": located[:1],
        "partialFingerprints": {
            "primaryLocationLineHash": fingerprint,
            "profkitFinding/v1": fingerprint,
        },
        "properties": _properties(finding),
    }
    share = cost_share(report, finding)
    if share is not None:
        result["rank"] = round(min(share, 1.0) * 100, 2)
    related = [*located[1:], *map(_holder, finding.holders[:MOST_LOCATIONS])]
    if related:
        result["relatedLocations"] = [
            {**place, "id": number} for number, place in enumerate(related, start=1)
        ]
    return result


def _holder(chain: Sequence[str]) -> Json:
    """Who holds a live object: a place among the program's names, of which no line is known."""
    name = visible("".join(chain)) or "(no name)"
    return {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "variable"}],
        "message": {"text": f"Held by {name}"},
    }


def _flow(report: Report, path: Sequence[Frame], base: str) -> Json:
    """The calls that lead to a finding, outermost first; of too many the innermost."""
    steps = [
        {"location": _location(report, Location(each.file, each.line, each.function), base)}
        for each in path[-MOST_LOCATIONS:]
    ]
    return {"message": {"text": "The calls that lead here"}, "threadFlows": [{"locations": steps}]}


def _properties(finding: Finding) -> Json:
    cost = {key: value for key, value in asdict(finding.cost).items() if value is not None}
    found: Json = {"confidence": finding.confidence, "n": finding.n}
    if len(cost) > 1:
        found["cost"] = cost
    if finding.holders:
        found["holders"] = [visible("".join(chain)) for chain in finding.holders]
    return found


def _location(report: Report, where: Location, base: str) -> Json:
    logical = [
        {"fullyQualifiedName": visible(name), "kind": kind}
        for name, kind in ((where.function, "function"), (where.module, "module"))
        if name
    ]
    found: Json = {"logicalLocations": logical} if logical else {}
    if where.file:
        region = {"startLine": where.line} if where.line is not None and where.line > 0 else {}
        found["physicalLocation"] = {"artifactLocation": _artifact(where.file, base)}
        if region:
            found["physicalLocation"]["region"] = region
    elif report.source.path:
        # Code hosts refuse a result without a file; what it rests on is the recording.
        recording = _artifact(report.source.path, base)
        found["physicalLocation"] = {"artifactLocation": recording}
    if where.op:
        found["message"] = {"text": _said(where.op)}
    return found


def _artifact(file: str, base: str) -> Json:
    """A file by its URI, relative to the root where it is inside."""
    path = short_path(file, base)
    if _is_absolute(path):
        return {"uri": _absolute(path)}
    uri = _quoted(path)
    return {"uri": uri, "uriBaseId": _ROOT} if base else {"uri": uri}


def _is_absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def _absolute(path: str) -> str:
    quoted = _quoted(path.replace("\\", "/"), safe="/:")
    return f"file://{quoted}" if quoted.startswith("/") else f"file:///{quoted}"


def _quoted(path: str, safe: str = "/") -> str:
    return quote(path.encode("utf-8", "backslashreplace"), safe=safe)


def _fingerprint(finding: Finding, base: str) -> str:
    """What stays the same when lines move and times change."""
    where = finding.locations[0] if finding.locations else Location()
    file = short_path(where.file or "", base)
    parts = (finding.rule, file, where.function, where.op, where.module)
    text = "\0".join(part or "" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _unchecked(each: Unchecked) -> Json:
    return _notification(each.rule, "note", f"Not checked: {each.reason} {each.remedy}")


def _fault(finding: Finding) -> Json:
    return _notification(finding.rule, finding.severity, f"{finding.message} {finding.fix}")


def _notification(rule: str, level: str, text: str) -> Json:
    return {
        "level": level,
        "message": {"text": _said(text)},
        "associatedRule": {"id": visible(rule) or "unknown"},
    }


def _said(text: str) -> str:
    """A sentence; the standard wants at least something."""
    return visible(" ".join(text.split())) or "(nothing said)"
