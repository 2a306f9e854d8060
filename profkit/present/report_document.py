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
    facts,
    origin,
    remarks,
    unchecked_by_reason,
)
from profkit.present.headline import (
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


def report_document(report: Report, options: ReadersOptions) -> Document:
    """A report as a document."""
    sections = (
        *job_sections(report, options),
        *_time(report),
        *_critical_path(report, options),
        *_sampled(report, options),
        *_findings(report, options),
        *_memory(report),
        *_allocation_sites(report, options),
        *(_work(report, options) if options.verbose or report.collectives is None else ()),
        *_recording(report, options),
        *_skipped(report, options),
    )
    path = one_line(short_path(report.source.path, options.base))
    return Document(
        title="profkit report",
        program=f"profkit {one_line(report.profkit)}",
        paths=(path,) if path else (),
        origin=tuple(map(one_line, origin(report))),
        headline=one_line(headline(report)),
        sections=sections,
    )


def _work(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """What took the time of one rank; a screen of text on a job leaves it out."""
    yield from _categories(report, options)
    yield from _modules(report, options)
    yield from _operators(report, options)
    yield from _kernels(report, options)
    yield from _lines(report, options)
    figures = facts(report, everything=options.verbose)
    hint = f"{counted(len(figures), 'figure')} with --verbose"
    yield from list_section("Details", figures, sentence_if_full=(hint,))


def _place(where: Location | None, base: str) -> SourceLine | None:
    """A location's source line, or None where it has none."""
    if where is None or where.file is None:
        return None
    path = one_line(short_path(where.file, base))
    if where.precision == "function" and where.function not in (None, MODULE_LEVEL):
        return SourceLine(path, where.line, one_line(where.function), is_function=True)
    return SourceLine(path, where.line)


def _time(report: Report) -> Iterator[DocumentSection]:
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
    """``174 ms (mean of 6, 171 ms to 176 ms)``, with what is excluded."""
    mean, n_steps = format_ns(breakdown.mean_ns), len(report.summary.steps)
    if on_host := host_step_time(report):
        mean = f"{mean} on the {device_noun(report)}, {on_host}"
    spread, incomplete = step_range(report), incomplete_steps(report)
    about = []
    if breakdown.per_step_ns is not None and n_steps > 1:
        about.append(f"mean of {format_count(n_steps)}")
    about += [each for each in (spread if about else "", incomplete) if each]
    return f"{mean} ({', '.join(about)})" if about else mean


def _critical_path(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
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
    n_brief = len(rows) if options.verbose else _N_BRIEF_LINES
    blocks: list[Block] = [TableBlock(columns, rows, n_brief)] if rows else []
    if unexplained := unexplained_text(path):
        blocks.append(ListBlock((ListItem(unexplained),)))
    kinds = main_kinds(path, everything=options.verbose)
    title, is_of_one_rank = path_title(path), bool(report.ranks)
    yield DocumentSection(title, tuple(blocks), kinds, is_of_one_rank=is_of_one_rank)


def _sampled(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    sampled = report.summary.sampled
    if sampled is None or (n_running(sampled) < MIN_SAMPLES and not options.verbose):
        return
    if sampled.n_steps and not options.verbose:
        return  # the critical path names the main ones
    shown = [each for each in sampled.functions if options.verbose or each.share >= _MIN_SHARE]
    rows = (
        (
            Name(one_line(each.callee or function_name(each))),
            format_count(each.n_samples),
            format_share(each.share),
            _place(each.location, options.base) or "",
            Name(one_line(each.library)) if each.library else "",
        )
        for each in shown[: options.limit]
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


def _findings(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = report.findings
    if not every:
        return
    blocks: list[Block] = [
        _finding(report, number, finding, options)
        for number, finding in enumerate(every[: options.limit], start=1)
    ]
    blocks += remainder(len(every) - len(blocks), f"--top {len(every)}")
    found = f"{format_count(len(every))} found"
    order = f", {ranking(every)}" if len(every) > 1 else ""
    yield DocumentSection("Findings", tuple(blocks), found + order)


def _finding(
    report: Report, number: int, finding: Finding, options: ReadersOptions
) -> FindingBlock:
    holders = [name_of("".join(chain)) for chain in finding.holders]
    places = [
        _place(each, options.base) or (name_of(each.op) if each.op else None)
        for each in finding.locations
    ]
    first = places[0] if places else None
    doubt = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
    known = evidence_texts(finding) if options.verbose else ()
    evidence = [one_line(f"{label} {figure}") for label, figure in known]
    lists = (
        _labelled("held by", holders, _MAX_HOLDERS, options),
        _labelled(ALSO_AT, [each for each in places[1:] if each], _MAX_OTHER_PLACES, options),
        _labelled("evidence", evidence, len(evidence), options),
    )
    return FindingBlock(
        number,
        first or next(iter(holders), _without_place(report, finding)),
        finding.severity,
        one_line(finding.name),
        one_line(finding.rule),
        one_line(finding.title),
        cost_text(report, finding),
        (_on_ranks(report, finding) if first else "") + one_line(finding.message),
        doubt,
        one_line(finding.fix),
        tuple(each for each in lists if each.values),
    )


def _without_place(report: Report, finding: Finding) -> str:
    """What is named in place of a source line: of a job, the ranks."""
    if not report.ranks:
        return NO_SOURCE_LINE
    is_of_all = not finding.ranks or len(finding.ranks) == len(report.ranks)
    return "all ranks" if is_of_all else the_ranks(finding.ranks)


def _on_ranks(report: Report, finding: Finding) -> str:
    """Where a problem was found, unless that is all ranks of a job, or the message names them."""
    where = the_ranks(finding.ranks)
    if not finding.ranks or len(finding.ranks) == len(report.ranks):
        return ""
    return "" if where in finding.message.lower() else f"On {where}: "


def _labelled(
    label: str, values: Sequence[Name | SourceLine | str], limit: int, options: ReadersOptions
) -> Labelled:
    shown = tuple(values if options.verbose else values[:limit])
    return Labelled(label, shown, len(values) - len(shown))


def _memory(report: Report) -> Iterator[DocumentSection]:
    columns = columns_of("memory", ("first", "last", "peak"), ("trend",), "trend")
    of_steps = series_rows(report) if shows_series(report) else []
    every = (("Memory over steps", of_steps), ("Memory over time", device_series_rows(report)))
    for title, found in every:
        rows = (
            (
                one_line(each.name),
                format_bytes(each.first_bytes),
                format_bytes(each.last_bytes),
                format_bytes(each.highest_bytes),
                each,
            )
            for each in found
        )
        yield from table_section((title, ""), columns, rows)


def _allocation_sites(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    columns = columns_of("allocated at", ("blocks", "bytes", "share"), ("used for",), "text")
    for each in allocation_tables(report, everything=options.verbose):
        rows = (
            (
                _place(site.location, options.base) or one_line(place_of(site)),
                format_count(site.n),
                format_bytes(site.bytes),
                format_share(each.share(site)),
                use_label(site.category),
            )
            for site in each.sites[: options.limit]
        )
        heading = (one_line(each.title), format_bytes(each.total_bytes))
        yield from table_section(heading, columns, rows)


def _categories(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = report.summary.categories
    per_step = any(each.per_step_ns is not None for each in every)
    elementwise_ns = sum(each.elementwise_ns or 0 for each in every)
    columns = columns_of("category", (*(["per step"] * per_step), "total", "share", "calls"))
    rows = (
        (
            each.kind,
            *([format_ns(each.per_step_ns or 0)] if per_step else ()),
            format_ns(each.total_ns),
            format_share(each.share),
            format_count(each.n_calls),
        )
        for each in every
    )
    large = [each for each in every if each.share >= _MIN_CATEGORY_SHARE]
    sentence = [f"{each.kind} {format_share(each.share)}" for each in large]
    if elementwise_ns and sentence:
        share = elementwise_ns / sum(each.total_ns for each in every)
        sentence[-1] += f" (elementwise {format_share(share)})"
    yield from table_section(
        (categories_title(report), ""), columns, rows, is_detail=True,
        sentence=() if options.verbose else tuple(sentence),
    )  # fmt: skip


def _modules(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = report.summary.modules
    on_device = any(each.device_ns is not None for each in every)
    largest = sorted(range(len(every)), key=lambda number: -every[number].share)
    shown = [every[number] for number in sorted(largest[: options.limit])]
    per_step = any(each.host_per_step_ns is not None for each in every)
    unit = f"{device_noun(report)} " if on_device else ""
    titles = (
        (f"{unit}per step", "self per step", "total")
        if per_step
        else (f"on {device_noun(report)}" if on_device else "total", "self")
    )
    peak = _peak_column(shown)
    rows: list[tuple[Cell, ...]] = [
        (
            Name(one_line(module_label(each))),
            *_module_times(each, per_step=per_step),
            format_share(each.share),
            *(_of_peak(each) for _ in peak),
            "" if each.n_calls is None else format_count(each.n_calls),
        )
        for each in shown
    ]
    main = main_modules(every)
    main = [each for each in main if each.share >= _MIN_CATEGORY_SHARE] or main[:1]
    sentence = tuple(
        f"{one_line(each.name)} {format_share(each.share)}" for each in main[:_MAX_MODULES]
    )
    yield from table_section(
        (table_title("Modules", per_step=per_step), ""),
        columns_of("module", (*titles, "share", *peak, "calls")), rows,
        hidden=remainder(len(every) - len(shown), f"--top {len(every)}"), is_detail=True,
        sentence=() if options.verbose else sentence,
    )  # fmt: skip


def _module_times(module: ModuleSummary, *, per_step: bool) -> tuple[str, ...]:
    """The cells with its times, on devices where any ran."""
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
    return tuple(format_ns(each or 0) for each in (*times, total_ns))


def _kernels(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    per_step, every = busiest_kernels(report)
    kernels = every[: options.limit]
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
            short_kernel(one_line(each.name), _BRIEF_KERNEL_WIDTH),
            each.per_step_ns if per_step else each.total_ns,
        )
        for each in kernels[:_N_BRIEF_CALLS]
    )
    yield from table_section(
        (table_title("Kernels", per_step=per_step), ""),
        columns,
        rows,
        is_detail=True,
        sentence_if_full=_times_sentence(times, per_step=per_step),
    )


def _times_sentence(times: Iterable[tuple[str, int | None]], *, per_step: bool) -> tuple[str, ...]:
    """Names with their times, ``aten::mm 20.1 ms per step``, of which the first has the unit."""
    texts = [f"{name} {format_ns(ns)}" for name, ns in times if ns]
    if texts and per_step:
        texts[0] += " per step"
    return tuple(texts)


def _operators(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    per_step, on_device, every = busiest_ops(report)
    every = [op for op in every if op.total_ns or op.device_ns]  # others only mark a moment
    shown = every[: options.limit]
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
            for op in every[:_N_BRIEF_CALLS]
        ),
        per_step=per_step,
    )
    # The table of kernels names their operators.
    is_beside_kernels = bool(report.summary.top_kernels) and not options.verbose
    yield from table_section(
        (table_title("Operators", per_step=per_step), ""), columns, rows, is_detail=True,
        sentence=sentence if is_beside_kernels else (), sentence_if_full=sentence,
    )  # fmt: skip


def _operator_times(op: OpSummary, *, on_device: bool, per_step: bool) -> tuple[int, ...]:
    """In nanoseconds: of its device work or else its calls, its own on the host, and the total."""
    total_ns = op.device_ns if on_device else op.total_ns
    if not per_step:
        return total_ns, op.self_ns
    mean_ns = op.device_per_step_ns if on_device else op.per_step_ns
    return mean_ns or 0, op.self_per_step_ns or 0, total_ns


def _lines(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    every = report.summary.lines[: options.limit] if options.verbose else ()
    on_device = any(each.device_ns is not None for each in every)
    per_step = any(each.host_per_step_ns is not None for each in every)
    peak = _peak_column(every)
    device = device_noun(report)
    times: tuple[str, ...] = (f"on {device}", "self CPU") if on_device else ("self",)
    if per_step:
        on_both = (f"{device} per step", "CPU per step", f"{device} total")
        times = on_both if on_device else ("self per step", "total")
    rows: list[tuple[Cell, ...]] = [
        (
            _place(each.location, options.base) or "",
            *map(format_ns, _line_times(each, per_step=per_step)),
            "" if each.throughput is None else format_number(each.throughput.tflops_per_s),
            *(_of_peak(each) for _ in peak),
            format_count(each.n_ops),
        )
        for each in every
    ]
    columns = columns_of("source line", (*times, "TFLOP/s", *peak, "operators"))
    title = table_title("Source lines", per_step=per_step)
    yield from table_section((title, ""), columns, rows, is_detail=True)


def _line_times(line: LineSummary, *, per_step: bool) -> tuple[int, ...]:
    """In nanoseconds: of its device work, if any ran, of its operators, and the total."""
    if not per_step:
        return (line.host_ns,) if line.device_ns is None else (line.device_ns, line.host_ns)
    host_ns = line.host_per_step_ns or 0
    if line.device_ns is None:
        return host_ns, line.host_ns
    return line.device_per_step_ns or 0, host_ns, line.device_ns


def _peak_column(rows: Iterable[_Timed]) -> tuple[str, ...]:
    """The heading of the share of the device's peak, if any is known."""
    shares = (row.throughput.peak_share for row in rows if row.throughput is not None)
    return ("of peak",) if any(share is not None for share in shares) else ()


def _of_peak(row: _Timed) -> str:
    share = None if row.throughput is None else row.throughput.peak_share
    return "" if share is None else format_share(share)


def _skipped(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    n_checks = len({each.rule for each in report.unchecked})
    reasons = unchecked_by_reason(report, everything=options.verbose)
    lines = (f"{reason} ({rules})" for reason, rules in reasons)
    title = f"{counted(n_checks, 'check')} skipped"
    sentence = () if options.verbose else ("--verbose lists them and what they need",)
    yield from list_section(title, lines, sentence=sentence)


def _recording(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    items = [
        ListItem(
            _on_ranks(report, fault) + one_line(f"{fault.message} {fault.fix}"),
            f"{fault.severity} {one_line(fault.rule)}",
            fault.severity,
        )
        for fault in report.health
    ]
    sentences = remarks(report, everything=options.verbose)
    items += [ListItem(one_line(sentence)) for sentence in sentences]
    if items:
        is_sound = all(fault.severity == "note" for fault in report.health)
        yield DocumentSection("Recording", (ListBlock(tuple(items)),), is_detail=is_sound)
