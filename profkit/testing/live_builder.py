"""A program whose memory was watched: its figures step by step, and what grows in it."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path

from profkit.model.live_memory import Leak, LiveMemory, MemorySample, MonitoringCost, SyncSite
from profkit.readers.live_memory import encode

_MIB = 1 << 20
_STEP_NS = 20_000_000
_LOOK_NS = 40_000


@dataclass
class LiveBuilder:
    """Builds what ``profkit run`` writes of a program's memory.

    The figures follow from what is said to grow: resident memory begins at ``base_bytes`` and
    rises by the growth of everything on the host, tensors by that of tensors.

    Attributes:
        n_steps: Steps that were watched.
        n_evaluated_steps: Steps over which growth was judged; by default all.
        n_samples: Looks at the figures, spread over the steps.
        base_bytes: Resident memory, and bytes in tensors, at the first step.
        devices: Names of the devices in use.
        not_measured: What could not be watched, a sentence each.
        sync_sites: The lines that waited for a CUDA device, or None where nobody listened.
        began_unix_us: When watching began, in microseconds since 1970, or 0.
    """

    n_steps: int = 200
    n_evaluated_steps: int | None = None
    n_samples: int = 20
    base_bytes: int = 200 * _MIB
    devices: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    sync_sites: tuple[SyncSite, ...] | None = None
    began_unix_us: int = 0
    _growths: list[Leak] = field(default_factory=list, repr=False)

    def add(self, growth: Leak) -> "LiveBuilder":
        """Something that grows.

        Args:
            growth: It, as it was judged.
        """
        self._growths.append(growth)
        return self

    def build(self) -> LiveMemory:
        """What was watched."""
        monitored_ns = self.n_steps * _STEP_NS
        cost_ns = self.n_samples * _LOOK_NS
        growths = sorted(self._growths, key=lambda growth: -growth.per_step_bytes)
        return LiveMemory(
            name="built",
            step_definition="optimizer",
            n_steps=self.n_steps,
            monitored_ns=monitored_ns,
            samples=tuple(self._look(step) for step in self._steps_looked_at()),
            leaks=tuple(growths),
            n_evaluated_steps=self.n_steps
            if self.n_evaluated_steps is None
            else self.n_evaluated_steps,
            not_measured=self.not_measured,
            cost=MonitoringCost(
                cost_ns, self.n_samples, 4, cost_ns / monitored_ns if monitored_ns else 0.0
            ),
            torch="2.13.0",
            devices=self.devices,
            argv=("train.py",),
            sync_sites=self.sync_sites,
            began_unix_us=self.began_unix_us,
        )

    def write(self, path: str | Path) -> Path:
        """The file that ``profkit run`` would write.

        Args:
            path: Where; with ``.gz`` at its end it is packed.
        """
        target, data = Path(path), encode(self.build())
        target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
        return target

    def _steps_looked_at(self) -> list[int]:
        last = max(self.n_samples - 1, 1)
        return sorted({1 + (self.n_steps - 1) * n // last for n in range(self.n_samples)})

    def _look(self, step: int) -> MemorySample:
        tensors: dict[str, int] = {"cpu": self.base_bytes}
        rss_bytes, graph_bytes = self.base_bytes, 0
        for growth in self._growths:
            grown = growth.per_step_bytes * max(0, step - growth.first_step + 1)
            if growth.kind == "graph":
                graph_bytes += grown
            elif growth.kind == "tensors":
                tensors[growth.device] = tensors.get(growth.device, 0) + grown
            if not growth.device.startswith("cuda"):
                rss_bytes += grown
        on_device = sum(n for device, n in tensors.items() if device.startswith("cuda"))
        return MemorySample(
            step=step,
            ts_ns=step * _STEP_NS,
            host_rss_bytes=rss_bytes,
            tensor_bytes=tensors,
            graph_bytes=graph_bytes,
            garbage_bytes=0,
            allocated_bytes=on_device,
            reserved_bytes=on_device,
        )
