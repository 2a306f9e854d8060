"""PRF012 merged-processes: one file has the events of several processes.

What it finds:
    Traces with operators of more than one process: the traces of several ranks that a tool joined
    to one file for a viewer.

Why it matters:
    Each process numbers its GPUs, launches and threads on its own. In one file the GPUs with the
    same number look like one GPU, that is busy when any of them is, and a launch is matched with
    the kernels of another process.

How to fix it:
    Analyze the traces from which the file was merged: all in one folder, and profkit compares the
    ranks.

Example:
    ::

        profkit analyze merged-1731.trace.json.gz

Use instead:
    ::

        profkit analyze traces/

Reads:
    The processes of all operators, as the file writes them.

When to ignore this:
    The report is not used for figures of devices, launches and idle time.

Source:
    SGLang's ``ProfileMerger``, which writes ``[TP00] 1234`` as the process; a trace of
    ``libkineto`` is always that of one process.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.rule import (
    MAX_EVENT_IDS,
    Category,
    Context,
    Finding,
    RuleInfo,
    dataclass,
    format_count,
    middle_cut,
    needs,
)

INFO = RuleInfo(
    id="PRF012",
    name="merged-processes",
    title="Traces of several processes are merged",
    severity="warning",
    needs=(needs.OPERATORS,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)
_MAX_NAMED: Final = 3
_MAX_NAME: Final = 40


@dataclass(frozen=True)
class Thresholds:
    """When a process counts.

    Attributes:
        min_operator_share: Minimum share of all operators in a second process; fewer than a
            hundredth are not a trace of its own.
    """

    min_operator_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if operators of several processes were recorded."""
    events = ctx.events
    ops = events.rows_of(Category.OP)
    # A lane is one thread: a process is all lanes with its id.
    n_of_lane = np.bincount(events.lane[ops], minlength=len(events.lanes)).tolist()
    n_by_process: Counter[str] = Counter()
    for lane, n in zip(events.lanes, n_of_lane, strict=True):
        n_by_process[lane.pid] += n
    n_min = thresholds.min_operator_share * len(ops)
    processes = [pid for pid, n in n_by_process.most_common() if n and n >= n_min]
    if len(processes) < 2:  # noqa: PLR2004  (several)
        return

    named = ", ".join(f"`{middle_cut(pid, _MAX_NAME)}`" for pid in processes[:_MAX_NAMED])
    yield INFO.finding(
        confidence="high",
        message=(
            f"The file has operators of {format_count(len(processes))} processes ({named}"
            f"{', …' if len(processes) > _MAX_NAMED else ''}): GPUs with the same number count as "
            "one, and launches may be matched with kernels of another process."
        ),
        fix="Analyze the traces from which the file was merged, all in one folder.",
        n=len(processes),
        evidence={"processes": processes[:MAX_EVENT_IDS]},
    )
