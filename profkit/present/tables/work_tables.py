"""Where the time went: categories, kernels, operators, modules, source lines, functions, regions.

Tables with times per step are sorted by them. Without steps their headings say ``in total``.
"""

from collections.abc import Mapping
from typing import Final

from profkit.dataclass import replace
from profkit.model.report import Report
from profkit.present.facts import busiest_kernels, busiest_ops
from profkit.present.labels import (
    categories_title,
    device_noun,
    function_name,
    sampled_title,
    table_title,
)
from profkit.present.modules import module_label
from profkit.present.tables.columns import (
    CALLED_IN_TOTAL,
    CALLED_PER_STEP,
    CALLS,
    IN_TOTAL,
    OF_PEAK,
    PER_STEP,
    THROUGHPUT,
    THROUGHPUT_NAMES,
)
from profkit.present.tables.definition import Column, Table, with_screen_titles

_CATEGORY_COLUMNS: Final = (
    Column("text", "kind", "category"),
    CALLED_PER_STEP,
    CALLED_IN_TOTAL,
    Column("share", "share", "share", "of all categories"),
    CALLS,
    Column(
        "ns", "elementwise_ns", "elementwise",
        "in elementwise kernels, casts and copies of elements among them", screen="",
    ),
)  # fmt: skip

_KERNEL_TIMES: Final = (
    Column("kernel", "name", "kernel"),
    CALLED_PER_STEP,
    CALLED_IN_TOTAL,
    Column("share", "share", "share", "of the time of all kernels"),
    OF_PEAK,
    CALLS,
    Column("ns", "mean_ns", "mean", "mean length of a call", screen=""),
)
_KERNEL_DETAILS: Final = (
    Column(
        "number", "blocks_per_sm", "blocks",
        "per multiprocessor, on average; below 1 some had none", screen="",
    ),
    Column(
        "share", "occupancy_share", "occupancy",
        "of the warps that the device can hold: the profiler's estimate from launches, not "
        "measured", screen="",
    ),
    Column("text", "matmul_units"),
    Column(
        "text", "", "tensor cores",
        "whether a matmul uses them, by its name; many names do not tell", screen="",
        value=lambda kernel: "yes" if kernel.tensor_cores else "no" if kernel.cuda_cores else None,
    ),
    *THROUGHPUT,
    Column("text", "category", "category", "the kind of most of its work", screen=""),
    Column(
        "place", "location", "line", "the source line that launched most of its time",
        screen="source line",
    ),
    Column("name", "op", "operator", "the operator that launched most of its time"),
    Column(
        "name", "module", "module", "the nn.Module that launched most of its time", screen=""
    ),
)  # fmt: skip

_ON_DEVICE: Final = "device work that it launched itself"
_WITH_CALLEES: Final = "on the host, with the operators that it calls"
_ALONE: Final = "on the host, without the operators that it calls"
_OPERATOR_COLUMNS: Final = (
    Column("name", "name", "operator"),
    Column("ns", "device_per_step_ns", "device per step", f"{_ON_DEVICE}: {PER_STEP}", screen=""),
    Column("ns", "per_step_ns", "host per step", f"{_WITH_CALLEES}: {PER_STEP}", screen=""),
    Column("ns", "self_per_step_ns", "self per step", f"{_ALONE}: {PER_STEP}", screen=""),
    Column("ns", "device_ns", "device in total", f"{_ON_DEVICE}, {IN_TOTAL}", screen=""),
    Column("ns", "total_ns", "host in total", f"{_WITH_CALLEES}, {IN_TOTAL}", screen=""),
    Column("ns", "self_ns", "self in total", f"{_ALONE}, {IN_TOTAL}", screen=""),
    OF_PEAK,
    CALLS,
    *THROUGHPUT,
    Column(
        "place", "location", "line", "the source line with most of its time", screen="source line"
    ),
)

