"""A report as a document: its sections, in the order in which a reader needs them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from profkit.engine.wording import counted, the_ranks
from profkit.model.critical_path import PathLine
from profkit.model.finding import Finding
from profkit.model.location import MODULE_LEVEL, NO_SOURCE_LINE, Location
from profkit.model.report import (
    Breakdown,
    KernelSummary,
    LineSummary,
    ModuleSummary,
    OpSummary,
    Report,
)
from profkit.names import short_kernel, short_path
from profkit.present.critical_path import (
    WITH_KERNEL_NAMES,
    large_lines,
    main_kinds,
    main_name,
    main_share,
    main_word,
    path_label,
    path_title,
    unexplained_text,
)
from profkit.present.diagnosis import headline
from profkit.present.document import (
    Block,
    Cell,
    Document,
    DocumentSection,
    FindingBlock,
    Labelled,
    ListBlock,
    ListItem,
    Name,
    Part,
    PartKind,
    SourceLine,
    TableBlock,
    TableColumn,
    TableRow,
    TimeParts,
    columns_of,
    list_section,
    name_of,
    one_line,
    remainder,
    table_section,
)
from profkit.present.evidence import evidence_texts
from profkit.present.facts import (
    busiest_kernels,
    busiest_ops,
    describe_recording,
    facts,
    origin,
    unchecked_by_reason,
)
from profkit.present.labels import (
    MIN_SAMPLES,
    breakdown_title,
    categories_title,
    cost_text,
    device_noun,
    function_name,
    host_step_time,
    incomplete_steps,
    n_running,
    part_label,
    ranking,
    sampled_title,
    step_range,
    table_title,
)
from profkit.present.memory_text import (
    allocation_tables,
    device_series_rows,
    place_of,
    series_rows,
    shows_series,
    use_label,
)
from profkit.present.modules import main_modules, module_label
from profkit.present.part_colors import color_number, is_idle
from profkit.present.ranks import job_sections
from profkit.present.renderer import ReadersOptions
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

_N_BRIEF_LINES: Final = 2
_N_BRIEF_CALLS: Final = 3
_BRIEF_KERNEL_WIDTH: Final = 30
_MAX_HOLDERS: Final = 3
_MAX_OTHER_PLACES: Final = 3
ALSO_AT: Final = "also at"
"""The label of a finding's further places."""
_MIN_CATEGORY_SHARE: Final = 0.01
_MIN_SHARE: Final = 0.01
"""Functions with fewer samples are left out of a screen of text."""
_MAX_MODULES: Final = 5
"""Modules in a screen of text."""
_Timed = KernelSummary | LineSummary | ModuleSummary | OpSummary
_WORK: Final[dict[str, PartKind]] = {
    "compute": "compute", "communication": "communication", "copy": "copy",
}  # fmt: skip


def build_report_document(report: Report, options: ReadersOptions) -> Document:
    """Build the document of a report."""
    path = one_line(short_path(report.source.path, options.base))
    shows_work = options.verbose or report.collectives is None
    sections = (
        *job_sections(report, options),
        *_build_time(report),
        *_build_critical_path(report, options),
        *_build_sampled(report, options),
        *_build_findings(report, options),
        *_build_memory(report),
        *_build_allocation_sites(report, options),
        *(_build_work(report, options) if shows_work else ()),
        *_build_recording(report, options),
        *_build_skipped(report, options),
    )

    return Document(
        title="profkit report",
        program=f"profkit {one_line(report.profkit)}",
        paths=(path,) if path else (),
        origin=tuple(map(one_line, origin(report))),
        headline=one_line(headline(report)),
        sections=sections,
    )


