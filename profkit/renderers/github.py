"""Annotations for GitHub Actions: each finding, or each budget that is not kept, on its line.

A job prints them on standard output, and GitHub shows them in the changed files.

Source: "Workflow commands for GitHub Actions" in GitHub's documentation: at most ten errors, ten
warnings and ten notices of a step are shown, so those with the highest costs come first.
"""

from collections.abc import Iterable
from typing import Final

from profkit.model.check import BudgetResult, Check
from profkit.model.finding import Finding
from profkit.model.location import Location, first_with_file
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.check_document import cause_texts, check_headline, outcome_text
from profkit.present.diagnosis import headline
from profkit.present.facts import unchecked_by_reason
from profkit.present.renderer import RecordingOptions as Options
from profkit.present.renderer import RendererInfo

__all__ = ["INFO", "Options", "render", "render_check"]

INFO = RendererInfo(name="github", suffix=".txt", media_type="text/x-workflow-commands")

_COMMANDS: Final = {"note": "notice", "warning": "warning", "error": "error"}
_IN_TEXT: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def render(report: Report, options: Options) -> bytes:
    """Return the findings as annotations in UTF-8, one a line, and the headline as a notice."""
    lines = (_annotate_finding(finding, options.base) for finding in report.findings)
    skipped = "\n".join(f"{rules}: {reason}" for reason, rules in unchecked_by_reason(report))
    notes = [_annotation("notice", "profkit: skipped checks", skipped, None, "")] if skipped else []
    return _lines(_annotation("notice", "profkit", headline(report), None, ""), [*lines, *notes])


def render_check(check: Check, options: Options) -> bytes:
    """Return the budgets that are not kept as annotations, on the lines that explain them."""
    lines = (_annotate_budget(result, options.base) for result in check.failed)
    return _lines(_annotation("notice", "profkit", check_headline(check), None, ""), lines)


def _lines(first: str, lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in (first, *lines)).encode("utf-8", "backslashreplace")


def _annotate_finding(finding: Finding, base: str) -> str:
    # GitHub shows annotations on files only: the first place that has one.
    where = first_with_file(finding.locations)
    title = f"{finding.rule} {finding.name}"
    return _annotation(
        _COMMANDS[finding.severity], title, f"{finding.message} {finding.fix}", where, base
    )


def _annotate_budget(result: BudgetResult, base: str) -> str:
    where = next(iter(result.locations), None)
    text = "\n".join([outcome_text(result), *cause_texts(result, base)])
    return _annotation("error", f"profkit: {result.title}", text, where, base)


def _annotation(command: str, title: str, text: str, where: Location | None, base: str) -> str:
    properties = []
    if where is not None and where.file is not None:
        properties.append(f"file={_property(short_path(where.file, base))}")
        if where.line is not None and where.line > 0:
            properties.append(f"line={where.line}")
    properties.append(f"title={_property(title)}")

    shown = "\n".join(visible(line) for line in text.split("\n"))
    return f"::{command} {','.join(properties)}::{shown.translate(_IN_TEXT)}"


def _property(text: str) -> str:
    return visible(text).translate(_IN_PROPERTY)
