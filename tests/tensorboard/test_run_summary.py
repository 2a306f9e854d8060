"""The main figures of a report are the report's own."""

from pathlib import Path

from profkit.api import analyze
from profkit.integrations.tensorboard.run_summary import summarize_run
from tests.tensorboard.recordings import MB, REDUCE_NS, STEPS, write_gpu_training


def test_the_main_figures_match_the_report(tmp_path: Path) -> None:
    report = analyze(write_gpu_training(tmp_path))
    run = summarize_run(report)
    (device,) = report.summary.devices
    assert device.communication_ns == STEPS * REDUCE_NS
    assert run.data_wait_ns == STEPS * 300_000
    assert [(peak.device, peak.bytes) for peak in run.peaks] == [("cuda:0", 4 * MB)]
    assert run.n_errors + run.n_warnings + run.n_notes == len(report.findings)
