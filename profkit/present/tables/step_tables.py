"""Steps, their parts, and their FLOPs."""

from typing import Final

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.model.step_summary import StepPart, StepSummary
from profkit.present.tables.definition import Column, Table

_PART_COLUMNS: Final = (
    Column("text", "step", value="step.name"),
    Column("text", "part", value="part.kind"),
    Column("ns", "ns", value="part.ns"),
)
_FLOP_COLUMNS: Final = (
    Column("text", "precision"),
    Column("count", "n_flops", value="flops"),
    Column("count", "n_flops_per_step", value="per_step_flops"),
    Column("count", "n_model_flops_per_step", value="model_flops_per_step"),
    Column("ns", "time_ns"),
    Column("share", "utilization_share"),
    Column("share", "known_share"),
    Column("share", "model_utilization_share"),
)


@dataclass(frozen=True)
class _PartOfStep:
    """A part of the time of a step."""

    step: StepSummary
    part: StepPart


def define_steps(report: Report) -> Table:
    """Define the table of steps, on the host and on devices that it runs ahead of."""
    steps = report.summary.steps
    runs_ahead = any(step.device_dur_ns is not None for step in steps)
    columns = (
        Column("name", "name", "step"),
        Column("ns", "start_ns"),
        Column("ns", "dur_ns", "step time, host" if runs_ahead else "step time", "on the host"),
        Column("ns", "device_start_ns"),
        Column(
            "ns",
            "device_dur_ns",
            "step time, device",
            "from the completion of the step before to its own",
        ),
        Column("ns", "gpu_busy_ns", "device busy", "any device ran a kernel or copy"),
        Column("ns", "gpu_idle_ns", "device idle", "the rest of the step"),
        Column("ns", "data_wait_ns", "waiting for data", "in a data loader's __next__"),
        Column("ns", "sync_ns", "in syncs", "the host waited for a device"),
    )

    return Table(
        "steps",
        "All steps",
        columns,
        steps,
        exported="name start_ns dur_ns gpu_busy_ns gpu_idle_ns data_wait_ns sync_ns "
        "device_start_ns device_dur_ns",
    )


def define_step_parts(report: Report) -> Table:
    """Define the table of the parts of each step."""
    parts = (_PartOfStep(step, part) for step in report.summary.steps for part in step.parts)
    return Table("step_parts", "Parts of the steps", _PART_COLUMNS, tuple(parts))


def define_flops(report: Report) -> Table:
    """Define the table of the FLOPs of the steps, which has one row."""
    flops = report.summary.flops
    return Table("flops", "FLOPs", _FLOP_COLUMNS, () if flops is None else (flops,))
