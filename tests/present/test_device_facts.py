"""Each fact on a device is a line with its unit."""

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.device_bytes import DeviceBytes
from profkit.model.location import Location
from profkit.model.memory_summary import FragmentationSite, SnapshotDevice
from profkit.present.device_facts import describe_device
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB
from tests.renderers import reports

GIB = 1 << 30


@pytest.fixture
def device() -> SnapshotDevice:
    memory = reports.build_snapshot_report().summary.memory
    assert memory is not None
    return memory.devices[0]


def line(device: SnapshotDevice, word: str, *, everything: bool = False) -> str:
    """Return the only line with a word in it."""
    (fact,) = (text for text in describe_device(device, everything=everything) if word in text)
    return fact


def test_the_line_that_causes_most_of_the_fragmentation_is_named(device: SnapshotDevice) -> None:
    assert line(device, "free memory").endswith("with live blocks, mostly of train.py:21")


def test_lines_that_cause_a_little_each_are_not_named(device: SnapshotDevice) -> None:
    sites = (replace(device.fragmentation_sites[0], unreleasable_bytes=300 * MIB),)
    assert line(replace(device, fragmentation_sites=sites), "free memory").endswith("live blocks")


def test_a_site_without_a_source_line_is_not_named(device: SnapshotDevice) -> None:
    sites = (FragmentationSite(Location(), 1, MIB, device.unreleasable_bytes),)
    assert line(replace(device, fragmentation_sites=sites), "free memory").endswith("live blocks")


def test_rounding_is_reported_from_a_minimum_share_on(device: SnapshotDevice) -> None:
    little = replace(device, rounding_bytes=300 * MIB)
    assert not any("rounding" in fact for fact in describe_device(little, everything=False))
    assert line(little, "rounding", everything=True).startswith("cuda:0: 300 MiB of active memory")
    much = replace(device, rounding_bytes=2 * GIB)
    assert line(much, "rounding") == (
        "cuda:0: 2.00 GiB of active memory is rounding: blocks are larger than the requested sizes"
    )


def test_device_memory_is_split_by_owner_as_far_as_the_driver_reports_it(
    device: SnapshotDevice,
) -> None:
    whole = DeviceBytes(0, 80 * GIB, 20 * GIB, 34 * GIB, 36 * GIB, 24 * GIB)
    assert line(replace(device, driver=whole), "PyTorch") == (
        "cuda:0: of the device's 80.0 GiB: 34.0 GiB PyTorch, 2.00 GiB this program outside "
        "PyTorch, 24.0 GiB other programs, 20.0 GiB free"
    )
    unlisted = replace(whole, process_bytes=None, others_bytes=None)
    assert line(replace(device, driver=unlisted), "PyTorch") == (
        "cuda:0: of the device's 80.0 GiB: 34.0 GiB PyTorch, 26.0 GiB outside PyTorch, "
        "20.0 GiB free"
    )


def test_blocks_that_another_stream_uses_are_reported_and_are_not_a_leak(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        shared = [b.alloc(20 * MIB), b.alloc(30 * MIB)]
        for block in shared:
            b.record_stream(block, 7)
        b.free(*shared)
        b.alloc(MIB)
        b.finish(7)
        late = b.alloc(12 * MIB)
        b.record_stream(late, 7)
        b.free(late)

    report = analyze(b.write(tmp_path / "waits.pickle"))
    assert report.findings == ()
    assert report.summary.memory is not None

    (device,) = report.summary.memory.devices
    assert device.peak_pending_free_bytes == 50 * MIB
    pending = device.active_bytes - device.allocated_bytes
    assert line(device, "record_stream") == (
        "cuda:0: up to 50.0 MiB freed but still in use by another stream (record_stream), "
        f"{pending // MIB}.0 MiB at the end; this is no leak"
    )
