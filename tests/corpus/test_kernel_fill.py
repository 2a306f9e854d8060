"""Blocks, occupancy and tensor cores of real recordings, against torch-tb-profiler's own."""

import gzip
import math
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
import pandas as pd
import pytest
from torch_tb_profiler.profiler.kernel_parser import KernelParser
from torch_tb_profiler.profiler.trace import create_event

from profkit.api import study
from profkit.integrations.tensorboard.torch_tb_profiler_errors import Misreading, find_misreadings
from profkit.model.report import Report
from profkit.units import format_share
from tests.corpus.recordings import needs_corpus, trace_path

RECORDED = (
    "a100-ddp-rank0-of-2", "a100-embedding-rank3-of-8", "b200-eager-inference",
    "b300-graph-decode", "h100-qwen-inference", "v100-resnet50-loader-4-workers",
    "mi300-vit-inference",
)  # fmt: skip
OCCUPANCY = "est. achieved occupancy %"
MOST_SHARED_BYTES = 48 * 1024
HALF_A_PERCENT = 0.005

pytestmark = needs_corpus


class Both(NamedTuple):
    """A recording as profkit and as torch-tb-profiler read it, and its kernels as written."""

    report: Report
    theirs: pd.DataFrame
    written: dict[str, list[dict[str, Any]]]
    device: dict[str, Any]
    misread: tuple[Misreading, ...]


@pytest.fixture(scope="module", params=RECORDED)
def both(request: pytest.FixtureRequest) -> Both:
    path = trace_path(request.param)
    trace = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    kernels = [e for e in trace["traceEvents"] if str(e.get("cat")).lower() == "kernel"]
    parser = KernelParser()
    parser.parse_events([create_event(kernel, is_pytorch_lightning=False) for kernel in kernels])
    written = defaultdict(list)
    for launch in kernels:
        written[launch["name"]].append(launch)
    studied = study(path)
    misread = find_misreadings(studied.recording.context, studied.report)
    device = trace["deviceProperties"][0]
    return Both(studied.report, parser.kernel_stat, written, device, misread)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
def test_blocks_per_sm_agree_with_the_other_profiler(both: Both) -> None:
    for kernel in both.report.summary.top_kernels:
        told = [call for call in both.written[kernel.name] if "blocks per SM" in call["args"]]
        if not told:
            assert kernel.blocks_per_sm is None
            continue
        theirs = both.theirs.loc[kernel.name, "blocks_per_sm"]
        assert kernel.blocks_per_sm == pytest.approx(theirs, rel=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
def test_occupancy_equals_theirs_except_where_they_count_unknown_as_zero(both: Both) -> None:
    """Of kernels with over 48 KiB of shared memory the profiler writes 0 for "not worked out".

    torch-tb-profiler takes it for an occupancy. It is one where the whole grid has few threads.
    """
    for kernel in both.report.summary.top_kernels:
        calls = both.written[kernel.name]
        occupancy_calls = [call for call in calls if is_occupancy(call["args"], both.device)]
        theirs = both.theirs.loc[kernel.name, "occupancy"] / 100
        if not occupancy_calls:
            assert kernel.occupancy_share is None
            assert math.isnan(theirs) or theirs == 0
            continue
        summed = sum(call["args"][OCCUPANCY] * call["dur"] for call in occupancy_calls)
        really = summed / sum(call["dur"] for call in occupancy_calls) / 100
        assert kernel.occupancy_share == pytest.approx(really, rel=1e-6, abs=1e-12)
        if len(occupancy_calls) == len(calls):
            assert kernel.occupancy_share == pytest.approx(theirs, rel=1e-6, abs=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
def test_the_error_of_their_mean_is_reported(both: Both) -> None:
    calls = [call for every in both.written.values() for call in every]
    lost = [
        call["dur"]
        for call in calls
        if OCCUPANCY in call["args"] and not is_occupancy(call["args"], both.device)
    ]
    share = sum(lost) / sum(call["dur"] for call in calls)
    reported = [misread.actual for misread in both.misread if "Occupancy" in misread.where]
    if share < 0.05:
        assert reported == []
    else:
        assert reported[0].startswith(f"The occupancy of {format_share(share)} of kernel time")


def is_occupancy(args: dict[str, Any], device: dict[str, Any]) -> bool:
    """Return whether a kernel's written figure is an occupancy."""
    if OCCUPANCY not in args:
        return False
    if args[OCCUPANCY] or args["shared memory"] <= MOST_SHARED_BYTES:
        return True
    threads = math.prod(args["grid"]) * math.prod(args["block"])
    held = device["numSms"] * device["maxThreadsPerMultiprocessor"]
    return threads / held < HALF_A_PERCENT


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The copy keyword")
def test_tensor_core_kernels_of_the_reference_and_newer_names_count(both: Both) -> None:
    """Without Hopper, Blackwell, AMD and attention, the reference's list ends with Ampere."""
    newer = (
        "nvjet_",
        "fmhaSm",
        "flash_fwd_kernel",
        "tensor16x8x8",
        "MmaTensorOp",
        "_MI16x16",
        "_gtcx",
        "_xdl",
    )
    for kernel in both.report.summary.top_kernels:
        theirs = bool(both.theirs.loc[kernel.name, "tc_used"])
        assert kernel.tensor_cores == theirs or any(part in kernel.name for part in newer)
        assert kernel.tensor_cores >= theirs
    (device,) = both.report.summary.devices
    assert device.tensor_core_share is not None
    stat = both.theirs

    told_us = stat[
        stat["tc_used"]
        | stat.index.to_series().map(lambda name: any(part in name for part in newer))
    ]["sum"].sum()
    assert device.tensor_core_share == pytest.approx(told_us / stat["sum"].sum(), rel=1e-6)
