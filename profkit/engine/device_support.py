"""Abilities of the recorded devices, by compute capability or name."""

from typing import Final

from profkit.engine.context import Context
from profkit.index.runtime_calls import HIP
from profkit.patterns import regex

_AMPERE: Final = (8, 0)
"""Compute capability of the first NVIDIA GPUs with arithmetic in bfloat16."""
_BEFORE_AMPERE: Final = regex(
    r"\b(V100|T4|P100|P40|P4|K80|M60|TITAN|GTX|GT|Quadro (RTX|[GMPKT]V?\d+))\b"
    r"|\bRTX 20\d0\b|\b(Quadro|TITAN) "
)
"""Names of NVIDIA GPUs before Ampere."""


def lacks_bfloat16(ctx: Context) -> bool:
    """Return whether a recorded GPU is known to have no arithmetic in bfloat16.

    Source: "Arithmetic Instructions" in the CUDA C++ Programming Guide (``bfloat16`` from compute
    capability 8.0 on). AMD's GPUs write other numbers there, and all that PyTorch supports have it.
    """
    if len(HIP.rows(ctx.events)):
        return False
    return any(
        device.compute_capability < _AMPERE
        if device.compute_capability is not None
        else _BEFORE_AMPERE.search(device.name) is not None
        for device in ctx.trace.devices.values()
    )
