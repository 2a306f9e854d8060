"""A check of budgets as a document, and its texts."""

from collections.abc import Iterator
from typing import Final

from profkit.comparison.messages import amount
from profkit.engine.wording import counted
from profkit.model.check import BudgetResult, Check, Outcome
from profkit.model.finding import Finding
from profkit.model.location import Location, first_with_file
from profkit.model.memory_summary import PeakSite
from profkit.model.sync_summary import SyncLine
from profkit.names import short_path
from profkit.present.document import (
    Document,
    DocumentSection,
    columns_of,
    list_section,
    one_line,
    table_section,
)
from profkit.present.labels import source_line
from profkit.present.renderer import ReadersOptions
from profkit.units import format_bytes

OUTCOMES: Final[dict[Outcome, str]] = {
    "ok": "ok",
    "over": "OVER",
    "noisy": "noisy",
    "other-device": "not compared",
    "unknown": "UNKNOWN",
}
"""How the outcomes are shown; those that fail the check in capitals."""
_REVISION_LENGTH: Final = 12


def build_check_document(check: Check, options: ReadersOptions) -> Document:
    """Build the document of a check of budgets."""
    revision = [check.revision[:_REVISION_LENGTH]] if check.revision else []
    origin = [*check.devices, *([f"torch {check.torch}"] if check.torch else []), *revision]
    return Document(
        title="profkit check",
        program=f"profkit {one_line(check.profkit)}",
        paths=tuple(one_line(short_path(path, options.base)) for path in check.paths),
        origin=tuple(map(one_line, origin)),
        headline=check_headline(check),
        sections=(*_build_budgets(check), *_build_causes(check, options), *_build_reasons(check)),
    )


def check_headline(check: Check) -> str:
    """Say how many budgets are kept, and which are not."""
    n = len(check.results)
    if not n:
        return "There is no budget."
    if check.is_ok:
        return f"The budget is kept: {check.results[0].title}." if n == 1 else _kept(check)

    # A budget that could not be decided fails the check too.
    over = [result.title for result in check.failed if result.outcome == "over"]
    unknown = [result.title for result in check.failed if result.outcome != "over"]
    sentences = (
        f"{len(titles)} of {counted(n, 'budget')} {what}: {', '.join(titles)}."
        for what, titles in (("not kept", over), ("not decided", unknown))
        if titles
    )
    return " ".join(sentences)


def _kept(check: Check) -> str:
    # Budgets that could not be compared are neither kept nor exceeded.
    n_compared = sum(result.outcome == "ok" for result in check.results)
    if n_compared == len(check.results):
        return f"All {n_compared} budgets are kept."
    return f"{n_compared} of {counted(len(check.results), 'budget')} kept, none exceeded."


def _build_budgets(check: Check) -> Iterator[DocumentSection]:
    has_baseline = any(result.baseline is not None for result in check.results)
    rows = (
        (
            result.title,
            figure_text(result),
            amount(result.limit, result.unit) or "?",
            *([amount(result.baseline, result.unit)] if has_baseline else []),
            OUTCOMES[result.outcome],
        )
        for result in check.results
    )

    figures = ("figure", "limit", *(["baseline"] if has_baseline else []))
    columns = columns_of("budget", figures, ["outcome"], "text")
    yield from table_section(("Budgets", ""), columns, rows)


def figure_text(result: BudgetResult) -> str:
    """Return the figure with its error, as in ``12.3 ms ± 0.2 ms``; a question mark if unknown."""
    text = amount(result.value, result.unit) or "?"
    return f"{text} ± {amount(result.error, result.unit)}" if result.error else text


def _build_causes(check: Check, options: ReadersOptions) -> Iterator[DocumentSection]:
    for result in check.results:
        lines = cause_texts(result, options.base)
        yield from list_section(f"Why {result.title} is over", lines, is_detail=False)


def cause_texts(result: BudgetResult, base: str = "") -> tuple[str, ...]:
    """Say why a figure is beyond its limit, one sentence for each line or finding."""
    peak = amount(result.value, result.unit)
    return (
        *(f"{_line(site.location, base)}: {_held(site)} of the {peak}." for site in result.sites),
        *(cause_text(finding, base) for finding in result.causes),
        *(f"{_line(line.location, base)}: {_syncs(line)}" for line in result.sync_lines),
    )


def _held(site: PeakSite) -> str:
    return f"{format_bytes(site.bytes)} in {counted(site.n, 'block')}"


def _syncs(line: SyncLine) -> str:
    name = f" in `{line.location.op}`" if line.location.op and line.location.file else ""
    return f"{counted(line.n_in_step, 'sync')} per step{name}."


def _line(where: Location, base: str) -> str:
    """``src/train.py:12``, or the operator where no line is known."""
    if where.file is None:
        return where.place
    return source_line(where.file, where.line, base)


def cause_text(finding: Finding, base: str = "") -> str:
    """Return a finding with its line: ``train.py:12: … (SYN001 item-sync)``."""
    place = first_with_file(finding.locations)
    line = "" if place is None else f"{_line(place, base)}: "
    return f"{line}{finding.message} ({finding.rule} {finding.name})"


def _build_reasons(check: Check) -> Iterator[DocumentSection]:
    lines = (f"{result.title}: {result.reason}" for result in check.results if result.reason)
    yield from list_section("Not decided", lines, is_detail=False)


def outcome_text(result: BudgetResult) -> str:
    """One sentence, such as ``Median step time is 13.1 ms, and its budget 12.0 ms.``."""
    subject = f"{result.title[:1].upper()}{result.title[1:]}"
    if result.value is None:
        return f"{subject} is not known. {result.reason}"

    limit = amount(result.limit, result.unit)
    baseline = amount(result.baseline, result.unit)
    text = f"{subject}: {figure_text(result)}"
    if limit:
        text += f", limit {limit}"
    if baseline:
        text += f", baseline {baseline}"
    return f"{text}. {result.reason}".rstrip()
