"""Columns that several tables have."""

from typing import Final

from profkit.present.tables.definition import Column

PER_STEP: Final = "what begins in the time of the steps, divided by their number"
IN_TOTAL: Final = "in the whole recording, outside of steps too"

CALLS: Final = Column("count", "n_calls", "calls", "in the whole recording")
CALLED_PER_STEP: Final = Column("ns", "per_step_ns", "per step", PER_STEP)
CALLED_IN_TOTAL: Final = Column(
    "ns", "total_ns", "total", "sum of the lengths of all its calls"
)  # fmt: skip

PLACE: Final = (
    Column("place", "location"),
    Column("text", "op", value="location.op"),
    Column("text", "module", value="location.module"),
)
"""Where something was called, for programs: file, line, function, operator and module."""

THROUGHPUT: Final = (
    Column(
        "number", "", "TFLOP/s", "floating-point operations, computed from the shapes of inputs",
        screen="", value="throughput.tflops_per_s",
    ),
    Column(
        "number", "", "GB/s", "each tensor in and out once, computed from the shapes of inputs",
        screen="", value="throughput.gb_per_s",
    ),
    Column(
        "share", "flops_share", "of peak FLOPs",
        "of what the device computes at most in this precision",
        screen="", value="throughput.flops_share",
    ),
    Column(
        "share", "bandwidth_share", "of bandwidth",
        "of that of the device's memory; above 1 caches served some",
        screen="", value="throughput.bandwidth_share",
    ),
    Column("count", "n_timed", value="throughput.n_calls"),
    Column("ns", "timed_ns", value="throughput.time_ns"),
    Column("count", "n_flops", value="throughput.flops"),
    Column("bytes", "moved_bytes", value="throughput.bytes"),
)  # fmt: skip
"""Computed FLOPs and moved bytes: rates for people, what they are made of for programs."""
THROUGHPUT_NAMES: Final = "n_timed timed_ns n_flops moved_bytes flops_share bandwidth_share"

OF_PEAK: Final = Column("share", screen="of peak", value="throughput.peak_share")
"""The larger share of the device's limits, for a screen, which has no room for both."""