_WITH_BACKWARD: Final = "its backward pass included"
_OF_MODULE: Final = "its calls, and the operators of its backward pass"
_WITHOUT_INNER: Final = "without the modules that it calls"
_MODULE_COLUMNS: Final = (
    Column(
        "name", "", "module", "indented below the module that called it", value=module_label
    ),
    Column("text", "name"),
    Column("count", "n_modules", "modules", "layers of one structure are one row", screen=""),
    Column("count", "depth"),
    Column(
        "ns", "device_per_step_ns", "device per step", f"{_WITH_BACKWARD}: {PER_STEP}", screen=""
    ),
    Column("ns", "self_device_per_step_ns", "self, device per step", _WITHOUT_INNER, screen=""),
    Column("ns", "host_per_step_ns", "host per step", f"{_OF_MODULE}: {PER_STEP}", screen=""),
    Column("ns", "self_host_per_step_ns", "self, host per step", _WITHOUT_INNER, screen=""),
    Column("ns", "device_ns", "device in total", f"{_WITH_BACKWARD}, {IN_TOTAL}", screen=""),
    Column("ns", "self_device_ns", "self, device in total", _WITHOUT_INNER, screen=""),
    Column("ns", "host_ns", "host in total", f"{_OF_MODULE}, {IN_TOTAL}", screen=""),
    Column("ns", "self_host_ns", "self, host in total", _WITHOUT_INNER, screen=""),
    Column(
        "share", "share", "share", "of all device work, or without devices of the recording"
    ),
    OF_PEAK,
    CALLS,
    *THROUGHPUT,
)  # fmt: skip

_LAUNCHED: Final = "device work that they launched"
_OF_OPERATORS: Final = "host time of these operators"
_LINE_COLUMNS: Final = (
    Column(
        "place", "location", "line", "with the operators of its backward pass",
        screen="source line",
    ),
    Column("ns", "device_per_step_ns", "device per step", f"{_LAUNCHED}: {PER_STEP}", screen=""),
    Column("ns", "host_per_step_ns", "host per step", f"{_OF_OPERATORS}: {PER_STEP}", screen=""),
    Column("ns", "device_ns", "device in total", f"{_LAUNCHED}, {IN_TOTAL}", screen=""),
    Column("ns", "host_ns", "host in total", f"{_OF_OPERATORS}, {IN_TOTAL}", screen=""),
    *THROUGHPUT,
    OF_PEAK,
    Column("count", "n_ops", "operators", "calls, nested ones included"),
)  # fmt: skip

_FUNCTION_COLUMNS: Final = (
    Column(
        "name", "", "function", value=lambda function: function.callee or function_name(function)
    ),
    Column(
        "place", "location", "line", "the line that most of its samples were at",
        screen="source line",
    ),
    Column("name", "library", "most often in", "the library that it called"),
    Column("count", "n_samples", "samples", "of threads that used a core"),
    Column("ns", "time_ns"),
    Column("share", "share", "share", "of the time that threads ran, or of the steps"),
)  # fmt: skip

_REGION_COLUMNS: Final = (
    Column("name", "name", "region"),
    CALLED_PER_STEP,
    Column("ns", "total_ns", "total", "sum of their lengths on the host"),
    Column("ns", "device_ns", "device in total", "device work launched within"),
    Column("count", "n_calls", "entries", "in the whole recording"),
)


def define_categories(report: Report) -> Table:
    """Define the table of categories: of kernels, or without devices of operators."""
    return Table(
        "categories",
        categories_title(report),
        _CATEGORY_COLUMNS,
        report.summary.categories,
        sorted_by="total",
        word="category",
        exported="kind n_calls total_ns per_step_ns share elementwise_ns",
    )


def define_kernels(report: Report, extremes: Mapping[str, tuple[int, int]] | None = None) -> Table:
    """Define the table of kernels.

    Args:
        extremes: The shortest and the longest call of each kernel in nanoseconds, by its name. The
            report has means only: these need the recording.
    """
    per_step, kernels = busiest_kernels(report)
    # Extremes stand next to the mean, between columns that do not need the recording.
    ends: tuple[Column, ...] = ()
    if extremes:
        ends = (
            Column("ns", "", "shortest", "its shortest call", "", lambda e: extremes[e.name][0]),
            Column("ns", "", "longest", "its longest call", "", lambda e: extremes[e.name][1]),
        )

    return Table(
        "kernels",
        table_title("Kernels", per_step=per_step),
        (*_KERNEL_TIMES, *ends, *_KERNEL_DETAILS),
        report.summary.top_kernels,
        tuple(kernels),
        sorted_by="per step" if per_step else "total",
        word="kernel",
        full_name="name",
        exported="name n_calls total_ns per_step_ns mean_ns share blocks_per_sm occupancy_share op "
        f"module category matmul_units {THROUGHPUT_NAMES} location",
    )


