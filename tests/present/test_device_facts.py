"""What is counted of a device is told in lines, each with its unit."""

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.device_bytes import DeviceBytes
from profkit.model.location import Location
from profkit.model.memory_summary import FragmentationSite, SnapshotDevice
from profkit.present.device_facts import device_facts
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB
from tests.renderers import reports

GIB = 1 << 30


@pytest.fixture
def device() -> SnapshotDevice:
    memory = reports.snapshot_report().summary.memory
    assert memory is not None
    return memory.devices[0]


def line(device: SnapshotDevice, word: str, *, everything: bool = False) -> str:
    """The only line with a word in it."""
    (found,) = (each for each in device_facts(device, everything=everything) if word in each)
    return found


def test_the_line_that_holds_most_of_the_free_memory_is_named(device: SnapshotDevice) -> None:
    assert line(device, "held in place").endswith("by blocks in use, most of it by train.py:21")


def test_many_lines_that_hold_a_little_each_are_not(device: SnapshotDevice) -> None:
    pins = (replace(device.fragmentation_sites[0], unreleasable_bytes=300 * MIB),)
    assert line(replace(device, fragmentation_sites=pins), "held in place").endswith(
        "by blocks in use"
    )


def test_what_has_no_line_is_not_named(device: SnapshotDevice) -> None:
    pins = (FragmentationSite(Location(), 1, MIB, device.unreleasable_bytes),)
    assert line(replace(device, fragmentation_sites=pins), "held in place").endswith(
        "by blocks in use"
    )


def test_rounding_is_told_where_it_is_a_good_part(device: SnapshotDevice) -> None:
    little = replace(device, rounding_bytes=300 * MIB)
    assert not any("rounding" in each for each in device_facts(little, everything=False))
    assert line(little, "rounding", everything=True).startswith("cuda:0: 300 MiB of what is in use")
    much = replace(device, rounding_bytes=2 * GIB)
    assert line(much, "rounding") == (
        "cuda:0: 2.00 GiB of what is in use is rounding: blocks are longer than what was asked for"
    )


def test_whose_the_device_is_is_told_as_far_as_the_driver_says(device: SnapshotDevice) -> None:
    whole = DeviceBytes(0, 80 * GIB, 20 * GIB, 34 * GIB, 36 * GIB, 24 * GIB)
    assert line(replace(device, driver=whole), "PyTorch") == (
        "cuda:0: of the device's 80.0 GiB 34.0 GiB PyTorch's, 2.00 GiB this program's outside "
        "PyTorch, 24.0 GiB other programs', 20.0 GiB free"
    )
    unlisted = replace(whole, process_bytes=None, others_bytes=None)
    assert line(replace(device, driver=unlisted), "PyTorch") == (
        "cuda:0: of the device's 80.0 GiB 34.0 GiB PyTorch's, 26.0 GiB outside PyTorch, "
        "20.0 GiB free"
    )


def test_what_waits_for_another_stream_is_told_and_is_no_leak(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        lent = [b.alloc(20 * MIB), b.alloc(30 * MIB)]
        for block in lent:
            b.record_stream(block, 7)
        b.free(*lent)
        b.alloc(MIB)
        b.finish(7)
        late = b.alloc(12 * MIB)
        b.record_stream(late, 7)
        b.free(late)
    report = analyze(b.write(tmp_path / "waits.pickle"))
    assert report.findings == ()
    assert report.summary.memory is not None
    (told,) = report.summary.memory.devices
    assert told.peak_pending_free_bytes == 50 * MIB
    waiting = told.active_bytes - told.allocated_bytes
    assert line(told, "record_stream") == (
        "cuda:0: 50.0 MiB at most were freed and still waited for another stream (record_stream), "
        f"{waiting // MIB}.0 MiB in the end; they are no leak"
    )
