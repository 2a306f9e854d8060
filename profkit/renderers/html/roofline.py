"""FLOP/s over arithmetic intensity of kernels or operators, below the device's roofs, as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, log10, sqrt
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.model.work_summary import FlopSummary, KernelSummary, OpSummary, Throughput
from profkit.names import short_kernel
from profkit.present.tables.definition import Column, Table
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, build_table, cell, table_data
from profkit.units import format_ns, format_number, format_share

_WIDTH: Final = 860
_HEIGHT: Final = 400
_LEFT: Final = 78
_RIGHT: Final = 150
"""Room for the labels of the roofs."""
_TOP: Final = 14
_BOTTOM: Final = 46
_LINE_HEIGHT: Final = 14
_LARGEST_RADIUS: Final = 22.0
_SMALLEST_RADIUS: Final = 4.0
_COLORS: Final = {
    "matmul": 3, "convolution": 1, "attention": 5, "pointwise": 2, "normalization": 6,
    "reduction": 4, "embedding": 7,
}  # fmt: skip
_OTHER: Final = 8
_COLUMNS: Final = (
    Column("name", "name", "name"),
    Column("text", "category", "category"),
    Column("ns", "", "time", "of the calls whose work is known", value="throughput.time_ns"),
    Column("number", "intensity", "FLOPs per byte", "arithmetic intensity"),
    Column("number", "", "TFLOP/s", value="throughput.tflops_per_s"),
    Column("number", "", "GB/s", value="throughput.gb_per_s"),
    Column(
        "share", "", "of its roof",
        "of the lower of the two roofs at its intensity; above 1 caches served some",
        value="throughput.peak_share",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Work:
    """A kernel or an operator with FLOPs and bytes."""

    name: str
    full_name: str
    category: str
    throughput: Throughput

    @property
    def intensity(self) -> float:
        """Return the FLOPs per byte."""
        return self.throughput.flops / (self.throughput.bytes or 1)

    @property
    def flops_per_s(self) -> float:
        return self.throughput.flops / self.throughput.time_ns * 1e9


@dataclass(frozen=True)
class RooflineDot:
    """A dot: its place and radius in the drawing, its colour and its text."""

    x: float
    y: float
    radius: float
    color: str
    text: str


@dataclass(frozen=True)
class RoofLine:
    """A line of the drawing, with a label at a place of its own."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    label_y: float