def define_operators(report: Report) -> Table:
    """Define the table of operators; people read those that launch work, if any do."""
    per_step, on_device, operators = busiest_ops(report)
    # A screen has room for three times: the ones by which operators are ranked, and a total.
    device = device_noun(report)
    titles = {
        (True, True): {
            "device per step": f"{device} per step",
            "self per step": "CPU per step",
            "device in total": f"{device} total",
        },
        (True, False): {"device in total": f"on {device}", "self in total": "self CPU"},
        (False, True): {
            "host per step": "per step",
            "self per step": "self per step",
            "host in total": "total",
        },
        (False, False): {"host in total": "total", "self in total": "self"},
    }[on_device, per_step]

    columns = with_screen_titles(_OPERATOR_COLUMNS, titles)
    # Where no operator launches work, the time of the work is a column of zeros.
    if not on_device:
        columns = tuple(
            replace(column, title="") if column.title.startswith("device") else column
            for column in columns
        )
    first = f"{'device' if on_device else 'self'} {'per step' if per_step else 'in total'}"
    return Table(
        "operators",
        table_title("Operators", per_step=per_step),
        columns,
        report.summary.top_ops,
        tuple(operators),
        sorted_by=first,
        word="operator",
        exported="name n_calls total_ns self_ns device_ns per_step_ns self_per_step_ns "
        f"device_per_step_ns {THROUGHPUT_NAMES} location",
    )


def define_modules(report: Report) -> Table:
    """Define the table of modules, in the order of their nesting."""
    modules = report.summary.modules
    on_device = any(module.device_ns is not None for module in modules)
    per_step = any(module.host_per_step_ns is not None for module in modules)

    # A screen has the times of one side, by which the share of a module is counted.
    side, device = ("device", device_noun(report)) if on_device else ("host", "")
    titles = {f"{side} in total": f"on {device}" if device else "total"}
    titles[f"self, {side} in total"] = "self"
    if per_step:
        titles = {
            f"{side} per step": f"{device} per step".strip(),
            f"self, {side} per step": "self per step",
            f"{side} in total": "total",
        }

    return Table(
        "modules",
        table_title("Modules", per_step=per_step),
        with_screen_titles(_MODULE_COLUMNS, titles),
        modules,
        exported="name n_modules depth n_calls host_ns self_host_ns device_ns self_device_ns "
        "host_per_step_ns self_host_per_step_ns device_per_step_ns self_device_per_step_ns share "
        f"{THROUGHPUT_NAMES}",
    )


def define_lines(report: Report) -> Table:
    """Define the table of source lines, in the order of their totals."""
    lines = report.summary.lines
    on_device = any(line.device_ns is not None for line in lines)
    per_step = any(line.host_per_step_ns is not None for line in lines)

    # Host time is all self time: operators of a line are counted without those that they call.
    device = device_noun(report)
    titles = {
        (True, True): {
            "device per step": f"{device} per step",
            "host per step": "CPU per step",
            "device in total": f"{device} total",
        },
        (True, False): {"device in total": f"on {device}", "host in total": "self CPU"},
        (False, True): {"host per step": "self per step", "host in total": "total"},
        (False, False): {"host in total": "self"},
    }[on_device, per_step]

    return Table(
        "lines",
        table_title("Source lines", per_step=per_step),
        with_screen_titles(_LINE_COLUMNS, titles | {"TFLOP/s": "TFLOP/s"}),
        lines,
        sorted_by="device in total" if on_device else "host in total",
        word="source line",
        exported="n_ops host_ns device_ns host_per_step_ns device_per_step_ns "
        f"{THROUGHPUT_NAMES} location",
    )


def define_functions(report: Report) -> Table:
    """Define the table of functions of user code in which samples of stacks were."""
    sampled = report.summary.sampled
    title = "Functions" if sampled is None else sampled_title(sampled)
    functions = () if sampled is None else sampled.functions
    return Table(
        "functions",
        title,
        _FUNCTION_COLUMNS,
        functions,
        sorted_by="share",
        exported="library n_samples time_ns share location",
    )


def define_regions(report: Report) -> Table:
    """Define the table of regions."""
    return Table(
        "regions",
        "Regions",
        _REGION_COLUMNS,
        report.summary.regions,
        sorted_by="total",
        word="region",
        exported="name n_calls total_ns per_step_ns device_ns",
    )
