"""Sections on where the time went: categories, modules, operators, kernels, lines, functions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.model.work_summary import FunctionSummary, KernelSummary, OpSummary, SampledSummary
from profkit.names import short_kernel
from profkit.present.document import (
    DocumentSection,
    Remainder,
    list_section,
    one_line,
    remainder,
    table_section,
)
from profkit.present.facts import facts
from profkit.present.labels import MIN_SAMPLES, n_running
from profkit.present.modules import main_modules
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.definition import Table
from profkit.present.tables.screen import lay_out_table
from profkit.present.tables.work_tables import (
    define_categories,
    define_functions,
    define_kernels,
    define_lines,
    define_modules,
    define_operators,
)
from profkit.units import format_ns, format_share

_N_BRIEF_CALLS: Final = 3
_BRIEF_KERNEL_WIDTH: Final = 30
_MIN_SHARE: Final = 0.01
"""Smaller categories, modules and functions would hide the main ones."""
_MAX_MODULES: Final = 5
"""Modules in a sentence."""


def build_work_sections(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield where the time of one rank went; a screen of text on a job leaves this out."""
    yield from _build_categories(report, options)
    yield from _build_modules(report, options)
    yield from _build_operators(report, options)
    yield from _build_kernels(report, options)
    yield from _build_lines(report, options)

    # Further figures, such as the memory of devices, have no table.
    figures = facts(report, everything=options.verbose)
    hint = f"`profkit analyze -v` shows {counted(len(figures), 'figure')}"
    yield from list_section("Details", figures, sentence_if_full=(hint,))


def build_sampled_section(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield the functions in which samples of stacks were."""
    sampled = report.summary.sampled
    if sampled is None or (n_running(sampled) < MIN_SAMPLES and not options.verbose):
        return
    if sampled.n_steps and not options.verbose:
        return  # the critical path names the main functions of the steps

    table = define_functions(report)
    main: list[FunctionSummary] = [
        function for function in table.for_people if options.verbose or function.share >= _MIN_SHARE
    ]
    columns, rows = lay_out_table(table, main[: options.limit], options.base)
    yield from table_section((table.title, _describe_samples(sampled)), columns, rows)


def _describe_samples(sampled: SampledSummary) -> str:
    if sampled.n_steps:
        n_steps = counted(sampled.n_steps, "step")
        return f"{counted(sampled.n_samples, 'sample')} over {n_steps}; shares of the step"
    n_samples = counted(n_running(sampled), "sample")
    return f"{n_samples} of running threads, every {format_ns(sampled.interval_ns)}"


def _build_section(
    table: Table,
    items: Iterable[object],
    options: ReadersOptions,
    *,
    hidden: Iterable[Remainder] = (),
    sentence: tuple[str, ...] = (),
    sentence_if_full: tuple[str, ...] = (),
) -> Iterator[DocumentSection]:
    """Yield a folded section with some items of a table, unless there are none."""
    columns, rows = lay_out_table(table, tuple(items), options.base)
    yield from table_section(
        (table.title, ""),
        columns,
        rows,
        hidden=hidden,
        is_detail=True,
        sentence=sentence,
        sentence_if_full=sentence_if_full,
    )


def _build_categories(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    table, categories = define_categories(report), report.summary.categories
    # Small categories would hide the main ones in a sentence.
    sentence = [
        f"{category.kind} {format_share(category.share)}"
        for category in categories
        if category.share >= _MIN_SHARE
    ]
    elementwise_ns = sum(category.elementwise_ns or 0 for category in categories)
    if elementwise_ns and sentence:
        share = elementwise_ns / sum(category.total_ns for category in categories)
        sentence[-1] += f" (elementwise {format_share(share)})"

    brief = () if options.verbose else tuple(sentence)
    yield from _build_section(table, table.for_people, options, sentence=brief)


def _build_modules(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    modules = report.summary.modules
    # The largest modules are shown in the order of the report, which follows their nesting.
    largest = sorted(range(len(modules)), key=lambda number: -modules[number].share)
    shown = [modules[number] for number in sorted(largest[: options.limit])]

    main = main_modules(modules)
    main = [module for module in main if module.share >= _MIN_SHARE] or main[:1]
    sentence = tuple(
        f"{one_line(module.name)} {format_share(module.share)}" for module in main[:_MAX_MODULES]
    )
    hidden = remainder(len(modules) - len(shown), f"--top {len(modules)}")
    yield from _build_section(
        define_modules(report),
        shown,
        options,
        hidden=hidden,
        sentence=() if options.verbose else sentence,
    )


def _build_kernels(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    table = define_kernels(report)
    kernels: tuple[KernelSummary, ...] = table.for_people[: options.limit]
    main = [
        (short_kernel(one_line(kernel.name), _BRIEF_KERNEL_WIDTH), kernel)
        for kernel in kernels[:_N_BRIEF_CALLS]
    ]
    # The sentence replaces the table if the report does not fit on the screen.
    yield from _build_section(table, kernels, options, sentence_if_full=_list_times(table, main))


def _build_operators(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    table = define_operators(report)
    # Operators without a time only mark a moment.
    operators: list[OpSummary] = [op for op in table.for_people if op.total_ns or op.device_ns]
    main = [(one_line(op.name), op) for op in operators[:_N_BRIEF_CALLS]]
    sentence = _list_times(table, main)

    # The table of kernels names their operators.
    is_brief = bool(report.summary.top_kernels) and not options.verbose
    yield from _build_section(
        table,
        operators[: options.limit],
        options,
        sentence=sentence if is_brief else (),
        sentence_if_full=sentence,
    )


def _list_times(table: Table, named: Sequence[tuple[str, object]]) -> tuple[str, ...]:
    """List names with their time, ``aten::mm 20.1 ms per step``; only the first has the unit."""
    columns = (column for column in table.columns if column.screen_title and column.kind == "ns")
    for column in columns:
        times = [(name, column.value_in(item)) for name, item in named]
        texts = [f"{name} {format_ns(ns)}" for name, ns in times if ns]
        # Without steps the times per step are unknown, and the next column is the first one shown.
        if any(ns is not None for _, ns in times):
            unit = " per step" if column.screen_title.endswith("per step") else ""
            return (texts[0] + unit, *texts[1:]) if texts else ()
    return ()


def _build_lines(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    table = define_lines(report)
    lines = table.for_people[: options.limit] if options.verbose else ()
    yield from _build_section(table, lines, options)
