"""How kernels use a device: occupancy and tensor cores."""

from functools import lru_cache
from typing import Final

import numpy as np

from profkit.index.runtime_calls import map_names
from profkit.model.events import EventTable, Float64s, Int32s, Int64s, Mask, Rows
from profkit.patterns import regex

_SHAPES: Final = r"[hsci](?:884|1688|8816|16816|16832|16864)|16816|tensor\d+x\d+x\d+"
"""Matrix shapes of one instruction, as cuBLAS and cuDNN write them."""
_INSTRUCTIONS: Final = r"hmma|(?<![a-z])imma|gmma|mfma|tcgen05|sm1\d\d_mma_"
_CUTLASS: Final = r"(?<![a-z])(?:bs)?tensorop|(?:mma|class)tensorop"
_ATOMS: Final = r"sm(?:7\d|80|89|90|1\d\d)_\d+x\d+x\d+_[a-z]"
"""CuTe's names: ``SM80_16x8x16_F32F16F16F32_TN``."""
_CUDNN: Final = (
    r"dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group|xmma_"
)
_CUBLAS: Final = r"nvjet_"
_ATTENTION: Final = (
    r"flash_fwd_kernel(?!_traits)|flash_fwd_splitkv_kernel|flash_bwd_dq_dk_dv|native_sdpa_sm|fmhasm\d"
    r"|flashattn[fb]wdsm\d|flashattention(?:forward|backward)sm\d"
    r"|fmha_cutlass[fb]_(?:b?f16\w*_sm[789]\d|f32\w*_sm[89]\d)"
)
_AMD: Final = r"_mi\d+x\d+x\d+|_xdl|igemm_\w+_gtcx"
"""Tensile, Composable Kernel and MIOpen. AMD calls them matrix cores."""
_YES: Final = regex(
    f"{_SHAPES}|{_INSTRUCTIONS}|{_CUTLASS}|{_ATOMS}|{_CUDNN}|{_CUBLAS}|{_ATTENTION}|{_AMD}"
)
_NO: Final = regex(r"ffma|dfma|simt")
"""Kernels of the same families that run on CUDA cores."""


@lru_cache(maxsize=65536)
def names_tensor_cores(name: str) -> bool:
    """Return whether a kernel's name shows tensor cores (matrix cores on AMD's devices).

    Names of Triton's and of custom kernels do not show it, so a share of time is a lower bound.

    Source: NVIDIA's PyProf (``pyprof/prof/tc.py``) for the names up to Ampere, which
    torch-tb-profiler adopted; CUTLASS ("Fundamental types": ``OpClassTensorOp``,
    ``OpClassSimt``; CuTe "MMA Atoms"); ``fmha_cutlassF.h`` of PyTorch; Tensile's "Kernel
    parameters" (``MatrixInstruction``); ``GridwiseGemm_xdlops`` of Composable Kernel.
    """
    text = name.lower()
    return _YES.search(text) is not None and _NO.search(text) is None


_ON_CUDA_CORES: Final = regex(r"(?<![a-z])[sdcz]gemm(?:ex)?_|simt_|_[df]fma|_?[sd]cudnn_")
"""``s``, ``d``, ``c`` and ``z`` are the types of cuBLAS: single, double, and complex ones."""


@lru_cache(maxsize=65536)
def names_cuda_cores(name: str) -> bool:
    """Return whether a kernel's name shows that it multiplies matrices without tensor cores."""
    return _ON_CUDA_CORES.search(name.lower()) is not None and not names_tensor_cores(name)


def tensor_core_rows(events: EventTable, rows: Rows | Int32s) -> Mask:
    """Return which kernels have a name that shows tensor cores. Shape of ``rows``."""
    return map_names(events, rows, names_tensor_cores, np.bool_)


def mean_by_time(figures: Float64s, dur_ns: Int64s) -> float | None:
    """Return the mean of the known figures weighted by duration, or None. NaN is unknown.

    Both arguments have one entry per kernel. Shape ``(k,)``.
    """
    is_known = ~np.isnan(figures)
    weight = dur_ns[is_known]
    if not weight.sum():
        return None
    return float(np.average(figures[is_known], weights=weight))
