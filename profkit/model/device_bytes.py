"""Memory of a device by owner: torch's allocator, the rest of the process, other processes."""

from typing import Final

from profkit.dataclass import dataclass

SNAPSHOT_KEY: Final = "profkit"
"""Key of profkit's own data in its snapshots; other readers ignore unknown keys."""


@dataclass(frozen=True)
class DeviceBytes:
    """One device's memory at one moment, in bytes. Unknown figures are None.

    Attributes:
        device: Ordinal of the device in the process.
        total_bytes: Memory of the device, as the driver reports it.
        free_bytes: Free memory of the device, as the driver reports it.
        torch_bytes: Bytes that torch's allocator has reserved in this process.
        process_bytes: Bytes of this process in the driver's process list: torch's allocator, the
            CUDA context, libraries such as NCCL, and kernel code.
        others_bytes: Bytes of the other processes in that list.
        limit_bytes: Bytes that this process may use, as torch reported them when memory ran out:
            the whole device, or the share set by ``set_per_process_memory_fraction``.
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
        """Bytes of this process outside torch's allocator."""
        return None if self.process_bytes is None else max(0, self.process_bytes - self.torch_bytes)

    @property
    def outside_torch_bytes(self) -> int:
        """Bytes in use outside this process's torch allocator, by any process."""
        return max(0, self.total_bytes - self.free_bytes - self.torch_bytes)
