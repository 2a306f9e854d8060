"""What devices can compute and move at most, from their data sheets."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.errors import UsageError

Precision = Literal["float32", "tf32", "float16", "float8"]
"""Precision of matrix products. ``float16`` is also bfloat16, which is equally fast."""
PRECISION_OF: Final[dict[str, Precision]] = {
    "c10::Half": "float16", "c10::BFloat16": "float16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8",
    "c10::Float8_e4m3fnuz": "float8", "c10::Float8_e5m2fnuz": "float8",
}  # fmt: skip
"""By type of elements. The kernel shows whether a product in float32 uses TF32."""


@dataclass(frozen=True)
class Peak:
    """The peaks of a device, of dense matrices.

    Attributes:
        flops_per_s: By precision, without precisions that have no faster units.
        bytes_per_s: Bandwidth of its memory; None if a user left it out.
    """

    flops_per_s: dict[Precision, float]
    bytes_per_s: float | None


CPU: Final = "cpu"
"""The name under which a user states the peaks of the CPU."""
_GIVEN: Final[dict[str, Precision]] = {
    "float32_tflops": "float32", "tf32_tflops": "tf32", "float16_tflops": "float16",
    "float8_tflops": "float8",
}  # fmt: skip
_BANDWIDTH: Final = "bandwidth_gb_per_s"
PEAK_FIGURES: Final = (*_GIVEN, _BANDWIDTH)
"""The figures with which a user states the peaks of a device: 10^12 FLOPs and 10^9 bytes per
second, of dense matrices. ``float16`` is bfloat16 as well."""


def given_peak(figures: Mapping[str, float]) -> Peak:
    """Return the peaks that a user states, by :data:`PEAK_FIGURES`.

    Raises:
        UsageError: A figure has another name, or is not above 0.
    """
    for name, value in figures.items():
        if name not in PEAK_FIGURES or not value > 0:
            hint = f"They are numbers above 0: {', '.join(PEAK_FIGURES)}."
            raise UsageError(f"There is no peak {name!r} of {value!r}.", hint)
    per_s = {kind: figures[name] * 1e12 for name, kind in _GIVEN.items() if name in figures}
    bandwidth = figures.get(_BANDWIDTH)
    return Peak(per_s, None if bandwidth is None else bandwidth * 1e9)


def _peak(bandwidth_gb: float, **tflops: float) -> Peak:
    return Peak({name: value * 1e12 for name, value in tflops.items()}, bandwidth_gb * 1e9)  # type: ignore[misc]


_PEAKS: Final = (
    (r"\bV100-(SXM2|DGXS)", 80, _peak(900, float32=15.7, float16=125)),
    (r"\bA100-SXM4-40GB\b", 108, _peak(1555, float32=19.5, tf32=156, float16=312)),
    (r"\bA100-PCIE-40GB\b", 108, _peak(1555, float32=19.5, tf32=156, float16=312)),
    (r"\bA100-SXM4-80GB\b", 108, _peak(2039, float32=19.5, tf32=156, float16=312)),
    (r"\bA100 80GB PCIe\b", 108, _peak(1935, float32=19.5, tf32=156, float16=312)),
    (r"\bH100 80GB HBM3\b", 132, _peak(3350, float32=67, tf32=494.7, float16=989.4,
                                       float8=1978.9)),
    (r"\bH200\b(?! NVL)", 132, _peak(4800, float32=67, tf32=494.7, float16=989.4, float8=1978.9)),
    (r"\bB200\b", 148, _peak(8000, float32=80, tf32=1100, float16=2250, float8=4500)),
    (r"\bMI300X\b", 304, _peak(5300, float32=163.4, tf32=653.7, float16=1307.4, float8=2614.9)),
    (r"\bMI355X\b", 256, _peak(8000, float16=2500, float8=5000)),
)  # fmt: skip
"""Device name, number of multiprocessors, peaks. The peaks of a part of a device (MIG), which
has fewer multiprocessors, are not known.

Source: NVIDIA's data sheets of V100, A100, H100, H200 and B200, AMD's of MI300X and MI355X; the
figures with sparsity are halved.
"""


def peak_of(name: str, n_sms: int | None) -> Peak | None:
    """Return the peaks of a device, or None if it is not in the table.

    Args:
        name: As the recording has it: ``NVIDIA H100 80GB HBM3``.
        n_sms: Its number of multiprocessors, or None if that was not recorded.
    """
    for pattern, full, peak in _PEAKS:
        if re.search(pattern, name):
            return peak if n_sms in {None, full} else None
    return None
