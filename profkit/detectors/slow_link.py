"""COM007 slow-link: a group or a pair of ranks transfers slower than others of its kind.

What it finds:
    Process groups, and pairs of ranks that send to each other, whose collectives take more than
    twice as long to transfer as the same collectives of other groups: of the same kind and size,
    with equally many ranks, and large enough that bandwidth matters. Only the transfer counts,
    which begins when the last rank has started.

Why it matters:
    What the slowest link takes longer, all ranks wait for in the next collective that they have in
    common. The cost is what the job takes less in a replay in which these transfers take the median
    of all.

How to fix it:
    Check the links of the ranks that are named: ``nvidia-smi topo -m`` and ``nvidia-smi nvlink -s``
    on one host, the state and the speed of the network adapters (``ibstat``) and
    ``NCCL_DEBUG=INFO`` between hosts, which shows the transport of each connection.
    ``all_reduce_perf`` of nccl-tests on these hosts alone measures it without the job.

Example:
    ::

        NCCL_DEBUG=INFO torchrun train.py  # "via NET/Socket/0" between two of the ranks

Use instead:
    ::

        NCCL_IB_HCA=mlx5_0,mlx5_1 torchrun train.py  # "via NET/IB/0/GDRDMA" between all

Reads:
    Kind, process group, ranks, element type and number of elements of the collectives of all ranks,
    their starts and ends in nanoseconds on corrected clocks.

When to ignore this:
    Groups whose ranks are on several hosts are slower than groups within one, and are compared with
    each other if they are of the same size. Other traffic at the same time can slow down a
    transfer.

Source:
    ``doc/PERFORMANCE.md`` of nccl-tests for the bandwidth of a collective; the section on
    environment variables in NVIDIA's documentation of NCCL.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.ranks.job_replay import RankChange
from profkit.rule import (
    MISSING,
    Finding,
    JobContext,
    RuleInfo,
    dataclass,
    format_share,
    needs,
    the_group,
)

INFO = RuleInfo(
    id="COM007",
    name="slow-link",
    title="Slow link between ranks",
    severity="warning",
    needs=(needs.WHAT_IF_RANKS,),
    since="0.1.0",
)

_MIN_GROUPS: Final = 3
"""With two groups, either may be the exception."""
_MIN_COLLECTIVES: Final = 3


@dataclass(frozen=True)
class Thresholds:
    """When a link is slow.

    Attributes:
        max_bandwidth_share: Maximum share of the usual bandwidth of the same collectives: below
            half, a link is of another kind or broken, while traffic makes differences of a few
            percent.
        min_moved_bytes: Minimum size of a collective: smaller ones are bound by latency.
        min_saving_share: Minimum share of the job's time that it costs; one percent is where
            checking the links pays.
    """

    max_bandwidth_share: float = 0.5
    min_moved_bytes: int = 1 << 20
    min_saving_share: float = 0.01


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each group or pair that is slower than its equals."""
    # Only collectives of one kind, size and number of ranks are comparable.
    slow: dict[tuple[int, ...], list[int]] = defaultdict(list)
    ratios: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for equals in _group_by_size(job, thresholds.min_moved_bytes).values():
        transfers = {
            # Medians, since other traffic slows down single transfers.
            link: float(np.median(job.delays.transfer_ns[numbers]))
            for link, numbers in equals.items()
            if len(numbers) >= _MIN_COLLECTIVES
        }
        if len(transfers) < _MIN_GROUPS:
            continue

        median_ns = float(np.median(list(transfers.values())))
        for link, ns in transfers.items():
            if median_ns <= thresholds.max_bandwidth_share * ns:
                slow[link] += equals[link]
                ratios[link].append(median_ns / ns)

    # A slow link is slow for collectives of all sizes, and its cost is that of all together.
    for link, numbers in sorted(slow.items()):
        saving_ns = job.what_if.saving_with(RankChange(links=tuple(sorted(numbers))))
        if saving_ns >= thresholds.min_saving_share * job.what_if.actual_ns:
            yield _build_finding(job, numbers, float(np.mean(ratios[link])), saving_ns)


def _group_by_size(
    job: JobContext, min_bytes: float
) -> dict[tuple[int, ...], dict[tuple[int, ...], list[int]]]:
    """Group large collectives by kind, size and number of ranks, then by group or pair."""
    matches, delays = job.matches, job.delays
    calls = matches.calls
    leader = matches.members[matches.first]

    # A send has a pair of ranks for a link, any other collective its group.
    peers = calls.peers[:, leader]
    is_pair = peers[0] != MISSING
    columns = np.stack(
        [
            np.where(is_pair, -1, calls.kind[leader]),
            calls.column("n_in")[leader],
            matches.sizes,
            np.where(is_pair, -1, calls.group[leader]),
            *peers,
        ]
    )

    is_large = np.nan_to_num(delays.bus_bytes) >= min_bytes
    groups: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for number in np.flatnonzero(is_large & (delays.transfer_ns > 0)).tolist():
        kind, n, size, *link = columns[:, number].tolist()
        equals = groups.setdefault((kind, n, size), defaultdict(list))
        equals[tuple(link)].append(number)
    return groups


def _build_finding(job: JobContext, numbers: list[int], ratio: float, saving_ns: float) -> Finding:
    matches, delays = job.matches, job.delays
    calls = matches.calls
    leader = int(matches.members[matches.first[numbers[0]]])
    source, target = calls.peers[:, leader].tolist()
    rows = matches.calls_of(np.array(numbers[:1]))
    ranks = tuple(calls.ranks[member].rank for member in calls.member[rows].tolist())

    # Bytes per nanosecond are gigabytes per second.
    speed = delays.bus_bytes[numbers].sum() / delays.transfer_ns[numbers].sum()
    pair = f"Sends from rank {source} to rank {target}"
    group = f"Collectives of {the_group(calls.groups[calls.group[leader]], ranks)}"
    hosts = {recorded.host or "" for recorded in job.ranks if recorded.rank in ranks}
    return INFO.finding(
        confidence="medium",
        message=(
            f"{group if source == MISSING else pair} transfer {speed:.3g} GB/s, "
            f"{format_share(ratio)} of what equal ones do: that costs "
            f"{job.time_per_step(saving_ns)}."
        ),
        fix=(
            "Check the links between these ranks: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, "
            "`ibstat`, and the transport that `NCCL_DEBUG=INFO` shows."
        ),
        n=len(numbers),
        cost=job.cost(saving_ns, "replay"),
        ranks=ranks,
        evidence={
            "bus_bytes_per_s": round(speed * 1e9),
            "hosts": sorted(hosts),
        },
    )
