"""Real jobs of several ranks: exposed time of collectives, computed independently."""

import itertools
import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from isal import igzip

from profkit.model.finding import Finding
from tests.corpus.recordings import TRACES, needs_corpus, report_on, trace_path

WAITS = {
    "a100-ddp-rank0-of-2": None,
    "a100-embedding-rank3-of-8": "all-to-all",
    "b200-eager-inference": None,
    "mi300-resnet-ddp": "all-reduce",
    "rank0-of-128": "all-to-all",
    "rank1-of-128": "all-to-all",
}
"""Jobs with exposed collectives in a tenth of their steps, and the kind with most time."""
LEAST_SHARE = 0.1
Interval = tuple[int, int]

HOST_AHEAD = {"mi300-resnet-ddp"}
"""The host is ahead of the device: its steps are judged from completion to completion."""


def found(name: str) -> list[Finding]:
    report = report_on(trace_path(name))
    assert "COM001" not in {check.rule for check in report.unchecked}
    return [finding for finding in report.findings if finding.rule == "COM001"]


class Moments:
    """A real job as sets of nanoseconds, of which only the borders are evaluated."""

    def __init__(self, name: str) -> None:
        content = json.loads(igzip.decompress(trace_path(name).read_bytes()), parse_float=Decimal)
        events = content["traceEvents"] if isinstance(content, dict) else content
        self.events = [event for event in events if event.get("ph") == "X" and event.get("cat")]
        kernels = [event for event in self.events if event["cat"] == "kernel"]
        is_collective = [
            re.search("nccl|all_reduce", kernel["name"], re.IGNORECASE) is not None
            for kernel in kernels
        ]
        self.collectives = [span(k) for k, yes in zip(kernels, is_collective, strict=True) if yes]
        compute = [k for k, yes in zip(kernels, is_collective, strict=True) if not yes]
        self.compute = [span(event) for event in compute]

        launched = {
            event["args"]["correlation"]: span(event)[0]
            for event in reversed(self.events)
            if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
        }
        self.launch = {
            span(event)[0]: launched.get(event["args"].get("correlation"), 0)
            for event in reversed(compute)
        }
        self.blocked = [span(event) for event in self.events if self._holds(event)]
        steps = [
            span(event)
            for event in self.events
            if event["name"].startswith("ProfilerStep") and event["cat"] != "gpu_user_annotation"
        ]
        ends = [end for _, end in (*self.compute, *self.collectives)]
        starts = [start for start, _ in (*self.compute, *self.collectives)]
        self.windows = sorted(steps) or [(min(starts), max(ends))]
        if name in HOST_AHEAD:
            self.windows = self._find_completions(sorted(steps))

    def _find_completions(self, steps: list[Interval]) -> list[Interval]:
        """Steps of the device: from one completion of a step's launches to the next."""
        calls = {
            event["args"]["correlation"]: span(event)[0]
            for event in reversed(self.events)
            if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
        }
        work = [
            event for event in self.events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
        ]
        launched = [
            (calls.get(event["args"].get("correlation"), 0), span(event)[1]) for event in work
        ]
        ends = [
            max([end, *(done for at, done in launched if start <= at < end)])
            for start, end in steps
        ]
        before = max(done for at, done in launched if at < steps[0][0])

        return list(zip([before, *ends[:-1]], ends, strict=True))

    def _holds(self, event: dict[str, Any]) -> bool:
        """Return whether the host waits in a call for a device."""
        if event["cat"] not in ("cuda_runtime", "cuda_driver"):
            return False
        if event["name"] in ("cudaMemcpyAsync", "hipMemcpyAsync"):
            return event["args"].get("correlation") in self._pageable()
        return re.search("Synchronize$|^hipMemcpyWithStream$", event["name"]) is not None

    def _pageable(self) -> set[int]:
        if not hasattr(self, "_into_pageable"):
            self._into_pageable = {
                event["args"]["correlation"]
                for event in self.events
                if event["cat"] == "gpu_memcpy" and "DtoH (Device -> Pageable)" in event["name"]
            }
        return self._into_pageable

    def compute_figures(self) -> tuple[int, list[int]]:
        """Exposed nanoseconds in all, and waited nanoseconds of each window."""
        begins = sorted(self.launch)
        sets = (self.collectives, self.compute, self.blocked, self.windows)
        borders = {at for instant in sets for pair in instant for at in pair}
        borders |= set(self.launch.values())
        changes = [changes_of(spans) for spans in sets]
        level = [0] * len(sets)
        alone, waited = 0, dict.fromkeys(self.windows, 0)

        for at, following in itertools.pairwise(sorted(borders)):
            level = [n + change.get(at, 0) for n, change in zip(level, changes, strict=True)]
            communicating, computing, blocked, in_window = (n > 0 for n in level)
            if not communicating or computing or not in_window:
                continue
            alone += following - at
            place = bisect_left(begins, following)
            is_late = place < len(begins) and self.launch[begins[place]] > at and not blocked
            if not is_late:
                window = max(window for window in self.windows if window[0] <= at)
                waited[window] += following - at

        return alone, list(waited.values())


def span(event: dict[str, Any]) -> Interval:
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(event["dur"]) * 1000)


def changes_of(intervals: Iterable[Interval]) -> dict[int, int]:
    changes: dict[int, int] = {}
    for start, end in intervals:
        changes[start] = changes.get(start, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    return changes


@needs_corpus
@pytest.mark.parametrize("name", WAITS)
def test_the_exposed_time_of_a_real_job_agrees_with_its_events(name: str) -> None:
    moments, findings = Moments(name), found(name)
    alone, waited = moments.compute_figures()
    hits = [
        ns >= LEAST_SHARE * (end - start)
        for ns, (start, end) in zip(waited, moments.windows, strict=True)
    ]
    assert bool(findings) == (2 * sum(hits) >= len(hits)) == (WAITS[name] is not None)
    for finding in findings:
        assert finding.evidence["exposed_ns"] == alone
        assert finding.evidence["waited_ns"] == sum(waited)
        assert f" {WAITS[name]}" in finding.message


WITHOUT_CALLS = {"bracketed-copies", "nothing-recorded"}
"""Traces without any runtime call of CUDA or HIP."""
KERNELS_MISSING = {"graph-kernels-missing"}
"""The kernels of CUDA graphs were not recorded: collectives that they overlapped look exposed."""


@needs_corpus
def test_jobs_of_one_device_have_no_collectives() -> None:
    for path in sorted(TRACES.iterdir()):
        name = path.name.removesuffix(".json.gz")
        if name not in WAITS.keys() | KERNELS_MISSING:
            report = report_on(path)
            assert not {finding.rule for finding in report.findings} & {"COM001", "COM002"}, name
            skipped = {check.rule for check in report.unchecked}
            assert "COM001" not in skipped or name in WITHOUT_CALLS, name
