"""The report as SARIF 2.1.0, for code hosts and editors: each finding on its source line.

A finding's severity is its level, its share of the step time its rank, and its cost a property.
Fingerprints depend on the rule, the file and the function, so a finding is recognized when lines
move. The other lines of a finding and its reference chains are related locations; the call stack of
its line, where it was recorded, is a code flow of the findings with the highest costs. Skipped
checks and faults of the recording are notifications of the run. A finding without a source line is
placed on the recording. Code hosts need paths relative to the root of the source code, ``base``.

Source: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0"; "SARIF support for
code scanning" in GitHub's documentation (at most 25,000 results, 1,000 locations per result).
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final
from urllib.parse import quote

import msgspec

from profkit.engine.detector import Rule
from profkit.engine.registry import rules
from profkit.model.check import BudgetResult, Check
from profkit.model.finding import Finding
from profkit.model.location import Frame, Location
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.check_document import cause_texts, outcome_text
from profkit.present.finding_events import find_call_path
from profkit.present.labels import cost_share, cost_text
from profkit.present.renderer import RecordingOptions as Options
from profkit.present.renderer import RendererInfo
from profkit.present.rule_page import Passage, rule_page
from profkit.units import format_count

__all__ = ["INFO", "Options", "render", "render_check", "together"]

INFO = RendererInfo(name="sarif", suffix=".sarif", media_type="application/sarif+json")

MAX_RESULTS: Final = 25_000
MAX_LOCATIONS: Final = 100
MAX_CODE_FLOWS: Final = 100
"""Findings, highest cost first, whose call stacks are searched for in the recording."""
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "SRCROOT"
_SECTIONS: Final = ("What it finds", "Why it matters", "How to fix it", "Example", "Use instead")
_FINGERPRINTS: Final = ("primaryLocationLineHash", "profkitFinding/v1")
_TAGS: Final = {"MEM": "memory"}

Json = dict[str, Any]
Sections = Sequence[tuple[str, Sequence[Passage]]]


def render(report: Report, options: Options) -> bytes:
    """Return the report as SARIF: a log of one run."""
    base = options.base
    results = [_build_result(report, finding, base) for finding in report.findings[:MAX_RESULTS]]
    for finding, result in zip(report.findings[:MAX_CODE_FLOWS], results, strict=False):
        path = find_call_path(report, options.recording, finding)
        if path:
            result["codeFlows"] = [_build_flow(report, path, base)]

    notifications = [
        _notify(check.rule, "note", f"Check skipped: {check.reason} {check.remedy}")
        for check in report.unchecked
    ]
    notifications += [
        _notify(fault.rule, fault.severity, f"{fault.message} {fault.fix}")
        for fault in report.health
    ]
    n_more = len(report.findings) - len(results)
    if n_more:
        text = f"{format_count(n_more)} more findings with lower costs are omitted."
        notifications.append({"level": "note", "message": {"text": text}})

    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notifications}
    run: Json = {
        "tool": {"driver": _describe_driver(report)},
        "columnKind": "utf16CodeUnits",
        "invocations": [invocation],
        "results": results,
    }
    return _write_log(run, base)


def render_check(check: Check, options: Options) -> bytes:
    """Return the budgets that are not kept as SARIF, on the lines that explain them."""
    base = options.base
    path = check.paths[0] if check.paths else ""
    budgets = [
        {"id": _budget_id(result), "shortDescription": {"text": f"Budget: {result.title}"}}
        for result in sorted(check.failed, key=_budget_id)
    ]
    run: Json = {
        "tool": {"driver": {"name": "profkit", "version": check.profkit, "rules": budgets}},
        "columnKind": "utf16CodeUnits",
        "results": [_build_budget_result(result, path, base) for result in check.failed],
    }
    return _write_log(run, base)


def _budget_id(result: BudgetResult) -> str:
    return f"budget/{visible(result.name)}"


def _build_budget_result(result: BudgetResult, path: str, base: str) -> Json:
    places = result.locations or [Location()]
    located = [_locate(path, where, base) for where in places[: MAX_LOCATIONS + 1]]
    texts = [outcome_text(result), *cause_texts(result, base)]
    # The figure changes with each run: the name alone identifies a budget.
    key = hashlib.sha256(_budget_id(result).encode()).hexdigest()[:16]
    return {
        "ruleId": _budget_id(result),
        "level": "error",
        "message": {"text": _text(" ".join(texts))},
        "locations": located[:1],
        "partialFingerprints": dict.fromkeys(_FINGERPRINTS, f"{key}:1"),
    }


def together(products: Sequence[bytes]) -> bytes:
    """Join the results of several logs in one run: code hosts expect one run per tool."""
    (joined, *runs) = [msgspec.json.decode(product)["runs"][0] for product in products]
    driver = joined["tool"]["driver"]
    for run in runs:
        listed = {rule["id"] for rule in driver["rules"]}
        driver["rules"] += [
            rule for rule in run["tool"]["driver"]["rules"] if rule["id"] not in listed
        ]
        joined["invocations"] += run["invocations"]
        joined["results"] += run["results"]
    driver["rules"].sort(key=lambda rule: rule["id"])
    return _write_log(joined, "")


def _write_log(run: Json, base: str) -> bytes:
    """Return a log of one run, with equal fingerprints numbered.

    Args:
        base: The root of paths; empty if there is none, or if the run names it already.
    """
    if base:
        run["originalUriBaseIds"] = {_ROOT: {"uri": f"{_absolute(base).rstrip('/')}/"}}

    # Code hosts take results with equal fingerprints for one.
    n_by_key: Counter[str] = Counter()
    for result in run["results"]:
        prints = result["partialFingerprints"]
        (key,) = {value.partition(":")[0] for value in prints.values()}
        n_by_key[key] += 1
        result["partialFingerprints"] = dict.fromkeys(prints, f"{key}:{n_by_key[key]}")

    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=1) + b"\n"


def _describe_driver(report: Report) -> Json:
    """Return the tool and the rules that the run mentions; rules with findings have their page."""
    installed = {rule.INFO.id: rule for rule in rules()}
    finding_titles = {finding.rule: finding.title for finding in report.findings}
    titles = {fault.rule: fault.title for fault in report.health} | finding_titles
    mentioned = sorted({*titles, *(check.rule for check in report.unchecked)})
    return {
        "name": "profkit",
        "version": report.profkit,
        "rules": [
            _describe_rule(installed[rule], with_help=rule in finding_titles)
            if rule in installed
            else _unknown_rule(rule, titles.get(rule, ""))
            for rule in mentioned
        ],
    }


def _describe_rule(rule: Rule, *, with_help: bool) -> Json:
    info = rule.INFO
    described: Json = {
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
        described["fullDescription"] = {"text": first.text.replace("``", "")}
        # Editors show the plain text, and code hosts the Markdown.
        described["help"] = {
            "text": _page(sections, "{}:", "{}", ""),
            "markdown": _page(sections, "## {}", "```python\n{}\n```", "`"),
        }
    return described


def _page(sections: Sections, heading: str, code: str, mark: str) -> str:
    """Return a rule's page as text.

    Args:
        heading: The format of a section's title.
        code: The format of a code block.
        mark: What encloses code within sentences.
    """
    blocks = []
    for title, passages in sections:
        blocks.append(heading.format(title))
        blocks += [
            code.format(passage.text) if passage.is_code else passage.text.replace("``", mark)
            for passage in passages
        ]
    return "\n\n".join(blocks)


def _unknown_rule(rule: str, title: str) -> Json:
    """Return a rule that is not installed on this machine."""
    return {"id": visible(rule) or "unknown", "shortDescription": {"text": _text(title or rule)}}


def _build_result(report: Report, finding: Finding, base: str) -> Json:
    cost = cost_text(report, finding)
    message = " ".join(part for part in (finding.message, finding.fix) if part)
    places = finding.locations[: MAX_LOCATIONS + 1] or (Location(),)
    located = [_locate(report.source.path, place, base) for place in places]
    fingerprint = f"{_fingerprint(finding, base)}:1"

    result: Json = {
        "ruleId": visible(finding.rule) or "unknown",
        "level": finding.severity,
        "message": {"text": _text(f"{message} ({cost})" if cost else message)},
        "locations": located[:1],
        "partialFingerprints": dict.fromkeys(_FINGERPRINTS, fingerprint),
        "properties": _properties(finding),
    }

    share = cost_share(report, finding)
    if share is not None:
        result["rank"] = round(min(share, 1.0) * 100, 2)

    related = [*located[1:], *map(_holder, finding.holders[:MAX_LOCATIONS])]
    if related:
        result["relatedLocations"] = [
            {**place, "id": number} for number, place in enumerate(related, start=1)
        ]
    return result


def _holder(chain: Sequence[str]) -> Json:
    """Return a holder of a live object: a location by name, without a source line."""
    name = visible("".join(chain)) or "(no name)"
    return {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "variable"}],
        "message": {"text": f"Held by {name}"},
    }


def _build_flow(report: Report, path: Sequence[Frame], base: str) -> Json:
    """Return the call stack of a finding, outermost first; if too long, its innermost frames."""
    recording = report.source.path
    locations = (Location(frame.file, frame.line, frame.function) for frame in path)
    steps = [{"location": _locate(recording, where, base)} for where in locations]
    flow = {"locations": steps[-MAX_LOCATIONS:]}
    return {"message": {"text": "Call stack"}, "threadFlows": [flow]}


def _properties(finding: Finding) -> Json:
    cost = {key: value for key, value in asdict(finding.cost).items() if value is not None}
    properties: Json = {"confidence": finding.confidence, "n": finding.n}
    if len(cost) > 1:
        properties["cost"] = cost
    if finding.holders:
        properties["holders"] = [visible("".join(chain)) for chain in finding.holders]
    return properties


def _locate(recording: str, where: Location, base: str) -> Json:
    logical = [
        {"fullyQualifiedName": visible(name), "kind": kind}
        for name, kind in ((where.function, "function"), (where.module, "module"))
        if name
    ]

    location: Json = {"logicalLocations": logical} if logical else {}
    if where.file:
        region = {"startLine": where.line} if where.line is not None and where.line > 0 else {}
        location["physicalLocation"] = {"artifactLocation": _artifact(where.file, base)}
        if region:
            location["physicalLocation"]["region"] = region
    elif recording:
        # Code hosts refuse a result without a file.
        location["physicalLocation"] = {"artifactLocation": _artifact(recording, base)}
    if where.op:
        location["message"] = {"text": _text(where.op)}
    return location


def _artifact(file: str, base: str) -> Json:
    """Return a file by its URI, relative to the root if it is inside."""
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
    """Return a hash that does not change when lines move and times change."""
    where = finding.locations[0] if finding.locations else Location()
    file = short_path(where.file or "", base)
    parts = (finding.rule, file, where.function, where.op, where.module)
    text = "\0".join(part or "" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _notify(rule: str, level: str, text: str) -> Json:
    return {
        "level": level,
        "message": {"text": _text(text)},
        "associatedRule": {"id": visible(rule) or "unknown"},
    }


def _text(text: str) -> str:
    """Return a message on one line; the standard allows no empty one."""
    return visible(" ".join(text.split())) or "(no message)"
