"""Which kernels multiply matrices, or convolve, in float32: on ordinary cores, or rounded to TF32.

A float32 product comes out of either. What the kernel was told to do is in its name alone.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from profkit.index.launches import Launches
from profkit.index.runtime_calls import names_matching
from profkit.model.events import NO_ROW, EventTable, Int32s, Mask, Rows

_ARCHITECTURE: Final = r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)"
_FLOAT32: Final = re.compile(
    rf"(?<![a-z]){_ARCHITECTURE}_(?:sgemm_\d+x\d+(?!\d|_sliced)|scudnn_)"
    r"|simt_s(?:gemm|fprop|dgrad|wgrad)_(?!\w*(?:f16|[su]8))"
    r"|xmma_\w+?_f32f32_f32f32_f32_\w*ffma"
    r"|convolve_sgemm(?:<float\b|If)"
    r"|(?:dgrad|wgrad_alg\d)_engine(?:_NHWC)?(?:<float\b|If)"
    r"|dgrad2d_alg\d_\d(?:<float\b|If)"
)
"""``s`` is float32 where cuBLAS, cuDNN and CUTLASS name a kernel: ``h``, ``d``, ``c`` and ``z`` are
not. ``volta_fp16_sgemm_fp16`` adds up halves in float32, ``ffma`` is the ordinary cores'
instruction. A product that is sliced within a block is
too small to fill a device."""
_TF32: Final = re.compile(
    r"tf32"
    r"|tensorop_s1688(?:gemm|fprop|dgrad|wgrad)_(?!\w*f16)"
    r"|tensorop_s\d+x\d+x8gemm_f32"
)
"""An instruction that takes eight numbers deep takes 32 bits each, unless the name says 16."""
_CUDNN_KERNEL: Final = re.compile(r"cudnn|convolve|[fdw](?:prop|grad)")
_CUDNN_OP: Final = re.compile(r"conv|_rnn|lstm|gru")
_LINEAR_ALGEBRA: Final = re.compile(
    r"linalg|cholesky|geqrf|orgqr|ormqr|lstsq|solve|(?:^|[:_])(?:lu|qr|svd|eig|symeig)(?:_|$)|inverse"
)
"""cuSOLVER and MAGMA multiply in float32 whatever is allowed to cuBLAS."""

MatmulPrecision = Literal["float32", "tf32"]


@lru_cache(maxsize=65536)
def matmul_precision(kernel: str) -> MatmulPrecision | None:
    """How a kernel multiplies float32 numbers; None if it does not, or does not tell.

    Kernels for a matrix and a vector do not count: they wait for memory, not for cores.

    Args:
        kernel: The kernel's name, mangled or not.

    Source: CUTLASS, "Fundamental types" and ``generator.py`` (``OpClassSimt`` and
    ``OpClassTensorOp``; the letters of its kernels' names); names of cuBLAS and cuDNN as traces of
    A100, H100, B200 and V100 have them.
    """
    if _TF32.search(kernel):
        return "tf32"
    return "float32" if _FLOAT32.search(kernel) else None


@dataclass(frozen=True)
class Matmuls:
    """Kernels that multiply matrices of float32.

    Attributes:
        rows: The kernels, ascending. Shape ``(k,)``.
        op: For each the innermost operator that launched it, or :data:`NO_ROW`. Shape ``(k,)``.
        is_tf32: Whether it rounds the factors to TF32, on tensor cores. Shape ``(k,)``.
        by_cudnn: Whether it belongs to a convolution or a recurrent layer, which have a setting of
            their own, and whose algorithm cuDNN chooses. Shape ``(k,)``.
    """

    rows: Rows
    op: Int32s
    is_tf32: Mask
    by_cudnn: Mask

    def select(self, kept: Mask) -> "Matmuls":
        """Some of them. ``kept`` has shape ``(k,)``."""
        return Matmuls(self.rows[kept], self.op[kept], self.is_tf32[kept], self.by_cudnn[kept])


def float32_matmuls(events: EventTable, launches: Launches) -> Matmuls:
    """Find them, but for those of linear algebra such as factorizations."""
    rows, op = launches.work, launches.op
    numbers, place = np.unique(events.name[rows], return_inverse=True)
    kinds = [matmul_precision(events.names[number]) for number in numbers.tolist()]
    multiplies = np.array([kind is not None for kind in kinds], dtype=np.bool_)[place]
    rounds = np.array([kind == "tf32" for kind in kinds], dtype=np.bool_)[place]
    rows, op, rounds = rows[multiplies], op[multiplies], rounds[multiplies]
    by_cudnn = np.where(
        op == NO_ROW,
        _named(events, rows, _CUDNN_KERNEL),
        _named(events, op, _CUDNN_OP),
    )
    counts = (op == NO_ROW) | ~_named(events, op, _LINEAR_ALGEBRA)
    return Matmuls(rows, op, rounds, by_cudnn).select(counts)


def _named(events: EventTable, rows: Rows | Int32s, pattern: re.Pattern[str]) -> Mask:
    """Which rows have a matching name. Of no row the answer means nothing. Shape of ``rows``."""
    numbers, place = np.unique(events.name[rows], return_inverse=True)
    return names_matching((events.names[number] for number in numbers.tolist()), pattern)[place]
