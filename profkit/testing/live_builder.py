"""Builds memory records: a program's memory over its steps, and the leaks in it."""

import gzip
from dataclasses import field
from pathlib import Path
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.live_memory import (
    HostPeak,
    Leak,
    LiveMemory,
    MemorySample,
    MonitoringCost,
    SyncSite,
    WorkerRestarts,
)
from profkit.readers.live_memory import encode_live

_MIB: Final = 1 << 20
_STEP_NS: Final = 20_000_000
_SAMPLE_NS: Final = 40_000


@dataclass
class LiveBuilder:
    """Builds a memory record as ``profkit run`` writes it.

    The samples follow from the leaks: resident memory starts at ``base_bytes`` and grows by all
    leaks on the host, tensor memory by the leaks of tensors.

    Attributes:
        n_steps: Monitored steps.
        n_evaluated_steps: Steps over which leaks were evaluated; by default all.
        n_samples: Samples, spread over the steps.
        base_bytes: Resident memory, and bytes in tensors, at the first step.
        devices: Names of the devices in use.
        not_measured: What could not be monitored, one sentence each.
        sync_sites: Source lines that waited for a CUDA device; None if they were not recorded.
        began_unix_us: Start of monitoring in microseconds since 1970, or 0.
        step_definition: What ends a step, as in a recording.
        unexplained_per_step_bytes: Growth of the host's memory that no leak explains, or None.
        host_peak: The peak of the process, if no end of a step shows it.
        worker_restarts: The loader that starts its workers anew, or None.
        slowing_ns: What each step takes more than the one before, of which the first takes 20 ms.
        own_ns: As much of each of these differences is profkit's own time.
    """

    n_steps: int = 200
    n_evaluated_steps: int | None = None
    n_samples: int = 20
    base_bytes: int = 200 * _MIB
    devices: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    sync_sites: tuple[SyncSite, ...] | None = None
    began_unix_us: int = 0
    step_definition: str = "optimizer"
    unexplained_per_step_bytes: int | None = None
    host_peak: HostPeak | None = None
    worker_restarts: WorkerRestarts | None = None
    slowing_ns: int = 0
    own_ns: int = 0
    _leaks: list[Leak] = field(default_factory=list, repr=False)

    def add(self, leak: Leak) -> "LiveBuilder":
        """Add a leak and return the builder."""
        self._leaks.append(leak)
        return self

    def build(self) -> LiveMemory:
        """Build the record."""
        monitored_ns = self._end_ns(self.n_steps)
        cost_ns = self.n_samples * _SAMPLE_NS
        share = cost_ns / monitored_ns if monitored_ns else 0.0
        n_evaluated = self.n_steps if self.n_evaluated_steps is None else self.n_evaluated_steps

        # The first and the last step are always sampled; a short run has fewer samples than asked.
        last = max(self.n_samples - 1, 1)
        steps = sorted({1 + (self.n_steps - 1) * n // last for n in range(self.n_samples)})

        return LiveMemory(
            name="built",
            step_definition=self.step_definition,
            n_steps=self.n_steps,
            monitored_ns=monitored_ns,
            samples=tuple(map(self._sample, steps)),
            leaks=tuple(sorted(self._leaks, key=lambda leak: -leak.per_step_bytes)),
            n_evaluated_steps=n_evaluated,
            not_measured=self.not_measured,
            cost=MonitoringCost(cost_ns, self.n_samples, 4, share),
            torch="2.13.0",
            devices=self.devices,
            argv=("train.py",),
            sync_sites=self.sync_sites,
            began_unix_us=self.began_unix_us,
            unexplained_per_step_bytes=self.unexplained_per_step_bytes,
            host_peak=self.host_peak,
            worker_restarts=self.worker_restarts,
        )

    def write(self, path: str | Path) -> Path:
        """Write the record to a file, gzipped when the name ends in ``.gz``; return the path."""
        target, data = Path(path), encode_live(self.build())
        target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
        return target

    def _end_ns(self, step: int) -> int:
        """Return when a step ends, the first of which is step 1."""
        return step * _STEP_NS + self.slowing_ns * step * (step - 1) // 2

    def _sample(self, step: int) -> MemorySample:
        """Compute what a monitor would measure at the end of a step."""
        tensors: dict[str, int] = {"cpu": self.base_bytes}
        rss_bytes, graph_bytes = self.base_bytes, 0

        for leak in self._leaks:
            leaked = leak.per_step_bytes * max(0, step - leak.first_step + 1)
            if leak.kind == "graph":
                graph_bytes += leaked
            elif leak.kind == "tensors":
                tensors[leak.device] = tensors.get(leak.device, 0) + leaked
            # A leak on a GPU does not enlarge the process; any other one does.
            if not leak.device.startswith("cuda"):
                rss_bytes += leaked

        on_device = sum(n for device, n in tensors.items() if device.startswith("cuda"))
        return MemorySample(
            step=step,
            ts_ns=self._end_ns(step),
            host_rss_bytes=rss_bytes,
            tensor_bytes=tensors,
            graph_bytes=graph_bytes,
            garbage_bytes=0,
            allocated_bytes=on_device,
            reserved_bytes=on_device,
            own_ns=self.own_ns * step * (step - 1) // 2,
        )
