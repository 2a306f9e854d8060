"""A snapshot's figures in a report are those of the program that made it."""

from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.engine.figures.snapshot import MAX_POINTS, MAX_SITES
from profkit.model.memory_summary import MemoryUse, RegionMemory, SnapshotDevice
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB

SITE = "/venv/lib/python3.12/site-packages/torch"


def device_of(b: SnapshotBuilder, folder: Path) -> SnapshotDevice:
    memory = analyze(b.write(folder / "s.pickle"), strict=True).summary.memory
    assert memory is not None
    (device,) = memory.devices
    return device


def build_training() -> SnapshotBuilder:
    """Parameters, two layers' activations, their gradients, and an optimizer's state."""
    b = SnapshotBuilder()
    with b.frame("/home/u/train.py", 5, "main"):
        with b.unrecorded():
            b.alloc(30 * MIB)
        with b.frame(f"{SITE}/nn/modules/module.py", 957, "_apply"):
            b.alloc(100 * MIB)
        with b.region("forward"), b.frame(f"{SITE}/nn/modules/module.py", 1775, "_call_impl"):
            with b.frame("/home/u/net.py", 7, "forward"):
                kept = [b.alloc(40 * MIB), b.alloc(40 * MIB - 100)]
            with b.frame("/home/u/net.py", 8, "forward"):
                kept.append(b.alloc(20 * MIB))
        with b.frame(f"{SITE}/autograd/graph.py", 800, "_engine_run_backward"):
            b.alloc(100 * MIB)
        b.free(*kept)
        with b.region("step"), b.frame(f"{SITE}/optim/adamw.py", 150, "_init_group"):
            b.alloc(60 * MIB)

    return b


def test_lines_of_the_peak_and_of_the_end(tmp_path: Path) -> None:
    device = device_of(build_training(), tmp_path)

    assert [
        (site.location.place, site.category, site.n, site.bytes, site.is_before_recording)
        for site in device.peak_sites
    ] == [
        ("train.py:5", "gradient", 1, 100 * MIB, False),
        ("train.py:5", "parameter", 1, 100 * MIB, False),
        # Of what is freed later the history tells what was asked for.
        ("net.py:7", "activation", 2, 80 * MIB - 100, False),
        ("source line not recorded", "unknown", 1, 30 * MIB, True),
        ("net.py:8", "activation", 1, 20 * MIB, False),
    ]
    assert [(site.location.place, site.category) for site in device.top_sites] == [
        ("train.py:5", "gradient"),
        ("train.py:5", "parameter"),
        ("train.py:5", "optimizer-state"),
        ("source line not recorded", "unknown"),
    ]
    assert device.peak_active_bytes == 330 * MIB - 100
    assert device.peak_uses == (
        MemoryUse("parameter", 1, 100 * MIB),
        MemoryUse("gradient", 1, 100 * MIB),
        MemoryUse("activation", 3, 100 * MIB - 100),
        MemoryUse("unknown", 1, 30 * MIB),
    )


