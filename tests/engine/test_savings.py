"""Savings and waits are compared with shares of the windows."""

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.engine.context import Context
from profkit.engine.savings import WaitThresholds, find_costly_waits, measure_saving
from profkit.index.device.syncs import SyncKind
from profkit.model.change import ProgramChange
from profkit.testing import TraceBuilder
from tests.traces import read_context


def waiting(path: Path) -> Context:
    """Two steps of 140 µs, each of a kernel of 100 µs that the host waits for."""
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.synchronize()
            b.advance(30_000)
    return read_context(b, path)


def test_a_saving_reaches_shares_of_the_steps_but_never_without_saving(tmp_path: Path) -> None:
    ctx = waiting(tmp_path)
    kernels = measure_saving(ctx, ProgramChange(scaled=((ctx.events.kernels, 0.5),)))
    assert [kernels.reaches(share) for share in (0.2, 0.9)] == [True, False]
    assert [kernels.severity(share) for share in (0.2, 0.9)] == ["warning", "note"]
    assert not measure_saving(ctx, ProgramChange()).reaches(0.0)


def test_an_upper_bound_is_a_warning_only_by_what_is_likely(tmp_path: Path) -> None:
    ctx = waiting(tmp_path)
    saving = measure_saving(ctx, ProgramChange(scaled=((ctx.events.kernels, 0.5),)))
    bound = replace(saving.cost, low_ns=1_000, basis="upper-bound")
    assert replace(saving, cost=bound).severity(0.2) == "note"
    assert replace(saving, cost=bound).reaches(0.2)


@pytest.mark.parametrize(
    ("min_wait_share", "warning_share", "severity"),
    [(0.001, 0.2, "warning"), (0.001, 0.4, "note"), (0.9, 0.2, None)],
)
def test_waits_are_compared_with_shares_of_the_windows(
    tmp_path: Path, min_wait_share: float, warning_share: float, severity: str | None
) -> None:
    ctx = waiting(tmp_path)
    calls = ctx.syncs.of_kind(SyncKind.EXPLICIT).rows
    thresholds = WaitThresholds(min_wait_share, warning_share)
    (wait,) = find_costly_waits(ctx, [ProgramChange(calls=calls)], thresholds)
    assert (wait.severity if wait else None) == severity
    if wait:
        # Two steps of 140 µs; without the wait 10 + 2 x 100 and a switch of 1 µs.
        assert wait.saving.cost.ns == 280_000 - 211_000
        assert wait.confidence == "high"


def test_no_calls_are_no_wait(tmp_path: Path) -> None:
    ctx = waiting(tmp_path)
    thresholds = WaitThresholds(0.0, 0.0)
    assert find_costly_waits(ctx, [ProgramChange()], thresholds) == [None]
    assert find_costly_waits(ctx, [], thresholds) == []
