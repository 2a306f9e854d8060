"""Real recordings: tables of the report add up, and the reported misreadings occur."""

import gzip
from pathlib import Path

import pytest
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.event_parser import ProfileRole

from profkit.api import study
from profkit.integrations.tensorboard.export import write
from profkit.integrations.tensorboard.torch_tb_profiler_errors import find_misreadings
from profkit.present.recording_tables import find_kernel_extremes, find_module_times
from tests.corpus.recordings import CORPUS, SNAPSHOTS, TRACES, needs_corpus

FILES = sorted((*TRACES.glob("*"), *SNAPSHOTS.glob("*")))
MISREAD = ("mi300-resnet-ddp", "a100-ddp-rank0-of-2", "h100-qwen-inference")

pytestmark = [pytest.mark.slow, needs_corpus]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_tables_add_up_and_events_are_written(path: Path, tmp_path: Path) -> None:
    studied = study(path)
    ctx, kernels = studied.recording.context, studied.report.summary.top_kernels
    on_device_ns = int(ctx.events.dur_ns[ctx.launches.work].sum())
    assert sum(module.device_ns for module in find_module_times(ctx)) <= on_device_ns
    extremes = find_kernel_extremes(ctx, kernels)
    for kernel in kernels:
        shortest, longest = extremes[kernel.name]
        assert shortest <= kernel.mean_ns <= longest
    (events,) = write([studied.report], tmp_path)
    assert events.stat().st_size > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
@pytest.mark.parametrize("name", MISREAD)
def test_the_reported_misreadings_occur(name: str, tmp_path: Path) -> None:
    packed = CORPUS / "traces" / f"{name}.json.gz"
    plain = tmp_path / "host_1.pt.trace.json"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    profile = RunProfileData.parse("host_1", "1", str(plain), str(tmp_path))
    studied = study(packed)
    reported = {
        misreading.where
        for misreading in find_misreadings(studied.recording.context, studied.report)
    }

    summary = studied.report.summary
    assert any(where.startswith("Operator") for where in reported)
    assert {op.device_duration for op in profile.op_list_groupby_name} == {0}
    assert profile.avg_costs.costs[ProfileRole.Runtime] == 0

    is_counted_twice = len(profile.steps_names) == 2 * len(summary.steps)
    assert ("Overview: number of steps and their average" in reported) == is_counted_twice
    actual_us = (
        sum(device.communication_ns for device in summary.devices) / 1000 / len(summary.steps)
    )
    shown_us = profile.avg_costs.costs[ProfileRole.Communication]
    assert ("Overview: Communication; Distributed" in reported) == (shown_us < actual_us / 10)
