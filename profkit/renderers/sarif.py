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
from profkit.present.headline import cost_share, cost_text
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


def render(report: Report, options: Options) -> bytes:
    """The report as SARIF: a log of one run."""
    base = options.base
    results = [_result(report, each, base) for each in report.findings[:MAX_RESULTS]]
    for finding, result in zip(report.findings[:MAX_CODE_FLOWS], results, strict=False):
        path = find_call_path(report, options.recording, finding)
        if path:
            result["codeFlows"] = [_flow(report, path, base)]
    notifications = [
        _notification(each.rule, "note", f"Check skipped: {each.reason} {each.remedy}")
        for each in report.unchecked
    ]
    notifications += [
        _notification(each.rule, each.severity, f"{each.message} {each.fix}")
        for each in report.health
    ]
    n_more = len(report.findings) - len(results)
    if n_more:
        text = f"{format_count(n_more)} more findings with lower costs are omitted."
        notifications.append({"level": "note", "message": {"text": text}})
    run: Json = {
        "tool": {"driver": _driver(report)},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": results,
    }
    if base:
        run["originalUriBaseIds"] = {_ROOT: {"uri": f"{_absolute(base).rstrip('/')}/"}}
    return _log(run)


def render_check(check: Check, options: Options) -> bytes:
    """The budgets that are not kept as SARIF, on the lines that explain them."""
    base = options.base
    path = check.paths[0] if check.paths else ""
    run: Json = {
        "tool": {
            "driver": {
                "name": "profkit",
                "version": check.profkit,
                "rules": [
                    {"id": _budget_id(each), "shortDescription": {"text": f"Budget: {each.title}"}}
                    for each in sorted(check.failed, key=_budget_id)
                ],
            }
        },
        "columnKind": "utf16CodeUnits",
        "results": [_exceeded(each, path, base) for each in check.failed],
    }
    if base:
        run["originalUriBaseIds"] = {_ROOT: {"uri": f"{_absolute(base).rstrip('/')}/"}}
    return _log(run)


def _budget_id(result: BudgetResult) -> str:
    return f"budget/{visible(result.name)}"


def _exceeded(result: BudgetResult, path: str, base: str) -> Json:
    places = result.locations or [Location()]
    located = [_location(path, where, base) for where in places[: MAX_LOCATIONS + 1]]
    texts = [outcome_text(result), *cause_texts(result, base)]
    key = hashlib.sha256(_budget_id(result).encode()).hexdigest()[:16]
    return {
        "ruleId": _budget_id(result),
        "level": "error",
        "message": {"text": _text(" ".join(texts))},
        "locations": located[:1],
        "partialFingerprints": dict.fromkeys(_FINGERPRINTS, f"{key}:1"),
    }


def together(products: Sequence[bytes]) -> bytes:
    """The results of several logs as one run: code hosts expect one run per tool."""
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
    """A log of one run, with equal fingerprints numbered."""
    seen: Counter[str] = Counter()
    for result in run["results"]:
        prints = result["partialFingerprints"]
        (key,) = {value.partition(":")[0] for value in prints.values()}
        seen[key] += 1
        result["partialFingerprints"] = dict.fromkeys(prints, f"{key}:{seen[key]}")
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=1) + b"\n"


def _driver(report: Report) -> Json:
    """The tool and every rule that the run mentions; those with findings have their pages."""
    installed = {rule.INFO.id: rule for rule in rules()}
    found = {each.rule: each.title for each in report.findings}
    titles = {each.rule: each.title for each in report.health} | found
    mentioned = sorted({*titles, *(each.rule for each in report.unchecked)})
    return {
        "name": "profkit",
        "version": report.profkit,
        "rules": [
            _rule(installed[rule], with_help=rule in found)
            if rule in installed
            else _unknown_rule(rule, titles.get(rule, ""))
            for rule in mentioned
        ],
    }


def _rule(rule: Rule, *, with_help: bool) -> Json:
    info = rule.INFO
    found: Json = {
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
        found["fullDescription"] = {"text": first.text.replace("``", "")}
        found["help"] = {
            "text": _page(sections, "{}:", "{}", ""),
            "markdown": _page(sections, "## {}", "```python\n{}\n```", "`"),
        }
    return found


Sections = Sequence[tuple[str, Sequence[Passage]]]


def _page(sections: Sections, heading: str, code: str, mark: str) -> str:
    """A rule's page.

    Args:
        heading: The format of a section's title.
        code: The format of a code block.
        mark: What encloses code within sentences.
    """
    blocks = []
    for title, passages in sections:
        blocks.append(heading.format(title))
        blocks += [
            code.format(each.text) if each.is_code else each.text.replace("``", mark)
            for each in passages
        ]
    return "\n\n".join(blocks)


def _unknown_rule(rule: str, title: str) -> Json:
    """A rule that is not installed here."""
    return {"id": visible(rule) or "unknown", "shortDescription": {"text": _text(title or rule)}}


def _result(report: Report, finding: Finding, base: str) -> Json:
    cost = cost_text(report, finding)
    message = " ".join(part for part in (finding.message, finding.fix) if part)
    places = finding.locations[: MAX_LOCATIONS + 1] or (Location(),)
    located = [_location(report.source.path, place, base) for place in places]
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
    """A holder of a live object: a location by name, without a source line."""
    name = visible("".join(chain)) or "(no name)"
    return {
        "logicalLocations": [{"fullyQualifiedName": name, "kind": "variable"}],
        "message": {"text": f"Held by {name}"},
    }


def _flow(report: Report, path: Sequence[Frame], base: str) -> Json:
    """The call stack of a finding, outermost first; if too long, its innermost frames."""
    steps = [
        {
            "location": _location(
                report.source.path, Location(each.file, each.line, each.function), base
            )
        }
        for each in path[-MAX_LOCATIONS:]
    ]
    return {"message": {"text": "Call stack"}, "threadFlows": [{"locations": steps}]}


def _properties(finding: Finding) -> Json:
    cost = {key: value for key, value in asdict(finding.cost).items() if value is not None}
    found: Json = {"confidence": finding.confidence, "n": finding.n}
    if len(cost) > 1:
        found["cost"] = cost
    if finding.holders:
        found["holders"] = [visible("".join(chain)) for chain in finding.holders]
    return found


def _location(recording: str, where: Location, base: str) -> Json:
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
    elif recording:
        # Code hosts refuse a result without a file.
        found["physicalLocation"] = {"artifactLocation": _artifact(recording, base)}
    if where.op:
        found["message"] = {"text": _text(where.op)}
    return found


def _artifact(file: str, base: str) -> Json:
    """A file by its URI, relative to the root if it is inside."""
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
    """A hash that does not change when lines move and times change."""
    where = finding.locations[0] if finding.locations else Location()
    file = short_path(where.file or "", base)
    parts = (finding.rule, file, where.function, where.op, where.module)
    text = "\0".join(part or "" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _notification(rule: str, level: str, text: str) -> Json:
    return {
        "level": level,
        "message": {"text": _text(text)},
        "associatedRule": {"id": visible(rule) or "unknown"},
    }


def _text(text: str) -> str:
    """A message on one line; the standard allows no empty one."""
    return visible(" ".join(text.split())) or "(no message)"
