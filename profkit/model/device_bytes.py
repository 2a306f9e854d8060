"""Whose a device's memory is: torch's, the same process's outside torch, other processes'."""

from dataclasses import dataclass
from typing import Final

SNAPSHOT_KEY: Final = "profkit"
"""Where profkit's own snapshots hold what torch's do not; other readers pass over unknown keys."""


@dataclass(frozen=True)
class DeviceBytes:
    """One device's memory at one moment. What nobody could tell is None.

    Attributes:
        device: Ordinal of the device, as the process counts them.
        total_bytes: What the driver says that the device has.
        free_bytes: What it says is free.
        torch_bytes: What torch's allocator has from the driver in this process.
        process_bytes: What this process has in all, by the driver's list of processes: torch's,
            and the CUDA context, libraries such as NCCL, kernels' code.
        others_bytes: What the other processes on that list have.
        limit_bytes: What this process may have of it, as torch said when memory ran out: all of
            it, or the share of ``set_per_process_memory_fraction``.
    """

    device: int
    total_bytes: int
    free_bytes: int
    torch_bytes: int
    process_bytes: int | None = None
    others_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def non_torch_bytes(self) -> int | None:
        """What this process has beyond torch's allocator."""
        return None if self.process_bytes is None else max(0, self.process_bytes - self.torch_bytes)

    @property
    def outside_torch_bytes(self) -> int:
        """What is taken on the device and not torch's of this process, whoever has it."""
        return max(0, self.total_bytes - self.free_bytes - self.torch_bytes)
