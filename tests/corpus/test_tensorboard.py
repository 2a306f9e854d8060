"""Real recordings in TensorBoard: the tab's figures add up, and what it says of the other is so."""

import gzip
import os
from pathlib import Path

import msgspec
import pytest
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.event_parser import ProfileRole

from profkit.api import study
from profkit.integrations.tensorboard.export import write
from profkit.integrations.tensorboard.torch_tb_profiler_errors import misreadings
from profkit.integrations.tensorboard.worker import views_of

CORPUS = Path(os.environ.get("PROFKIT_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
FILES = sorted((*(CORPUS / "traces").glob("*"), *(CORPUS / "snapshots").glob("*")))
MISREAD = ("mi300-resnet-ddp", "a100-ddp-rank0-of-2", "h100-qwen-inference")

pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the corpus of real traces is not here (set PROFKIT_CORPUS)"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_it_has_its_views_and_its_events(path: Path, tmp_path: Path) -> None:
    studied = study(path)
    views = msgspec.json.decode(msgspec.json.encode(views_of(studied)))
    on_device_ns = int(studied.recording.context.events.dur_ns[
        studied.recording.context.launches.work
    ].sum())  # fmt: skip
    assert sum(module["device_ns"] for module in views["modules"]) <= on_device_ns
    spread = {each["name"]: each for each in views["kernels"]}
    for kernel in studied.report.summary.top_kernels:
        assert spread[kernel.name]["min_ns"] <= kernel.mean_ns <= spread[kernel.name]["max_ns"]
    (events,) = write([studied.report], tmp_path)
    assert events.stat().st_size > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
@pytest.mark.parametrize("name", MISREAD)
def test_what_is_said_of_the_other_tab_is_so(name: str, tmp_path: Path) -> None:
    packed = CORPUS / "traces" / f"{name}.json.gz"
    plain = tmp_path / "host_1.pt.trace.json"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    other = RunProfileData.parse("host_1", "1", str(plain), str(tmp_path))
    studied = study(packed)
    told = {each.where for each in misreadings(studied.recording.context, studied.report)}
    summary = studied.report.summary
    assert any(where.startswith("Operator") for where in told)
    assert {op.device_duration for op in other.op_list_groupby_name} == {0}
    assert other.avg_costs.costs[ProfileRole.Runtime] == 0
    is_counted_twice = len(other.steps_names) == 2 * len(summary.steps)
    assert ("Overview: number of steps and their average" in told) == is_counted_twice
    really_us = sum(each.communication_ns for each in summary.devices) / 1000 / len(summary.steps)
    told_us = other.avg_costs.costs[ProfileRole.Communication]
    assert ("Overview: Communication; Distributed" in told) == (told_us < really_us / 10)
