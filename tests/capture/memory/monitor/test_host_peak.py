"""The peak of a process between two samples of its memory."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profkit.capture.memory.monitor import host_peak
from profkit.capture.memory.monitor.host_peak import HostPeaks
from profkit.model.live_memory import HostPeak

MIB = 1 << 20

PROGRAM = """
import json, mmap
import torch
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

monitor = LeakMonitor("train", "user")
for step in range(1, 13):
    torch.ones(8) + 1
    if step in {7, 9}:
        with mmap.mmap(-1, (300 if step == 7 else 900) << 20) as pages:
            for place in range(0, len(pages), 4096):
                pages[place] = 1
    monitor.step()
peak = monitor.finish().host_peak
print(json.dumps(None if peak is None else [peak.bytes, peak.resident_bytes, peak.after_step,
                                            peak.until_step]))
"""


Noted = tuple[int, int, int]
"""A step, and the resident and the highest memory at its end in MiB."""


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Noted | None], int], object]:
    """Find the peak after some samples, of which None stands for one in a recording."""

    def find_of(samples: Sequence[Noted | None], at_end_mib: int) -> object:
        peaks = HostPeaks()
        for noted in samples:
            if noted is None:
                peaks.skip()
                continue
            step, resident_mib, peak_mib = noted
            monkeypatch.setattr(host_peak, "read_peak_bytes", lambda peak=peak_mib: peak * MIB)
            peaks.note(step, resident_mib * MIB)
        return peaks.find(at_end_mib * MIB)

    return find_of


STEPS = [(step, 400, 410) for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("later", "at_end_mib", "expected"),
    [
        ([(5, 420, 900), (6, 410, 902)], 905, (905, 420, 3, 5)),
        ([(5, 420, 800), (7, 410, 900)], 900, (900, 420, 5, 7)),
        ([(5, 400, 410)], 900, (900, 400, 5, None)),
        ([(5, 400, 460)], 460, None),
        ([None, (6, 400, 900)], 900, None),
        ([None, (6, 400, 600), (7, 400, 900)], 900, (900, 400, 6, 7)),
        ([(5, 880, 900)], 900, None),
    ],
    ids=["once", "last", "after all", "hardly above", "recorded", "after recording", "stays"],
)
def test_a_peak_is_between_the_samples_around_it(
    find: Callable[[Sequence[Noted | None], int], object],
    later: list[Noted | None],
    at_end_mib: int,
    expected: tuple[int, int, int, int | None] | None,
) -> None:
    lowest = find([*STEPS, *later], at_end_mib)
    if expected is None:
        assert lowest is None
    else:
        peak, resident, after_step, until_step = expected
        assert lowest == HostPeak(peak * MIB, resident * MIB, after_step, until_step)


def test_a_peak_before_the_first_sample_is_the_programs_start(
    find: Callable[[Sequence[Noted | None], int], object],
) -> None:
    assert find([(1, 400, 900), (2, 400, 900)], 900) is None


@pytest.mark.parametrize("at_end", [None, 900 * MIB])
def test_without_figures_there_is_none(at_end: int | None) -> None:
    assert HostPeaks().find(at_end) is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_the_highest_of_two_allocations_that_are_freed_again_is_found() -> None:
    # A process of its own: other tests may have had more memory before.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    peak_bytes, resident_bytes, after_step, until_step = json.loads(done.stdout)
    assert after_step < 9 <= until_step
    assert 0.95 * 900 * MIB <= peak_bytes - resident_bytes <= 1.05 * 900 * MIB