class _Scale:
    """Powers of ten on one axis of the drawing, from ``first`` to ``last`` pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = floor(log10(min(values))), ceil(log10(max(values)))
        self.high = max(self.high, self.low + 1)
        self._first, self._step = first, (last - first) / (self.high - self.low)

    def at(self, value: float) -> float:
        """Return the place of a value in pixels."""
        return round(self._first + (log10(value) - self.low) * self._step, 1)

    def ticks(self) -> range:
        """Return the exponents of ten on the axis."""
        return range(self.low, self.high + 1)


def build_section(report: Report, options: Options) -> Section | None:
    """Return the chart and its table, or None if FLOPs and bytes of no kernel are known."""
    works = sorted(_find_works(report), key=lambda work: -work.throughput.time_ns)
    if not works:
        return None

    # Peaks can be stated in settings: the axes are logarithmic, and have no place for a zero.
    flops = report.summary.flops or FlopSummary(0, 0)
    peaks = tuple(peak for peak in flops.peaks if peak.flops_per_s > 0)
    per_byte = max(flops.peak_bytes_per_s or 0.0, 0.0) or None
    flops = replace(flops, peaks=peaks, peak_bytes_per_s=per_byte)
    rows = build_table(
        Table(
            "roofline-table",
            "Below the roofs",
            _COLUMNS,
            tuple(works),
            sorted_by="time",
            full_name="full_name",
        )
    )
    categories = dict.fromkeys(work.category for work in works)

    return Section(
        id="roofline",
        title="Roofline",
        body=fill(
            "roofline.html.j2",
            width=_WIDTH,
            height=_HEIGHT,
            table=rows,
            of="kernel" if report.summary.top_kernels else "operator",
            has_roofs=bool(flops.peaks or flops.peak_bytes_per_s),
            colors=[(category, _color(category)) for category in categories],
            **_draw(works, flops),
        ),
        scripts=(TABLE_SCRIPT, "roofline.js"),
        data=table_data(rows),
        figure=counted(len(works), "kernel" if report.summary.top_kernels else "operator"),
    )


def _find_works(report: Report) -> Iterator[_Work]:
    """Return kernels, or without devices operators, whose FLOPs and bytes are known."""
    summaries: tuple[KernelSummary | OpSummary, ...] = report.summary.top_kernels
    for summary in summaries or report.summary.top_ops:
        throughput = summary.throughput
        # A saved report may have been edited: logarithms need positive figures.
        if throughput is None:
            continue
        if min(throughput.flops, throughput.bytes or 0, throughput.time_ns) > 0:
            name, category = summary.name, ""
            if isinstance(summary, KernelSummary):
                name, category = short_kernel(name), summary.category
            yield _Work(cell(name), summary.name, category, throughput)


def _draw(works: Sequence[_Work], flops: FlopSummary) -> dict[str, object]:
    """Return the dots, roofs and axes of the drawing."""
    per_byte = flops.peak_bytes_per_s
    highest = max((peak.flops_per_s for peak in flops.peaks), default=None)

    # The axes include all dots, the roofs and the ridge: the intensity at which the slope of the
    # memory reaches the highest roof.
    ridges = [highest / per_byte] if highest and per_byte else []
    intensities = [*(work.intensity for work in works), *ridges]
    x = _Scale(intensities, _LEFT, _WIDTH - _RIGHT)
    tops = [peak.flops_per_s for peak in flops.peaks]
    if per_byte:
        tops += [per_byte * min(intensities)]
        tops += [] if highest else [per_byte * max(intensities)]
    y = _Scale([*(work.flops_per_s for work in works), *tops], _HEIGHT - _BOTTOM, _TOP)

    # The largest dots are drawn first, so that they hide none.
    longest_ns = works[0].throughput.time_ns
    radii = (_LARGEST_RADIUS * sqrt(work.throughput.time_ns / longest_ns) for work in works)
    dots = [
        RooflineDot(
            x.at(work.intensity),
            y.at(work.flops_per_s),
            round(max(_SMALLEST_RADIUS, radius), 1),
            _color(work.category),
            _text(work),
        )
        for work, radius in zip(works, radii, strict=True)
    ]

    return {
        "dots": dots,
        "roofs": list(_draw_roofs(x, y, flops)),
        "x_ticks": [(x.at(10.0**power), _power(power)) for power in x.ticks()],
        "y_ticks": [(y.at(10.0**power), _power(power - 12)) for power in y.ticks()],
        "plot": (_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM),
    }


def _draw_roofs(x: _Scale, y: _Scale, flops: FlopSummary) -> Iterator[RoofLine]:
    """Return a horizontal roof for each precision, and the slope of the memory below them."""
    right, per_byte = 10.0**x.high, flops.peak_bytes_per_s
    label_y = float(_HEIGHT)
    for peak in flops.peaks:
        left = max(10.0**x.low, peak.flops_per_s / per_byte if per_byte else 0.0)
        if left < right:
            label = f"{peak.precision} {format_number(peak.flops_per_s / 1e12)} TFLOP/s"
            roof_y = y.at(peak.flops_per_s)
            # Roofs may be closer than a line of text: a label moves up from the one before.
            label_y = round(min(label_y - _LINE_HEIGHT, roof_y), 1)
            yield RoofLine(x.at(left), roof_y, x.at(right), roof_y, label, label_y)

    if per_byte:
        highest = max((peak.flops_per_s for peak in flops.peaks), default=10.0**y.high)
        top = min(highest, right * per_byte)
        left = max(10.0**x.low, 10.0**y.low / per_byte)
        if left * per_byte < top:
            label = f"{format_number(per_byte / 1e9)} GB/s"
            begin, end = y.at(left * per_byte), y.at(top)
            yield RoofLine(
                x.at(left), begin, x.at(top / per_byte), end, label, (begin + end) / 2 - 8
            )


def _power(power: int) -> str:
    """Return a power of ten as text, without an exponent if it is short."""
    return f"{10**power:,}" if 0 <= power <= 4 else f"{10.0**power:g}"  # noqa: PLR2004  (10,000)


def _color(category: str) -> str:
    return f"--series-{_COLORS.get(category, _OTHER)}"


def _text(work: _Work) -> str:
    throughput = work.throughput
    peak_share = throughput.peak_share
    share = "" if peak_share is None else f", {format_share(peak_share)} of its roof"
    return (
        f"{work.name}: {format_number(throughput.tflops_per_s)} TFLOP/s at "
        f"{format_number(work.intensity)} FLOPs per byte{share}; {format_ns(throughput.time_ns)}"
    )
