"""A report as a document: its sections, in the order in which a reader needs them."""

from collections.abc import Iterator

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.diagnosis import cautions, headline
from profkit.present.document import (
    Document,
    DocumentSection,
    ListBlock,
    ListItem,
    list_section,
    one_line,
    table_section,
)
from profkit.present.facts import describe_recording, origin, unchecked_by_reason
from profkit.present.finding_section import build_finding_section, name_ranks
from profkit.present.memory_text import (
    allocation_tables,
    device_series_rows,
    series_rows,
    shows_series,
)
from profkit.present.ranks import job_sections
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.memory_tables import define_allocation_sites, define_memory_series
from profkit.present.tables.screen import lay_out_table
from profkit.present.time_sections import build_path_section, build_time_section
from profkit.present.work_sections import build_sampled_section, build_work_sections
from profkit.units import format_bytes


def build_report_document(report: Report, options: ReadersOptions) -> Document:
    """Build the document of a report."""
    path = one_line(short_path(report.source.path, options.base))
    whole = one_line(headline(report))
    caution = one_line(" ".join(cautions(report)))
    shows_work = options.verbose or report.collectives is None
    sections = (
        *job_sections(report, options),
        *build_time_section(report),
        *build_path_section(report, options),
        *build_sampled_section(report, options),
        *build_finding_section(report, options),
        *_build_memory(report),
        *_build_allocation_sites(report, options),
        *(build_work_sections(report, options) if shows_work else ()),
        *_build_recording(report, options, caution),
        *_build_skipped(report, options),
    )

    return Document(
        title="profkit report",
        program=f"profkit {one_line(report.profkit)}",
        paths=(path,) if path else (),
        origin=tuple(map(one_line, origin(report))),
        headline=whole,
        caution=caution if whole.endswith(caution) else "",
        sections=sections,
    )


def _build_memory(report: Report) -> Iterator[DocumentSection]:
    step_series = series_rows(report) if shows_series(report) else []
    titled_series = (
        ("Memory over steps", step_series),
        ("Memory over time", device_series_rows(report)),
    )
    for title, all_series in titled_series:
        table = define_memory_series(title, all_series)
        yield from table_section((title, ""), *lay_out_table(table, table.items))


def _build_allocation_sites(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    for allocations in allocation_tables(report, everything=options.verbose):
        table = define_allocation_sites(allocations)
        columns, rows = lay_out_table(table, table.items[: options.limit], options.base)
        heading = (one_line(table.title), format_bytes(allocations.total_bytes))
        yield from table_section(heading, columns, rows)


def _build_skipped(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    n_checks = len({check.rule for check in report.unchecked})
    reasons = unchecked_by_reason(report, everything=options.verbose)
    lines = (f"{reason} ({rules})" for reason, rules in reasons)
    title = f"{counted(n_checks, 'check')} skipped"
    sentence = () if options.verbose else ("`profkit analyze -v` lists them and what they need",)
    yield from list_section(title, lines, sentence=sentence)


def _build_recording(
    report: Report, options: ReadersOptions, caution: str
) -> Iterator[DocumentSection]:
    items = []
    for fault in report.health:
        # Of what the headline says, what to do is left to say.
        is_said = not options.verbose and caution.startswith(one_line(fault.title))
        text = fault.fix if is_said else f"{fault.message} {fault.fix}"
        text = name_ranks(report, fault) + one_line(text)
        items.append(ListItem(text, f"{fault.severity} {one_line(fault.rule)}", fault.severity))
    remark_texts = describe_recording(report, everything=options.verbose)
    items += [ListItem(one_line(text)) for text in remark_texts]

    if items:
        # Notes alone do not make a recording doubtful: the section is then folded.
        is_sound = all(fault.severity == "note" for fault in report.health)
        yield DocumentSection("Recording", (ListBlock(tuple(items)),), is_detail=is_sound)
