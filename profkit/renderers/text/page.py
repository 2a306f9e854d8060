"""One report on its way to the screen, section by section."""

import posixpath
from collections.abc import Callable, Iterable
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from profkit.engine.wording import counted
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.report import Breakdown, Report
from profkit.names import middle_cut, short_kernel, short_path, tail_cut, visible
from profkit.present.headline import (
    breakdown_title,
    busiest_ops,
    cost_text,
    device_noun,
    facts,
    headline,
    origin,
    overhead_text,
    part_label,
    unchecked_by_reason,
)
from profkit.present.memory_text import (
    MemorySeriesRow,
    allocation_tables,
    device_series_rows,
    not_measured,
    place_of,
    series_rows,
    shows_series,
    use_of,
)
from profkit.renderers.text.layout import (
    FIGURE_WIDTH,
    INDENT,
    LABEL_WIDTH,
    Options,
    bar,
    both_ends,
    grid,
    hanging,
    heading,
    indented,
    prose,
)
from profkit.renderers.text.tables import Row, rows_of
from profkit.units import format_bytes, format_count, format_ns, format_share

_TINY_SHARE: Final = 0.01
"""Parts of a step below this share one line."""
_STRETCH_WORTH_SAYING: Final = 0.05
_ALSO_AT: Final = "also at: "
_MORE_PLACES: Final = 3
_DRAWN_FROM: Final = 60
"""A narrower screen has room for the labels and figures of a step alone."""
_MOST_COLUMNS: Final = 24
"""A longer course of memory says no more."""
_SEVERITY_STYLE: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_PART_STYLE: Final = {"compute": "green", "communication": "magenta", "copy": "cyan"}
_IDLE_STYLE: Final = "red"
_WORK_STYLE: Final = "green"


