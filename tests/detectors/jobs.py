"""A built job of several ranks whose collectives begin when their last rank is there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from profkit.testing import TraceBuilder
from tests.flight import own

MS = 1_000_000
BASE_NS = 1_735_689_600_000_000_000
COMPUTE, COMMUNICATION = 7, 20
NAMES = {
    "all-reduce": ("allreduce", "AllReduce_Sum_f32_RING_LL"),
    "all-gather": ("_allgather_base", "AllGather_RING_LL"),
    "reduce-scatter": ("_reduce_scatter_base", "ReduceScatter_Sum_f32_RING_LL"),
    "send": ("send", "SendRecv"),
    "receive": ("recv", "SendRecv"),
}
"""What torch and NCCL call a kind of collective."""


class JobBuilder:
    """Builds the traces of all ranks, whose devices compute on one stream.

    Attributes:
        ranks: The traces.
    """

    def __init__(self, n_ranks: int, *, numbered: bool = True) -> None:
        self.ranks = [
            TraceBuilder(
                stacks=True,
                head={
                    "distributedInfo": {"rank": rank, "world_size": n_ranks, "backend": "nccl"},
                    "baseTimeNanoseconds": BASE_NS,
                    "host_name": "node",
                },
            )
            for rank in range(n_ranks)
        ]
        self._numbered = numbered
        self._n: dict[str, int] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Add a step on all ranks, which ends when their devices are done."""
        with ExitStack() as stack:
            for b in self.ranks:
                stack.enter_context(b.step())
            yield
            for b in self.ranks:
                b.synchronize()

    def compute(self, times_ns: Sequence[int] | int, name: str = "gemm") -> None:
        """Add a kernel on each rank.

        Args:
            times_ns: Its time by rank, or that on all.
        """
        for rank, b in enumerate(self.ranks):
            ns = times_ns if isinstance(times_ns, int) else times_ns[rank]
            if ns:
                b.launch("aten::mm", kernel=name, host_ns=5_000, device_ns=ns)

    def collective(
        self,
        kind: str,
        transfer_ns: int,
        *,
        n_elements: int = 1 << 20,
        ranks: Sequence[int] | None = None,
        group: str = "0",
        awaited: bool = True,
        changed: dict[int, dict[str, object]] | None = None,
    ) -> None:
        """Add a collective after all earlier launches.

        Args:
            ranks: Those of its group; by default all.
            awaited: Whether the kernels after it wait for it.
            changed: By rank, arguments of the event that differ.
        """
        ranks = range(len(self.ranks)) if ranks is None else ranks
        number = self._n[group] = self._n.get(group, -1) + 1
        use = group.rstrip("0123456789") or group
        starts, idents = {}, {}

        for rank in ranks:
            b = self.ranks[rank]
            with b.op(f"c10d::{NAMES[kind][0]}_"):
                idents[rank] = b.call("LaunchKernel", 4_000)
            starts[rank] = max(b.now_ns, b.free_at_ns())

        end = max(starts.values()) + transfer_ns
        for rank in ranks:
            args: dict[str, object] = {
                "Collective name": NAMES[kind][0],
                "dtype": "Float",
                "In msg nelems": n_elements,
                "Out msg nelems": n_elements,
                "Group size": len(ranks),
                "Process Group Name": group,
                "Process Group Description": f"group {use}",
                "Process Group Ranks": str(list(ranks)),
                **({"Seq": number} if self._numbered else {}),
                **(changed or {}).get(rank, {}),
            }
            b = self.ranks[rank]
            b.kernel(
                f"ncclDevKernel_{NAMES[kind][1]}",
                end - starts[rank],
                at_ns=starts[rank],
                correlation=idents[rank],
                stream=COMMUNICATION,
                **args,
            )
            if awaited:
                b.wait_for_event(end, stream=COMPUTE)

    def send(self, source: int, target: int, transfer_ns: int, *, group: str = "pp") -> None:
        """Add a send after its rank's earlier launches; kernels do not wait for it."""
        peers = {"Src Rank": source, "Dst Rank": target}
        kinds = {source: "send", target: "receive"}
        starts = {}

        for rank, kind in kinds.items():
            b = self.ranks[rank]
            with b.op(f"c10d::{NAMES[kind][0]}"):
                starts[rank] = (
                    b.call("LaunchKernel", 4_000),
                    max(b.now_ns, b.free_at_ns(0, COMPUTE)),
                )

        end = max(at for _, at in starts.values()) + transfer_ns
        for rank, kind in kinds.items():
            ident, at_ns = starts[rank]
            stream = COMMUNICATION + 1 + 2 * (source > target) + (kind == "send")
            args: dict[str, object] = {
                "Collective name": NAMES[kind][0],
                "dtype": "Float",
                "In msg nelems": 1 << 20,
                "Out msg nelems": 1 << 20,
                "Group size": len(self.ranks),
                "Process Group Name": group,
                "Process Group Description": "pipeline",
                "Process Group Ranks": str(list(range(len(self.ranks)))),
                **peers,
            }
            self.ranks[rank].kernel(
                f"ncclDevKernel_{NAMES[kind][1]}",
                end - at_ns,
                at_ns=at_ns,
                correlation=ident,
                stream=stream,
                **args,
            )
            if kind == "receive":
                self.ranks[rank].wait_for_event(end, stream=COMPUTE)

    def pipeline(self, times_ns: Sequence[int], n_micro_batches: int) -> None:
        """All forward passes of a pipeline, then all backward passes (GPipe).

        Args:
            times_ns: What each rank, which is a stage, computes for each of them.
        """
        for forward in (True, False):
            stages = list(range(len(times_ns)))[:: 1 if forward else -1]
            for _ in range(n_micro_batches):
                for place, stage in enumerate(stages):
                    self.compute([ns * (rank == stage) for rank, ns in enumerate(times_ns)])
                    if place + 1 < len(stages):
                        self.send(stage, stages[place + 1], MS // 100)

    def write(self, folder: Path) -> Path:
        """Write a file for each rank; returns the folder."""
        folder.mkdir(exist_ok=True)
        for rank, b in enumerate(self.ranks):
            b.write(folder / f"rank{rank}.pt.trace.json.gz")
        return folder

    def write_with_steps(self, folder: Path, cpu_ns: Sequence[int]) -> Path:
        """Write the files, and what ``profkit run`` notes of the 40 steps of a run without calls.

        Args:
            cpu_ns: Processor time of each rank in a step.
        """
        self.write(folder)
        ends_ns = [BASE_NS + step * 20 * MS for step in range(-20, 20)]
        for rank, ns in enumerate(cpu_ns):
            steps = {"first": [0], "ends_ns": ends_ns, "own_ns": [0] * 40, "delayed_ns": [0] * 40}
            about = own({}, rank, len(self.ranks), steps={**steps, "cpu_ns": [ns] * 40})
            path = folder / f"rank{rank}.flight.json"
            path.write_text(json.dumps({**about, "dumps": []}))
        return folder
