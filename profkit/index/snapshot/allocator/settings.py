"""Sizes in bytes and settings of PyTorch's caching allocator that affect what it reserves.

Source: ``c10/core/AllocatorConfig.h`` (``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kMinLargeAlloc``, ``kRoundLarge``), ``c10/cuda/CUDAAllocatorConfig.h``;
``c10/cuda/CUDACachingAllocator.cpp`` (``get_allocation_size``, ``round_size``,
``roundup_power2_next_division``).
"""

from collections.abc import Mapping
from typing import Final

from profkit.dataclass import dataclass
from profkit.patterns import regex

BLOCK_BYTES: Final = 512
"""Block sizes are multiples of this."""
SMALL_BYTES: Final = 1 << 20
"""Largest request that is served by a small pool."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""Size of a segment of a small pool, and of the pages of an expandable segment."""
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""Size of a segment shared by larger requests, and of the pages of an expandable segment."""
OWN_SEGMENT_BYTES: Final = 10 << 20
"""Requests from this size on get a segment of their own."""
ROUND_BYTES: Final = 2 << 20
"""Sizes of such segments are multiples of this."""
_MIB: Final = 1 << 20
_N_DIVISIONS: Final = 16
"""One for each power of two from 1 MiB to 32 GiB."""
_NO_LIMIT_BYTES: Final = 1 << 48
"""More than any device has: versions of PyTorch write different values for no limit."""
CONF: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""The variable with the settings. Newer documentation calls it ``PYTORCH_ALLOC_CONF``, of which
this is an alias. But torch 2.9 does not read ``expandable_segments`` from there, earlier versions
read nothing, and if both are set, this one counts.

Source: ``c10/cuda/CUDAAllocatorConfig.h`` (``instance``); pytorch #183387, #167659.
"""
_CONFS: Final = (CONF, "PYTORCH_ALLOC_CONF")
"""Names in snapshots, of CUDA and of XPU."""
_SPLIT: Final = regex(r",(?![^\[\]]*\])")
_WRITTEN: Final = regex(r"\w{1,64}:[\w.:,>\[\]-]{1,400}")
"""A setting as PyTorch accepts it."""
_CHANGED: Final = ("expandable_segments", "max_split_size_mb")
_NUMBER: Final = regex(r"(?<!\w)(\w{1,64})\s*:\s*(\d{1,18})(?!\d)")


def segment_bytes(n_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Return the size of the segment that the allocator requests from the driver.

    Args:
        n_bytes: The request, rounded to a block size.
        large_segment_bytes: Size of shared segments, if it is set.
    """
    if n_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if n_bytes < OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-n_bytes // ROUND_BYTES) * ROUND_BYTES


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings of ``PYTORCH_CUDA_ALLOC_CONF``.

    Attributes:
        max_split_bytes: ``max_split_size_mb``, or None: larger free blocks are not split, and serve
            no smaller request.
        expandable: ``expandable_segments``.
        max_rest_bytes: ``max_non_split_rounding_mb``: a block that is not split may exceed the
            request by less than this.
        large_segment_bytes: ``large_segment_size_mb``.
        divisions: ``roundup_power2_divisions`` for requests below 2 MiB, 4 MiB and so on; 0 or 1
            rounds to block sizes only. Empty if all do.
        garbage_threshold: ``garbage_collection_threshold``, a share of the process's limit.
        others: The settings besides the first two, as they are written: PyTorch takes the default
            for settings that a new value of the variable does not have.
    """

    max_split_bytes: int | None = None
    expandable: bool = False
    max_rest_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    divisions: tuple[int, ...] = ()
    garbage_threshold: float = 0.0
    others: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """Return the setting that is tried, empty without a limit."""
        if self.expandable:
            return "expandable_segments:True"
        limit = self.max_split_bytes
        return "" if limit is None else f"max_split_size_mb:{limit // _MIB}"

    @property
    def alloc_conf(self) -> str:
        """Return the value of :data:`CONF` with the tried setting and the others."""
        return ",".join(filter(None, (*self.others, self.change)))

    def round(self, n_bytes: int) -> int:
        """Return the block size that a request of some bytes needs."""
        if n_bytes < BLOCK_BYTES:
            return BLOCK_BYTES
        divisions = self._divisions_of(n_bytes)
        if divisions > 1 and n_bytes > BLOCK_BYTES * divisions:
            return _next_division(n_bytes, divisions)
        return -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES

    def _divisions_of(self, n_bytes: int) -> int:
        if not self.divisions:
            return 0
        # Requests beyond both ends of the list have its first and its last division.
        power = n_bytes.bit_length() - _MIB.bit_length()
        return self.divisions[min(max(power, 0), len(self.divisions) - 1)]


def _next_division(n_bytes: int, divisions: int) -> int:
    """Return the request rounded up to a division between two powers of two."""
    floor = 1 << (n_bytes.bit_length() - 1)
    if floor == n_bytes:
        return n_bytes

    # PyTorch rounds the number of divisions down to a power of two.
    step = floor >> (divisions.bit_length() - 1)
    return -(-n_bytes // step) * step if step else floor << 1


def parse_settings(values: Mapping[str, str | int | float | bool]) -> AllocatorSettings:
    """Parse :attr:`MemorySnapshot.settings`, with PyTorch's defaults for missing values."""
    limit = values.get("max_split_size")
    text = next((values[name] for name in _CONFS if values.get(name)), "")
    written = {key: int(n) for key, n in _NUMBER.findall(text)} if isinstance(text, str) else {}
    threshold = values.get("garbage_collection_threshold")

    return AllocatorSettings(
        max_split_bytes=limit if isinstance(limit, int) and 0 < limit < _NO_LIMIT_BYTES else None,
        expandable=values.get("expandable_segments") is True,
        max_rest_bytes=_mebibytes(written, "max_non_split_rounding_mb"),
        large_segment_bytes=_mebibytes(written, "large_segment_size_mb"),
        divisions=_parse_divisions(values.get("roundup_power2_divisions")),
        garbage_threshold=float(threshold) if isinstance(threshold, int | float) else 0.0,
        others=_parse_others(text) if isinstance(text, str) else (),
    )


def _parse_others(text: str) -> tuple[str, ...]:
    """Parse ``others`` of :class:`AllocatorSettings`."""
    settings = _SPLIT.split(text.replace(" ", ""))
    return tuple(
        setting
        for setting in settings
        if _WRITTEN.fullmatch(setting) and setting.partition(":")[0] not in _CHANGED
    )


def _mebibytes(written: Mapping[str, int], name: str) -> int:
    n_bytes = written.get(name, 0) * _MIB
    return n_bytes if 0 < n_bytes < _NO_LIMIT_BYTES else LARGE_SEGMENT_BYTES


def _parse_divisions(value: object) -> tuple[int, ...]:
    """Parse divisions by power of two, from ``1:0 2:0 4:8`` (mebibytes and divisions)."""
    if not isinstance(value, str):
        return ()
    by_size = {int(size): int(n) for size, n in _NUMBER.findall(value) if size.isdigit()}
    divisions = tuple(by_size.get(1 << power, 0) for power in range(_N_DIVISIONS))
    return divisions if max(divisions) > 1 else ()
