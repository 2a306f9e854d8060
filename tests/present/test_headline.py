"""The verdict says in plain words what a report comes down to."""

from dataclasses import replace

import pytest

from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Cost
from profkit.model.report import Report, Summary
from profkit.present.headline import busiest_ops, cost_share, cost_text, facts, headline
from tests.renderers import reports


def with_breakdown(report: Report, **changes: object) -> Report:
    assert report.summary.breakdown is not None
    told = replace(report.summary.breakdown, **changes)  # type: ignore[arg-type]
    return replace(report, summary=replace(report.summary, breakdown=told))


def test_a_gpu_run_says_how_much_of_it_the_gpu_works() -> None:
    assert headline(reports.gpu_report()).startswith(
        "Each step takes 174 ms; the GPU works 61% of it. The biggest cost: the loader starves "
        "the GPU at train.py:31, up to 65.0 ms a step (37%)."
    )


def test_a_cpu_run_says_so() -> None:
    said = headline(reports.cpu_report())
    assert said.startswith("Each step takes 12.0 ms, all on the CPU; operators run 67% of it.")


def test_memory_is_told_beside_time() -> None:
    assert "And tensors are never freed at train.py:44, 1.50 MiB a step." in headline(
        reports.gpu_report()
    )
    assert " Tensors are never freed" in headline(reports.cpu_report())


def test_without_findings_it_says_why_the_device_is_idle() -> None:
    clean = replace(reports.gpu_report(), findings=(), unchecked=())
    assert headline(clean).endswith(
        "No rule found anything to change. The GPU is idle 37% of the time while the program "
        "waits for data."
    )


def test_rules_that_could_not_look_are_not_counted_as_clean() -> None:
    assert "The rules that could look found nothing" in headline(reports.unchecked_report())


def test_a_recording_without_steps_is_told_by_the_time_in_which_the_device_was_in_use() -> None:
    said = headline(with_breakdown(reports.gpu_report(), n_steps=0, per_step_ns=None))
    assert said.startswith(
        "The recording has no steps; the GPU works 61% of the 1.04 s from its first work to its "
        "last."
    )


def test_a_recording_without_steps_or_devices_is_told_by_its_length() -> None:
    said = headline(with_breakdown(reports.cpu_report(), n_steps=0, per_step_ns=None))
    assert "long and has no steps, all on the CPU" in said


def test_a_single_step_is_one_step() -> None:
    assert headline(with_breakdown(reports.gpu_report(), n_steps=1)).startswith("The step takes")


def test_steps_that_are_little_of_the_recording_are_told_to_be() -> None:
    report = reports.cpu_report()
    longer = replace(report, summary=replace(report.summary, window_ns=3600 * reports.MS))
    assert "operators run 67% of it; steps are 1.0% of the recording." in headline(longer)


def test_a_gpu_whose_work_was_not_recorded_is_no_cpu_run() -> None:
    report = reports.cpu_report()
    blind = replace(report, source=replace(report.source, devices=("NVIDIA A100",)))
    assert "without any work of a device; operators run" in headline(blind)


def test_a_doubtful_recording_lowers_trust() -> None:
    fault = replace(reports.no_stacks(), severity="warning", title="Device events are lost")
    assert headline(replace(reports.gpu_report(), health=(fault,))).endswith(
        "Trust the figures less: device events are lost."
    )


def test_several_devices_are_told_one_by_one() -> None:
    device = DeviceSummary("cuda:0", "A", 100, 50, 50, 30, 30, 10, 5, 1, 1, 0)
    report = replace(
        reports.gpu_report(),
        summary=Summary(100, (device, replace(device, device="cuda:1", communication_ns=0))),
    )
    assert facts(report, everything=False) == [
        (
            "cuda:0 busy 50% of the 100 ns it was in use: compute 30%, copies 5.0%, "
            "communication 30%, compute and communication at once 10%"
        ),
        "cuda:1 busy 50% of the 100 ns it was in use: compute 30%, copies 5.0%",
    ]


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (Cost(ns=174_000_000, per_step_ns=17_400_000), "17.4 ms a step (10%)"),
        (Cost(ns=104_400_000), "104 ms (10%)"),
        (Cost(bytes=1 << 20), "1.00 MiB"),
        (Cost(per_step_bytes=1 << 10, bytes=1 << 20, basis="estimate"), "about 1.00 KiB a step"),
        (Cost(), ""),
        (Cost(ns=0, per_step_ns=0), ""),
    ],
)
def test_a_cost_is_told_by_step_where_there_are_steps(cost: Cost, said: str) -> None:
    report = reports.gpu_report()
    finding = replace(report.findings[0], cost=cost)
    report = replace(report, findings=(finding,))
    text = cost_text(report, finding)
    assert text == said


def test_a_cost_that_hardly_shows_is_no_headline() -> None:
    report = reports.gpu_report()
    small = replace(report.findings[0], cost=Cost(ns=6_000_000, per_step_ns=1_000_000))
    said = headline(replace(report, findings=(small,)))
    assert "No finding takes a hundredth of it. The GPU is idle 37% of the time" in said


def test_a_share_is_unknown_without_a_length() -> None:
    report = replace(reports.gpu_report(), summary=Summary(0))
    assert cost_share(report, report.findings[0]) is None


def test_operators_rank_by_what_they_launch_themselves() -> None:
    on_device, ops = busiest_ops(reports.gpu_report())
    assert on_device
    assert [op.name for op in ops] == ["aten::cudnn_convolution", "aten::mm"]
    on_device, ops = busiest_ops(reports.cpu_report())
    assert (on_device, [op.name for op in ops]) == (False, ["aten::addmm"])
