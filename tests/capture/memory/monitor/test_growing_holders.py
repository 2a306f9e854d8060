"""What the monitor of memory compares between two scans of the host's objects."""

import pytest

from profkit.capture.memory.holders import holder_chains
from profkit.capture.memory.monitor.growing_holders import HolderTracker
from profkit.capture.memory.monitor.host_objects import HostObjectScan, SizedContainer


def test_nobody_is_searched_who_holds_the_arrays_of_the_monitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[object] = []

    def find_chains(targets: list[object], **_limits: object) -> list[tuple[()]]:
        searched.extend(targets)
        return [()] * len(targets)

    monkeypatch.setattr(holder_chains, "find_chains", find_chains)
    tracker = HolderTracker()
    lists: list[list[int]] = []
    for n_steps in (0, 10, 10, 10):
        # No list grows, but more of them make the arrays larger that have their lengths.
        lists += [[1, 2, 3, 4] for _ in range(1_000)]
        containers = [SizedContainer(thing, "list", 4, 88) for thing in lists]
        arrays = [SizedContainer(own, "ndarray", 1, own.nbytes) for own in tracker.own_arrays]
        tracker.find(HostObjectScan({}, containers, arrays), n_steps)
    assert searched == []