class Page:
    """One report on its way to the screen."""

    def __init__(self, report: Report, options: Options, width: int, wide: int) -> None:
        """Begin a page.

        Args:
            options: The layout.
            width: Columns of sentences.
            wide: Columns of tables.
        """
        self.report = report
        self.options = options
        self.width = width
        self.wide = wide

    def parts(self) -> Iterable[RenderableType]:
        """Everything on the page, from top to bottom."""
        yield self.header()
        yield ""
        yield Text(prose(headline(self.report)), style="bold")
        for section in self.sections():
            shown = list(section())
            if shown:
                yield ""
                yield from shown

    def sections(self) -> tuple[Callable[[], Iterable[RenderableType]], ...]:
        """The parts that are shown only where they have something to say."""
        return (
            self.time, self.findings, self.memory, self.sites, self.kernels, self.operators,
            self.details, self.unchecked, self.recording,
        )  # fmt: skip

    def header(self) -> Text:
        """What was analyzed: on one line where that fits, else its file on a line of its own."""
        first = [f"profkit {visible(self.report.profkit)}"]
        rest = [visible(word) for word in origin(self.report)]
        if self.report.source.path:
            first.append(self.path(self.report.source.path))
        line = " · ".join((*first, *rest))
        if cell_len(line) > self.width:
            room = self.width - cell_len(first[0]) - cell_len(" · ")
            file = [tail_cut(path, room) for path in first[1:]]
            line = "\n".join(filter(None, (" · ".join((first[0], *file)), " · ".join(rest))))
        return Text(line, style="dim", overflow="fold")

    def path(self, file: str) -> str:
        """A path as it is shown: safe, and short."""
        return visible(short_path(file, self.options.base))

    def place(self, where: Location) -> str:
        """A location as ``train.py:12``, or its operator, or nothing."""
        if where.file is None or where.line is None:
            return visible(where.op or "")
        place = f"{self.path(where.file)}:{where.line}"
        if where.precision == "function" and where.function:
            return f"{visible(where.function)} ({place})"
        return place

    def short_place(self, where: Location | None) -> str:
        """A location in a table: ``train.py:12``, or ``train.py:forward`` for a function."""
        if where is None or where.file is None:
            return ""
        at = where.function if where.precision == "function" else where.line
        return visible(f"{posixpath.basename(short_path(where.file))}:{at}")

    def time(self) -> Iterable[RenderableType]:
        """The step's time, each part a bar that begins where the one before ended."""
        breakdown = self.report.summary.breakdown
        if breakdown is None or not breakdown.total_ns:
            return
        yield self.time_heading(breakdown)
        draws = self.width >= _DRAWN_FROM
        table = grid()
        table.add_column(width=LABEL_WIDTH if draws else None, no_wrap=draws)
        table.add_column(justify="right", width=FIGURE_WIDTH)
        table.add_column(justify="right", width=5)
        table.add_column(no_wrap=True, overflow="crop")
        room = max(self.width - LABEL_WIDTH - FIGURE_WIDTH - 5 - 5 - 1, 1)
        before = 0.0
        tiny = []
        for part in breakdown.parts:
            ns = part.ns if part.per_step_ns is None else part.per_step_ns
            if part.share >= _TINY_SHARE:
                idle = part.kind.startswith(("idle-", "data", "python"))
                style = _PART_STYLE.get(part.kind, _IDLE_STYLE if idle else _WORK_STYLE)
                shown = bar(before, part.share, room, "▒" if idle else "█") if draws else ""
                share = format_share(part.share)
                table.add_row(part_label(part.kind), format_ns(ns), share, Text(shown, style=style))
            elif part.ns:
                tiny.append(f"{part_label(part.kind)} {format_ns(ns)}")
            before += part.share
        yield Padding(table, (0, 0, 0, 2))
        if tiny:
            yield hanging("smaller parts: ", ", ".join(tiny), "dim")

    def time_heading(self, breakdown: Breakdown) -> Text:
        """``A step: 174 ms`` with the shortest and the longest step."""
        if breakdown.per_step_ns is None:
            return heading(breakdown_title(self.report), format_ns(breakdown.total_ns))
        figures = format_ns(breakdown.per_step_ns)
        lengths = [step.dur_ns for step in self.report.summary.steps]
        if len(lengths) > 1:
            shortest, longest = format_ns(min(lengths)), format_ns(max(lengths))
            spread = f": {shortest} to {longest}" if shortest != longest else ""
            figures += f" (mean of {len(lengths)}{spread})"
        return heading("A step", figures)

    def findings(self) -> Iterable[RenderableType]:
        """What to change, most costly first."""
        every = self.report.findings
        if not every:
            return
        shown = every[: self.options.most]
        yield heading("What to change", f"{format_count(len(every))} found, most costly first")
        for number, finding in enumerate(shown, start=1):
            yield from self.finding(number, finding)
        hidden = len(every) - len(shown)
        if hidden:
            text = f"and {format_count(hidden)} more, with --top {len(every)}"
            yield Text(f"    {text}", style="dim")

    def finding(self, number: int, finding: Finding) -> Iterable[RenderableType]:
        """One finding: where and what it costs, what happens, what to write instead."""
        place = self.head_place(finding)
        left = Text(f"{number:>2}  ").append(place, style="bold").append("  ")
        left.append(finding.severity, style=_SEVERITY_STYLE[finding.severity])
        name = f" {visible(finding.name)} {visible(finding.rule)}"
        fits = left.cell_len + cell_len(name) <= self.width
        left.append(name if fits else f" {middle_cut(visible(finding.rule), FIGURE_WIDTH)}")
        yield from both_ends(left, Text(cost_text(self.report, finding), "bold"), self.width)
        doubt = "" if finding.confidence == "high" else f" ({finding.confidence} confidence)"
        yield indented(finding.message + doubt)
        if finding.fix:
            yield hanging("fix: ", finding.fix, "green")
        yield from self.holders(finding)
        room = self.width - INDENT - cell_len(_ALSO_AT) - 1
        others = [tail_cut(each, room) for each in map(self.place, finding.locations[1:]) if each]
        listed = others if self.options.verbose else others[:_MORE_PLACES]
        rest = f" and {len(others) - len(listed)} more" if len(others) > len(listed) else ""
        if listed:
            yield hanging(_ALSO_AT, ", ".join(listed) + rest, "dim")
        if self.options.verbose and finding.evidence:
            figures = (f"{key} {value}" for key, value in finding.evidence.items())
            yield hanging("evidence: ", "; ".join(figures), "dim")

    def head_place(self, finding: Finding) -> str:
        """What a finding's heading begins with: its line, else who holds what it is about."""
        if not finding.locations:
            holder = "".join(finding.holders[0]) if finding.holders else ""
            return middle_cut(visible(holder), self.width // 2) or "no line known"
        return self.fitting_place(finding.locations[0], self.width // 2)

    def fitting_place(self, where: Location, width: int) -> str:
        """A location with its path where that fits, else with the file's name alone."""
        place = self.place(where)
        return place if cell_len(place) <= width else middle_cut(visible(where.place), width)

    def holders(self, finding: Finding) -> Iterable[RenderableType]:
        """The chains of who holds what a finding is about, the shortest first."""
        shown = finding.holders[: None if self.options.verbose else 1]
        hidden = len(finding.holders) - len(shown)
        for chain in shown:
            more = f" and {counted(hidden, 'other')}" if hidden else ""
            yield hanging("held by: ", "".join(chain) + more, "dim")

    def memory(self) -> Iterable[RenderableType]:
        """How a watched program's memory went, or that of a snapshot's devices."""
        if shows_series(self.report):
            yield from self.memory_series("Memory by step", series_rows(self.report))
        yield from self.memory_series("Memory over the history", device_series_rows(self.report))

    def memory_series(self, title: str, every: list[MemorySeriesRow]) -> Iterable[RenderableType]:
        """A table of figures: first, last, highest, and how they went between."""
        if not every:
            return
        room = max(min(self.width // 3, _MOST_COLUMNS), FIGURE_WIDTH)
        rows = [
            Row(
                visible(course.name),
                (
                    format_bytes(course.first_bytes),
                    format_bytes(course.last_bytes),
                    format_bytes(course.highest_bytes),
                ),
                course.drawn(room),
                style="cyan",
            )
            for course in every
        ]
        yield rows_of((title, "first", "last", "highest", "course"), rows, self.width)

    def sites(self) -> Iterable[RenderableType]:
        """What stood on each device of a snapshot, by the line that allocated it."""
        for number, each in enumerate(
            allocation_tables(self.report, everything=self.options.verbose)
        ):
            if number:
                yield ""
            yield heading(visible(each.title), format_bytes(each.total_bytes))
            rows = []
            for site in each.sites[: self.options.most]:
                place = place_of(site)
                if site.location.line is not None:
                    place = self.fitting_place(site.location, self.wide // 2)
                share = format_share(each.share(site))
                figures = (format_count(site.n), format_bytes(site.bytes), share)
                rows.append(Row(visible(place), figures, use_of(site)))
            if rows:
                titles = ("allocated at", "blocks", "bytes", "share", "used for")
                yield rows_of(titles, rows, self.wide)

    def kernels(self) -> Iterable[RenderableType]:
        """The kernels that take longest."""
        every = self.report.summary.top_kernels
        rows = []
        for kernel in every[: self.options.most]:
            place, op = self.short_place(kernel.location), visible(kernel.op or "")
            total, share = format_ns(kernel.total_ns), format_share(kernel.share)
            rows.append(
                Row(
                    visible(short_kernel(kernel.name, max(self.wide // 2, LABEL_WIDTH))),
                    (format_count(kernel.n_calls), total, share),
                    " · ".join(word for word in (place, op) if word),
                    place,
                )
            )
        if rows:
            yield rows_of(("Kernels", "calls", "total", "share", "launched by"), rows, self.wide)

    def operators(self) -> Iterable[RenderableType]:
        """The operators that take longest: on the device where there is one, else themselves."""
        on_device, every = busiest_ops(self.report)
        figures = (f"on {device_noun(self.report)}", "self") if on_device else ("self", "total")
        rows = [
            Row(
                visible(op.name),
                (
                    format_count(op.n_calls),
                    format_ns(op.device_ns if on_device else op.self_ns),
                    format_ns(op.self_ns if on_device else op.total_ns),
                ),
                self.short_place(op.location),
            )
            for op in every[: self.options.most]
        ]
        if rows:
            yield rows_of(("Operators", "calls", *figures, "most at"), rows, self.wide)

    def details(self) -> Iterable[RenderableType]:
        """Devices and memory, and what else was counted: a line each."""
        for line in facts(self.report, everything=self.options.verbose):
            yield indented(line, 0)

    def unchecked(self) -> Iterable[RenderableType]:
        """Which rules could not look, by what they lacked."""
        if self.report.unchecked:
            count = len(self.report.unchecked)
            yield heading("Not checked", f"{counted(count, 'rule')} could not look")
        for reason, ids in unchecked_by_reason(self.report, everything=self.options.verbose):
            yield hanging("- ", f"{reason} ({ids})", "", INDENT // 2)

    def recording(self) -> Iterable[RenderableType]:
        """What the recording itself did to the figures."""
        source = self.report.source
        lines: list[RenderableType] = []
        for fault in self.report.health:
            style = _SEVERITY_STYLE[fault.severity]
            text = f"{fault.message} {fault.fix}"
            lines.append(hanging(f"{fault.severity} {fault.rule}: ", text, style, INDENT // 2))
        if source.overhead_ratio is not None and source.overhead_ratio >= _STRETCH_WORTH_SAYING:
            lines.append(indented(overhead_text(source.overhead_ratio), 2))
        lines += [indented(sentence, 2) for sentence in not_measured(self.report)]
        if source.lines_from == "other-step":
            text = "Times are from steps without stacks; lines are from another step of the loop."
            lines.append(indented(text, 2))
        if lines:
            yield heading("The recording", "")
            yield from lines