def _build_work(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield where the time of one rank went; a screen of text on a job leaves this out."""
    yield from _build_categories(report, options)
    yield from _build_modules(report, options)
    yield from _build_operators(report, options)
    yield from _build_kernels(report, options)
    yield from _build_lines(report, options)

    # Further figures, such as the memory of devices, have no table.
    figures = facts(report, everything=options.verbose)
    hint = f"{counted(len(figures), 'figure')} with --verbose"
    yield from list_section("Details", figures, sentence_if_full=(hint,))


def _place(where: Location | None, base: str) -> SourceLine | None:
    """Return a location's source line, or None where it has none."""
    if where is None or where.file is None:
        return None

    path = one_line(short_path(where.file, base))
    if where.precision == "function" and where.function not in (None, MODULE_LEVEL):
        return SourceLine(path, where.line, one_line(where.function), is_function=True)
    return SourceLine(path, where.line)


def _build_time(report: Report) -> Iterator[DocumentSection]:
    breakdown = report.summary.breakdown
    if breakdown is None or not breakdown.total_ns:
        return

    parts = []
    start = 0.0
    for part in breakdown.parts:
        if part.ns:
            kind, time = _part_kind(part.kind), format_ns(part.mean_ns)
            color, hatched = color_number(part.kind), is_idle(part.kind)
            label = part_label(part.kind)
            parts.append(Part(label, kind, color, hatched, time, part.share, start))
        start += part.share

    yield DocumentSection(
        breakdown_title(report), (TimeParts(tuple(parts)),), _time_figures(report, breakdown),
        is_of_one_rank=bool(report.ranks),
    )  # fmt: skip


def _part_kind(kind: str) -> PartKind:
    return "idle" if is_idle(kind) else _WORK.get(kind, "host")


def _time_figures(report: Report, breakdown: Breakdown) -> str:
    """Return ``174 ms (mean of 6, 171 ms to 176 ms)``, with the excluded steps."""
    mean, n_steps = format_ns(breakdown.mean_ns), len(report.summary.steps)
    if on_host := host_step_time(report):
        mean = f"{mean} on the {device_noun(report)}, {on_host}"

    spread, incomplete = step_range(report), incomplete_steps(report)

    # A range of one step, or of a time that is not per step, would repeat the mean.
    about = []
    if breakdown.per_step_ns is not None and n_steps > 1:
        about.append(f"mean of {format_count(n_steps)}")
    about += filter(None, (spread if about else "", incomplete))
    return f"{mean} ({', '.join(about)})" if about else mean


def _build_critical_path(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    path = report.summary.critical_path
    if path is None:
        return

    rows = tuple(
        TableRow(
            (
                path_label(line.kind),
                format_ns(line.mean_ns),
                format_share(line.share),
                _place(line.location, options.base) or "",
                name,
                main_share(line) if name else "",
            ),
            word=main_word(line) if name else "",
        )
        for line in large_lines(path)[: options.limit]
        for name in (_main_name(line),)
    )
    columns = (
        *columns_of("critical path", ("time", "share"), ("source line", "longest")),
        TableColumn("of the path", "text"),
    )
    # A screen of text shows the first lines alone, each as a sentence.
    n_brief = len(rows) if options.verbose else _N_BRIEF_LINES
    blocks: list[Block] = [TableBlock(columns, rows, n_brief)] if rows else []
    if unexplained := unexplained_text(path):
        blocks.append(ListBlock((ListItem(unexplained),)))

    kinds = main_kinds(path, everything=options.verbose)
    title, is_of_one_rank = path_title(path), bool(report.ranks)
    yield DocumentSection(title, tuple(blocks), kinds, is_of_one_rank=is_of_one_rank)


def _build_sampled(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    sampled = report.summary.sampled
    if sampled is None or (n_running(sampled) < MIN_SAMPLES and not options.verbose):
        return
    if sampled.n_steps and not options.verbose:
        return  # the critical path names the main functions of the steps

    shown = [
        function
        for function in sampled.functions
        if options.verbose or function.share >= _MIN_SHARE
    ]
    rows = (
        (
            Name(one_line(function.callee or function_name(function))),
            format_count(function.n_samples),
            format_share(function.share),
            _place(function.location, options.base) or "",
            Name(one_line(function.library)) if function.library else "",
        )
        for function in shown[: options.limit]
    )
    columns = columns_of("function", ("samples", "share"), ("source line", "most often in"))

    n_samples = counted(n_running(sampled), "sample")
    about = f"{n_samples} of running threads, every {format_ns(sampled.interval_ns)}"
    if sampled.n_steps:
        n_steps = counted(sampled.n_steps, "step")
        about = f"{counted(sampled.n_samples, 'sample')} over {n_steps}; shares of the step"
    yield from table_section((sampled_title(sampled), about), columns, rows)


def _main_name(line: PathLine) -> Name | str:
    if line.kind in WITH_KERNEL_NAMES:
        return Name(one_line(line.main_name), is_kernel=True)
    name = main_name(line)
    return name_of(name) if name else ""


def _build_findings(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    findings = report.findings
    if not findings:
        return
    blocks: list[Block] = [
        _build_finding(report, number, finding, options)
        for number, finding in enumerate(findings[: options.limit], start=1)
    ]
    blocks += remainder(len(findings) - len(blocks), f"--top {len(findings)}")

    order = f", {ranking(findings)}" if len(findings) > 1 else ""
    figures = f"{format_count(len(findings))} found{order}"
    yield DocumentSection("Findings", tuple(blocks), figures)


def _build_finding(
    report: Report, number: int, finding: Finding, options: ReadersOptions
) -> FindingBlock:
    holders = [name_of("".join(chain)) for chain in finding.holders]
    places = [
        _place(location, options.base) or (name_of(location.op) if location.op else None)
        for location in finding.locations
    ]
    main_place = places[0] if places else None
    other_places = [place for place in places[1:] if place]
    shown_evidence = evidence_texts(finding) if options.verbose else ()
    evidence = [one_line(f"{label} {figure}") for label, figure in shown_evidence]
    lists = (
        _labelled("held by", holders, _MAX_HOLDERS, options),
        _labelled(ALSO_AT, other_places, _MAX_OTHER_PLACES, options),
        _labelled("evidence", evidence, len(evidence), options),
    )

    # Without a place, the block's first line already names the ranks.
    on_ranks = _on_ranks(report, finding) if main_place else ""
    doubt = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
    return FindingBlock(
        number,
        main_place or next(iter(holders), _without_place(report, finding)),
        finding.severity,
        one_line(finding.name),
        one_line(finding.rule),
        one_line(finding.title),
        cost_text(report, finding),
        on_ranks + one_line(finding.message),
        doubt,
        one_line(finding.fix),
        tuple(labelled for labelled in lists if labelled.values),
    )


def _without_place(report: Report, finding: Finding) -> str:
    """Return the text in place of a source line: the ranks in a report on a job."""
    if not report.ranks:
        return NO_SOURCE_LINE
    is_of_all = not finding.ranks or len(finding.ranks) == len(report.ranks)
    return "all ranks" if is_of_all else the_ranks(finding.ranks)


def _on_ranks(report: Report, finding: Finding) -> str:
    """Name a finding's ranks, unless it is on all ranks of a job or its message names them."""
    where = the_ranks(finding.ranks)
    if not finding.ranks or len(finding.ranks) == len(report.ranks):
        return ""
    return "" if where in finding.message.lower() else f"On {where}: "


def _labelled(
    label: str, values: Sequence[Name | SourceLine | str], limit: int, options: ReadersOptions
) -> Labelled:
    shown = tuple(values if options.verbose else values[:limit])
    return Labelled(label, shown, len(values) - len(shown))


def _build_memory(report: Report) -> Iterator[DocumentSection]:
    columns = columns_of("memory", ("first", "last", "peak"), ("trend",), "trend")
    step_series = series_rows(report) if shows_series(report) else []
    titled_series = (
        ("Memory over steps", step_series),
        ("Memory over time", device_series_rows(report)),
    )
    for title, all_series in titled_series:
        rows = (
            (
                one_line(series.name),
                format_bytes(series.first_bytes),
                format_bytes(series.last_bytes),
                format_bytes(series.highest_bytes),
                series,
            )
            for series in all_series
        )
        yield from table_section((title, ""), columns, rows)


def _build_allocation_sites(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = columns_of("allocated at", ("blocks", "bytes", "share"), ("used for",), "text")
    for table in allocation_tables(report, everything=options.verbose):
        rows = (
            (
                _place(site.location, options.base) or one_line(place_of(site)),
                format_count(site.n),
                format_bytes(site.bytes),
                format_share(table.share(site)),
                use_label(site.category),
            )
            for site in table.sites[: options.limit]
        )
        heading = (one_line(table.title), format_bytes(table.total_bytes))
        yield from table_section(heading, columns, rows)


def _build_categories(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    categories = report.summary.categories
    per_step = any(category.per_step_ns is not None for category in categories)
    columns = columns_of("category", (*(["per step"] * per_step), "total", "share", "calls"))
    rows = (
        (
            category.kind,
            *([format_ns(category.per_step_ns or 0)] if per_step else ()),
            format_ns(category.total_ns),
            format_share(category.share),
            format_count(category.n_calls),
        )
        for category in categories
    )

    # Small categories would hide the main ones in a sentence.
    sentence = [
        f"{category.kind} {format_share(category.share)}"
        for category in categories
        if category.share >= _MIN_CATEGORY_SHARE
    ]
    elementwise_ns = sum(category.elementwise_ns or 0 for category in categories)
    if elementwise_ns and sentence:
        share = elementwise_ns / sum(category.total_ns for category in categories)
        sentence[-1] += f" (elementwise {format_share(share)})"

    yield from table_section(
        (categories_title(report), ""), columns, rows, is_detail=True,
        sentence=() if options.verbose else tuple(sentence),
    )  # fmt: skip


def _build_modules(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    modules = report.summary.modules
    # The largest modules are shown in the order of the report, which follows their nesting.
    largest = sorted(range(len(modules)), key=lambda number: -modules[number].share)
    shown = [modules[number] for number in sorted(largest[: options.limit])]

    on_device = any(module.device_ns is not None for module in modules)
    per_step = any(module.host_per_step_ns is not None for module in modules)
    unit = f"{device_noun(report)} " if on_device else ""
    titles = (
        (f"{unit}per step", "self per step", "total")
        if per_step
        else (f"on {device_noun(report)}" if on_device else "total", "self")
    )
    peak = _peak_column(shown)
    rows: list[tuple[Cell, ...]] = [
        (
            Name(one_line(module_label(module))),
            *_module_times(module, per_step=per_step),
            format_share(module.share),
            *(_of_peak(module) for _ in peak),
            "" if module.n_calls is None else format_count(module.n_calls),
        )
        for module in shown
    ]

    main = main_modules(modules)
    main = [module for module in main if module.share >= _MIN_CATEGORY_SHARE] or main[:1]
    sentence = tuple(
        f"{one_line(module.name)} {format_share(module.share)}" for module in main[:_MAX_MODULES]
    )
    yield from table_section(
        (table_title("Modules", per_step=per_step), ""),
        columns_of("module", (*titles, "share", *peak, "calls")), rows,
        hidden=remainder(len(modules) - len(shown), f"--top {len(modules)}"), is_detail=True,
        sentence=() if options.verbose else sentence,
    )  # fmt: skip


def _module_times(module: ModuleSummary, *, per_step: bool) -> tuple[str, ...]:
    """Return the cells with a module's times: on devices if it launched work, else on the host."""
    on_device = module.device_ns is not None
    total_ns = module.device_ns if on_device else module.host_ns
    if not per_step:
        self_ns = module.self_device_ns if on_device else module.self_host_ns
        return format_ns(total_ns or 0), format_ns(self_ns or 0)

    times = (
        (module.device_per_step_ns, module.self_device_per_step_ns)
        if on_device
        else (module.host_per_step_ns, module.self_host_per_step_ns)
    )
    return tuple(format_ns(ns or 0) for ns in (*times, total_ns))


def _build_kernels(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    per_step, all_kernels = busiest_kernels(report)
    kernels = all_kernels[: options.limit]
    peak = _peak_column(kernels)
    titles = (*(["per step"] if per_step else ()), "total", "share", *peak, "calls")
    columns = columns_of("kernel", titles, ("source line", "operator"))
    rows = (
        (
            Name(one_line(kernel.name), is_kernel=True),
            *([format_ns(kernel.per_step_ns or 0)] if per_step else ()),
            format_ns(kernel.total_ns),
            format_share(kernel.share),
            *(_of_peak(kernel) for _ in peak),
            format_count(kernel.n_calls),
            _place(kernel.location, options.base) or "",
            name_of(kernel.op) if kernel.op else "",
        )
        for kernel in kernels
    )

    times = (
        (
            short_kernel(one_line(kernel.name), _BRIEF_KERNEL_WIDTH),
            kernel.per_step_ns if per_step else kernel.total_ns,
        )
        for kernel in kernels[:_N_BRIEF_CALLS]
    )
    # The sentence replaces the table if the report does not fit on the screen.
    sentence = _times_sentence(times, per_step=per_step)
    title = table_title("Kernels", per_step=per_step)
    yield from table_section((title, ""), columns, rows, is_detail=True, sentence_if_full=sentence)


def _times_sentence(times: Iterable[tuple[str, int | None]], *, per_step: bool) -> tuple[str, ...]:
    """List names with their times, ``aten::mm 20.1 ms per step``; only the first has the unit."""
    texts = [f"{name} {format_ns(ns)}" for name, ns in times if ns]
    if texts and per_step:
        texts[0] += " per step"
    return tuple(texts)


def _build_operators(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    per_step, on_device, all_ops = busiest_ops(report)
    ops = [op for op in all_ops if op.total_ns or op.device_ns]  # others only mark a moment
    shown = ops[: options.limit]

    device = device_noun(report)
    times: tuple[str, ...] = (f"on {device}", "self CPU") if on_device else ("total", "self")
    if per_step:
        on_both = (f"{device} per step", "CPU per step", f"{device} total")
        times = on_both if on_device else ("per step", "self per step", "total")
    peak = _peak_column(shown)
    columns = columns_of("operator", (*times, *peak, "calls"), ("source line",))
    rows = (
        (
            name_of(op.name),
            *map(format_ns, _operator_times(op, on_device=on_device, per_step=per_step)),
            *(_of_peak(op) for _ in peak),
            format_count(op.n_calls),
            _place(op.location, options.base) or "",
        )
        for op in shown
    )

    sentence = _times_sentence(
        (
            (one_line(op.name), _operator_times(op, on_device=on_device, per_step=per_step)[0])
            for op in ops[:_N_BRIEF_CALLS]
        ),
        per_step=per_step,
    )
    # The table of kernels names their operators.
    is_brief = bool(report.summary.top_kernels) and not options.verbose
    yield from table_section(
        (table_title("Operators", per_step=per_step), ""), columns, rows, is_detail=True,
        sentence=sentence if is_brief else (), sentence_if_full=sentence,
    )  # fmt: skip


def _operator_times(op: OpSummary, *, on_device: bool, per_step: bool) -> tuple[int, ...]:
    """Return nanoseconds: of device work or else calls, of the operator itself, and in total."""
    total_ns = op.device_ns if on_device else op.total_ns
    if not per_step:
        return total_ns, op.self_ns
    mean_ns = op.device_per_step_ns if on_device else op.per_step_ns
    return mean_ns or 0, op.self_per_step_ns or 0, total_ns


def _build_lines(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    lines = report.summary.lines[: options.limit] if options.verbose else ()
    on_device = any(line.device_ns is not None for line in lines)
    per_step = any(line.host_per_step_ns is not None for line in lines)

    device = device_noun(report)
    times: tuple[str, ...] = (f"on {device}", "self CPU") if on_device else ("self",)
    if per_step:
        on_both = (f"{device} per step", "CPU per step", f"{device} total")
        times = on_both if on_device else ("self per step", "total")
    peak = _peak_column(lines)
    columns = columns_of("source line", (*times, "TFLOP/s", *peak, "operators"))
    rows: list[tuple[Cell, ...]] = [
        (
            _place(line.location, options.base) or "",
            *map(format_ns, _line_times(line, per_step=per_step)),
            "" if line.throughput is None else format_number(line.throughput.tflops_per_s),
            *(_of_peak(line) for _ in peak),
            format_count(line.n_ops),
        )
        for line in lines
    ]

    title = table_title("Source lines", per_step=per_step)
    yield from table_section((title, ""), columns, rows, is_detail=True)


def _line_times(line: LineSummary, *, per_step: bool) -> tuple[int, ...]:
    """Return nanoseconds: of the line's device work, if any ran, of its operators, and in total."""
    if not per_step:
        return (line.host_ns,) if line.device_ns is None else (line.device_ns, line.host_ns)

    host_ns = line.host_per_step_ns or 0
    if line.device_ns is None:
        return host_ns, line.host_ns
    return line.device_per_step_ns or 0, host_ns, line.device_ns


def _peak_column(rows: Iterable[_Timed]) -> tuple[str, ...]:
    """Return the heading of the share of the device's peak, if any share is known."""
    shares = (row.throughput.peak_share for row in rows if row.throughput is not None)
    return ("of peak",) if any(share is not None for share in shares) else ()


def _of_peak(row: _Timed) -> str:
    share = None if row.throughput is None else row.throughput.peak_share
    return "" if share is None else format_share(share)


def _build_skipped(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    n_checks = len({check.rule for check in report.unchecked})
    reasons = unchecked_by_reason(report, everything=options.verbose)
    lines = (f"{reason} ({rules})" for reason, rules in reasons)
    title = f"{counted(n_checks, 'check')} skipped"
    sentence = () if options.verbose else ("--verbose lists them and what they need",)
    yield from list_section(title, lines, sentence=sentence)


def _build_recording(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    items = [
        ListItem(
            _on_ranks(report, fault) + one_line(f"{fault.message} {fault.fix}"),
            f"{fault.severity} {one_line(fault.rule)}",
            fault.severity,
        )
        for fault in report.health
    ]
    remark_texts = describe_recording(report, everything=options.verbose)
    items += [ListItem(one_line(text)) for text in remark_texts]

    if items:
        # Notes alone do not make a recording doubtful: the section is then folded.
        is_sound = all(fault.severity == "note" for fault in report.health)
        yield DocumentSection("Recording", (ListBlock(tuple(items)),), is_detail=is_sound)
