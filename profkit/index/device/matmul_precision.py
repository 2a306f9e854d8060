"""Precision of float32 matmuls and convolutions: float32 on CUDA cores, or rounded to TF32.

Both produce float32 results. Only the kernel's name shows which one ran.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.launches import Launches
from profkit.index.runtime_calls import map_names
from profkit.model.events import NO_ROW, EventTable, Int32s, Mask, Rows
from profkit.patterns import regex

_ARCHITECTURE: Final = r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)"
_FLOAT32: Final = regex(
    rf"(?<![a-z]){_ARCHITECTURE}_(?:sgemm_\d+x\d+(?!\d|_sliced)|scudnn_)"
    r"|simt_s(?:gemm|fprop|dgrad|wgrad)_(?!\w*(?:f16|[su]8))"
    r"|xmma_\w+?_f32f32_f32f32_f32_\w*ffma"
    r"|convolve_sgemm(?:<float\b|If)"
    r"|(?:dgrad|wgrad_alg\d)_engine(?:_NHWC)?(?:<float\b|If)"
    r"|dgrad2d_alg\d_\d(?:<float\b|If)"
    r"|magma_sgemmEx_kernel(?:<float, float, float\b|Ifff)"
)
"""``s`` is float32 in the kernel names of cuBLAS, cuDNN and CUTLASS, unlike ``h``, ``d``, ``c`` and
``z``. ``volta_fp16_sgemm_fp16`` accumulates halves in float32; ``ffma`` is the instruction of CUDA
cores. A matmul that is sliced within a block is too small to fill a device."""
_TF32: Final = regex(
    r"tf32"
    r"|tensorop_s1688(?:gemm|fprop|dgrad|wgrad)_(?!\w*f16)"
    r"|tensorop_s\d+x\d+x8gemm_f32"
)
"""An instruction of depth eight takes 32-bit operands, unless the name says 16."""
_BFLOAT16: Final = regex(
    r"magma_sgemmEx_kernel(?:<float, __nv_bfloat16\b|If13__nv_bfloat16)"
    r"|convolve_sgemm(?:<__nv_bfloat16\b|I13__nv_bfloat16)"
)
"""Products of bfloat16 that CUDA cores compute in float32, as on GPUs before Ampere."""
_CUDNN_KERNEL: Final = regex(r"cudnn|convolve|[fdw](?:prop|grad)")
_CUDNN_OP: Final = regex(r"conv|_rnn|lstm|gru")
_LINEAR_ALGEBRA: Final = regex(
    r"linalg|cholesky|geqrf|orgqr|ormqr|lstsq|solve|(?:^|[:_])(?:lu|qr|svd|eig|symeig)(?:_|$)|inverse"
)
"""cuSOLVER and MAGMA multiply in float32 regardless of the settings for cuBLAS."""

MatmulPrecision = Literal["float32", "tf32"]


@lru_cache(maxsize=65536)
def matmul_precision(kernel: str) -> MatmulPrecision | None:
    """Return how a kernel multiplies float32 matrices, or None if its name does not show it.

    Matrix-vector kernels are excluded: they are memory-bound.

    Source: CUTLASS, "Fundamental types" and ``generator.py`` (``OpClassSimt`` and
    ``OpClassTensorOp``; the letters in its kernel names); names of cuBLAS and cuDNN in traces of
    A100, H100, B200 and V100.
    """
    if _TF32.search(kernel):
        return "tf32"
    return "float32" if _FLOAT32.search(kernel) else None


@lru_cache(maxsize=65536)
def is_bfloat16_on_cuda_cores(kernel: str) -> bool:
    """Return whether a kernel, by its name, multiplies bfloat16 matrices on CUDA cores."""
    return _BFLOAT16.search(kernel) is not None


@dataclass(frozen=True)
class Matmuls(Columns):
    """Kernels that multiply float32 matrices, or bfloat16 matrices on CUDA cores.

    Attributes:
        rows: The kernels, ascending. Shape ``(k,)``.
        op: The innermost operator that launched each, or :data:`NO_ROW`. Shape ``(k,)``.
        is_tf32: Whether it rounds its inputs to TF32, on tensor cores. Shape ``(k,)``.
        by_cudnn: Whether it belongs to a convolution or recurrent layer, which have their own
            setting, and whose algorithm cuDNN chooses. Shape ``(k,)``.
    """

    rows: Rows
    op: Int32s
    is_tf32: Mask
    by_cudnn: Mask


def float32_matmuls(events: EventTable, launches: Launches) -> Matmuls:
    """Find float32 matmuls, except in linear algebra such as factorizations."""
    return _find_matmuls(events, launches, lambda name: matmul_precision(name) is not None)


def bfloat16_matmuls(events: EventTable, launches: Launches) -> Matmuls:
    """Find bfloat16 matmuls on CUDA cores."""
    return _find_matmuls(events, launches, is_bfloat16_on_cuda_cores)


def _find_matmuls(
    events: EventTable, launches: Launches, is_wanted: Callable[[str], bool]
) -> Matmuls:
    is_matmul = map_names(events, launches.work, is_wanted, np.bool_)
    rows, op = launches.work[is_matmul], launches.op[is_matmul]
    is_tf32 = map_names(events, rows, lambda name: matmul_precision(name) == "tf32", np.bool_)

    # A kernel that no known operator launched is judged by its own name.
    by_cudnn = np.where(
        op == NO_ROW,
        _named(events, rows, _CUDNN_KERNEL),
        _named(events, op, _CUDNN_OP),
    )

    is_counted = (op == NO_ROW) | ~_named(events, op, _LINEAR_ALGEBRA)
    return Matmuls(rows, op, is_tf32, by_cudnn).select(is_counted)


def _named(events: EventTable, rows: Rows | Int32s, pattern: re.Pattern[str]) -> Mask:
    """Return which rows have a matching name, meaningless for :data:`NO_ROW`. Shape of ``rows``."""
    return map_names(events, rows, lambda name: pattern.search(name) is not None, np.bool_)
