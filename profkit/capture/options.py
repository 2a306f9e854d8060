"""What a capture is asked to record."""

from dataclasses import dataclass
from typing import Literal

from profkit.errors import UsageError

OnlyDevice = Literal["cuda", "xpu"]
"""A kind of device without which nothing is to be recorded. ROCm's is ``cuda``, as in torch."""


@dataclass(frozen=True)
class Options:
    """What to record, and where to put it.

    Attributes:
        ops: Operators on the host.
        device: Kernels, copies, fills and runtime calls of CUDA, ROCm or XPU.
        stacks: The user's lines. Where steps repeat they come from a step of their own.
        shapes: Shapes of the operators' inputs.
        memory: Allocations and frees.
        flops: Floating point operations, as torch estimates them.
        folder: The folder for traces, or None for ``$PROFKIT_DIR``, else ``traces``.
        quiet: Say nothing but warnings.
    """

    ops: bool = True
    device: bool = True
    stacks: bool = True
    shapes: bool = True
    memory: bool = True
    flops: bool = False
    folder: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        if not (self.ops or self.device):
            raise UsageError(
                "A trace of neither operators nor device work would be empty.",
                "Leave ops or device on.",
            )


DEFAULTS = Options()