def test_a_site_has_the_python_frames_of_its_heaviest_stack(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    for caller, n_bytes in ((3, MIB), (4, 9 * MIB), (5, 2 * MIB)):
        with (
            b.frame("main.py", caller, "main"),
            b.frame("make.py", 1, "make"),
            b.frame("??", 0, "at::empty_cuda"),
        ):
            b.alloc(n_bytes)
    (site,) = device_of(b, tmp_path).top_sites
    assert [frame.line for frame in site.stack] == [1, 4]
    assert (site.n, site.bytes, site.size_class) == (3, 12 * MIB, "medium")


@pytest.mark.parametrize(
    ("n_bytes", "size_class"),
    [(MIB, "small"), (MIB + 512, "medium"), (10 * MIB - 512, "medium"), (10 * MIB, "large")],
)
def test_size_classes_agree_with_the_allocator(
    tmp_path: Path, n_bytes: int, size_class: str
) -> None:
    b = SnapshotBuilder()
    b.alloc(n_bytes)
    assert device_of(b, tmp_path).top_sites[0].size_class == size_class


def test_regions_have_their_peak_and_net_bytes(tmp_path: Path) -> None:
    assert device_of(build_training(), tmp_path).regions == (
        RegionMemory("step", 1, 290 * MIB, 60 * MIB),
        RegionMemory("forward", 1, 230 * MIB - 100, 100 * MIB - 100),
    )


def test_the_number_of_sites_is_limited(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    for line in range(50):
        with b.frame("train.py", line + 1, "main"):
            b.alloc((50 - line) * 512)
    device = device_of(b, tmp_path)
    assert [site.location.line for site in device.top_sites] == list(range(1, MAX_SITES + 1))


def test_the_timeline_of_a_long_history_has_its_peaks(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    for n in range(400):
        b.free(b.alloc((900 if n == 123 else 1) * MIB))
    device = device_of(b, tmp_path)
    assert len(device.timeline) == MAX_POINTS
    assert max(point.active_bytes for point in device.timeline) == 900 * MIB
    assert device.timeline[-1].entry == device.n_trace_events
    assert max(point.reserved_bytes for point in device.timeline) == device.peak_reserved_bytes
    assert device.timeline[0].active_bytes == 0
    assert device.timeline[-1].active_bytes == device.active_bytes
    assert device.timeline[-1].reserved_bytes == device.reserved_bytes
    times = [point.time_us for point in device.timeline]
    assert None not in times
    assert times == sorted(time for time in times if time is not None)


def test_times_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    memory = analyze(
        build_training().write(tmp_path / "s.pickle", "2.0"), strict=True
    ).summary.memory
    assert memory is not None
    assert {point.time_us for point in memory.devices[0].timeline} == {None}
    assert memory.devices[0].regions == ()


def test_free_memory_is_split_by_whether_it_can_be_released(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    with b.frame("keep.py", 4, "keep"):
        b.alloc(5 * MIB)
    b.free(b.alloc(64 * MIB))
    device = device_of(b, tmp_path)
    assert device.releasable_bytes == 64 * MIB
    assert device.unreleasable_bytes == 15 * MIB
    (pin,) = device.fragmentation_sites
    assert (pin.location.place, pin.n, pin.bytes, pin.unreleasable_bytes) == (
        "keep.py:4",
        1,
        5 * MIB,
        15 * MIB,
    )


def test_free_memory_in_a_private_pool_is_neither(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(64 * MIB, pool=(0, 1)))
    b.alloc(5 * MIB, pool=(0, 1))
    b.free(b.alloc(32 * MIB))
    device = device_of(b, tmp_path)
    assert device.private_free_bytes == (64 - 5) * MIB
    assert (device.releasable_bytes, device.unreleasable_bytes) == (32 * MIB, 0)
    assert device.inactive_bytes == (64 - 5 + 32) * MIB


def test_rounding_is_block_size_beyond_the_request(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(16 * MIB))
    b.alloc(15 * MIB)
    b.alloc(100)
    assert device_of(b, tmp_path).rounding_bytes == MIB + 412


def test_a_failed_allocation_has_the_live_blocks_of_that_moment(tmp_path: Path) -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    with b.frame("train.py", 9, "main"):
        held = b.alloc(60 * MIB)
        b.alloc_or_none(70 * MIB)
    b.free(held)
    (oom,) = device_of(b, tmp_path).oom
    assert (oom.bytes, oom.device_free_bytes, oom.missing_bytes) == (70 * MIB, 40 * MIB, 30 * MIB)
    assert (oom.reserved_bytes, oom.active_bytes) == (60 * MIB, 60 * MIB)
    assert oom.reason == "exhaustion"
    assert oom.location is not None
    assert oom.location.place == "train.py:9"
    assert [(site.location.place, site.bytes) for site in oom.sites] == [("train.py:9", 60 * MIB)]
