"""What kind of work operators and kernels do: matmul, attention, pointwise and so on.

A kernel's name decides where it shows the kind of work. A matrix product is part of convolution or
attention's if their operator launched it, and an elementwise kernel belongs to the operator that
launched it if that is a copy, a normalization or the like. A kernel whose launch is not in the
recording has its name alone.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, get_args

import numpy as np

from profkit.index.distinct import numbered
from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import are_in_updates
from profkit.index.launches import Launches
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows, is_within
from profkit.model.torch_names import COLLECTIVE
from profkit.model.work_summary import WorkCategory
from profkit.patterns import regex

WORK_CATEGORIES: Final[tuple[WorkCategory, ...]] = get_args(WorkCategory)
PRODUCTS: Final = tuple(map(WORK_CATEGORIES.index, ("matmul", "convolution", "attention")))
"""Indices of the categories of work that a GPU's matrix units are made for."""
_MAX_NAMES: Final = 1 << 16
"""More different names than any program has; the others are of category ``other``."""
_OTHER: Final = WORK_CATEGORIES.index("other")

_NORM: Final = r"(?:batch|layer|group|instance|rms)_?norm"
_TRITON: Final[dict[WorkCategory, str]] = {
    "attention": r"_tem_fused_\w*attention|_sdpa_",
    "convolution": r"_(?:tem_fused_\w*)?conv(?:olution|\dd)",
    "matmul": r"_tem_fused_|^triton_(?:\w+_)?(?:add)?b?mm(?:_|$)",
    "embedding": r"_embedding",
    "normalization": rf"_(?:red|per)_fused_\w*(?:{_NORM}|var_mean|rsqrt)",
    "reduction": r"_(?:red|per|split_scan)_fused_",
    "copy": r"_poi_fused_(?:_?(?:to_copy|clone|copy|cat|stack|fill|zeros|zero|transpose|permute"
            r"|view|unsqueeze|expand|slice|t)_?)+\d*$",
    "pointwise": r"_(?:poi|for|cpp)_fused_",
}  # fmt: skip
"""Kernels of Inductor, which are named after their kind and after the operators fused in them:
``poi`` pointwise, ``red`` and ``per`` reductions, ``tem`` templates, ``for`` lists of tensors.

Source: ``torch/_inductor/codegen/triton.py`` (``TritonKernel``, ``get_fused_kernel_name``).
"""
_LAYOUT: Final = regex(
    r"catarraybatchedcopy|nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose|^transpose"
    r"|\btranspose_kernel|memcpy|memset|__amd_rocclr_(?:copy|fill)"
)
"""Kernels that copy, whatever operator launched them: convolutions change layouts."""
_KERNELS: Final[dict[WorkCategory, str]] = {
    "attention": r"flash_?(?:fwd|bwd|attn|attention|mla|prefill|decode)|fmha|sdpa|attention|_attn"
                 r"|attn_|(?:prefill|decode|pod)with|mergestate|paged_|::mha_"
                 r"|_fwd_(?:grouped_)?kernel_stage\d",
    "normalization": rf"{_NORM}|qk_?norm|rowwisemoments|gammabeta|\bbn_[fb]w|welford",
    "embedding": r"(?<!rotary_)embedding|embed_",
    "optimizer": r"(?:adam\w*|adagrad|sgd|lamb|lion)\w*(?:functor|kernel)|fused_?adam",
    "convolution": r"conv(?!ert)|scudnn|[fdw](?:prop|grad)(?!_?norm)|winograd|im2col|col2im|igemm"
                   r"|implicit_gemm|depthwise",
    "matmul": r"(?<!fb)gemm|gemv|^bmm_|nvjet|cijk_|split_?k|xmma|matmul|(?:^|_)mm_?kernel|trsm"
              r"|syrk|\bdot_kernel|reduce_1block|marlin|fused_moe|moe_kernel|(?<![a-z])tensorop"
              r"|[hsi](?:884|1688|16816)",
    "pointwise": r"elementwise|multi_tensor_apply|activation|silu|gelu|[^a-z]relu|sigmoid|swiglu"
                 r"|dropout|rotary|rope_|quant|distribution_|tensorop|op[1-5]?d?tensor",
    "copy": r"copy|fill|index|gather|scatter|\broll_|flip|triu|tril|repeat|permute"
            r"|reshape_and_cache|store_kv|appendpagedkv|convert_?tensor",
    "reduction": r"reduce(?!d_div)|softmax|argm(?:ax|in)|topk|sort|scan|cumsum|loss|pool|radix"
                 r"|histogram",
}  # fmt: skip
"""Kernels of PyTorch, cuBLAS, cuDNN, CUTLASS, rocBLAS, MIOpen, Composable Kernel, FlashAttention,
FlashInfer, SGLang and vLLM: the first pattern found in the name, in lower case."""
_COPY_FUNCTOR: Final = regex(r"(?:direct|float\w*|bfloat16)_copy_kernel|fillfunctor|index_\w+")
"""In the name of an elementwise kernel: it copies."""

_POINTWISE: Final = (
    r"add|sub|rsub|mul|div|true_divide|neg|abs|sign|sqrt|rsqrt|square|pow|exp\w*|log|log1p|log2|sin"
    r"|cos|tan|tanh|a(?:sin|cos|tan)h?|erf\w*|reciprocal|relu6?|elu|celu|selu|gelu|silu|mish|glu"
    r"|softplus|sigmoid|log_sigmoid|hard\w+|leaky_relu|prelu|threshold|clamp\w*|clip|minimum|maximum"
    r"|f?max|fmin|where|floor\w*|ceil|round|trunc|frac|remainder|fmod|addcmul|addcdiv|lerp|logaddexp"
    r"|masked_fill|(?:native_|feature_|alpha_)?dropout|bernoulli|normal|uniform|random|exponential"
    r"|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|isnan|isinf|isfinite|nan_to_num|xlogy|atan2|hypot"
    r"|polar|complex|angle|sgn|digamma|lgamma"
)
_OPERATORS: Final[dict[WorkCategory, str]] = {
    "attention": r"attention|flash_?attn|(?:^|[:_])mha|_attn(?:_|$)|sdpa",
    "convolution": r"conv(?!ert)",
    "optimizer": r"^aten::_fused_(?:adam|adamw|sgd|adagrad)|fused_?adam|(?:adam|sgd|lamb)_step",
    "embedding": r"(?<!rotary_)embedding",
    "normalization": _NORM,
    "matmul": r"^aten::(?:\w*mm|mv|addmv|v?dot|linear\w*|bilinear|einsum|inner|outer|ger|addr"
              r"|tensordot|\w*rnn\w*|lstm\w*|gru\w*)_?$"
              r"|(?:mm|linear)backward\d*$|matmul|(?<!fb)gemm|moe_",
    "copy": r"^aten::(?:copy|clone|contiguous|to|_to_copy|type_as|cat|[hv]?stack|fill|zero|arange"
            r"|(?:zeros|ones|full)(?:_like)?|new_(?:zeros|ones|full)|index\w*|gather|scatter\w*"
            r"|masked_(?:select|scatter)|take\w*|repeat\w*|roll|flip|tril|triu|constant_pad_nd|pad"
            r"|_?pin_memory|nonzero|one_hot|(?:slice|select)_backward|_local_scalar_dense"
            r"|_foreach_(?:copy|zero))_?$",
    "reduction": r"^aten::(?:_foreach_)?(?:sum\w*|mean|prod|a?max|a?min|aminmax|argmax|argmin|any"
                 r"|all|norm|linalg_vector_norm|(?:var|std)(?:_mean)?|median|mode|logsumexp|trace"
                 r"|_?(?:log_)?softmax\w*|cum\w+|sort|argsort|topk|kthvalue|_?unique\w*|bincount"
                 r"|histc|equal|count_nonzero|_?cdist\w*|\w*pool\w*|\w*loss\w*|cross_entropy\w*"
                 r"|multinomial|searchsorted|bucketize)_?$",
    "pointwise": rf"^aten::(?:_foreach_|_amp_foreach_)?(?:{_POINTWISE})(?:_backward)?_?$"
                 r"|_cpp_fused_|_amp_foreach_non_finite",
}  # fmt: skip
"""Operators, by the first pattern found in the name, in lower case. Operators that only
allocate or make a view are ``other``."""
_COMPOSITE: Final = regex(
    r"scaled_dot_product|ScaledDotProduct|^aten::(_?convolution|embedding)|(Convolution|Embedding)Back"
)
"""Operators whose work has their own category, whatever operators they call for it."""
_OF_PRODUCT: Final = ("convolution", "attention")
"""Categories that a matrix product can be a part of."""
_OF_ELEMENTWISE: Final = (
    "copy",
    "normalization",
    "embedding",
    "optimizer",
    "attention",
    "reduction",
)
"""Categories that an elementwise kernel can be a part of.

In a matmul or convolution it adds the bias.
"""
_OF_REDUCTION: Final = ("normalization", "embedding", "attention")
_OF_COPY: Final = ("embedding", "attention")


def _find_first(patterns: dict[WorkCategory, str], name: str) -> WorkCategory | None:
    return next((kind for kind, pattern in patterns.items() if re.search(pattern, name)), None)


@lru_cache(maxsize=65536)
def operator_category(name: str) -> WorkCategory:
    """Return the category of an operator, or of a node of the backward pass, by its name."""
    if COLLECTIVE.search(name):
        return "communication"
    return _find_first(_OPERATORS, name.lower()) or "other"


@lru_cache(maxsize=65536)
def classify_kernel(kernel: str, operator: str | None = None) -> WorkCategory:
    """Return the category of a kernel that is not a collective.

    Args:
        kernel: Its name.
        operator: The innermost operator that launched it; None where that is not known.
    """
    name = kernel.lower()
    if _LAYOUT.search(name):
        return "copy"

    category = _find_first(_TRITON, name) if name.startswith("triton_") else None
    category = category or _find_first(_KERNELS, name)
    by_operator = operator_category(operator) if operator else None
    if category == "pointwise" and by_operator in {None, "other"} and _COPY_FUNCTOR.search(name):
        return "copy"

    may_be_part_of: tuple[str, ...] = {
        "matmul": _OF_PRODUCT,
        "pointwise": _OF_ELEMENTWISE,
        "reduction": _OF_REDUCTION,
        "copy": _OF_COPY,
        None: WORK_CATEGORIES,
    }.get(category, ())
    if by_operator is not None and by_operator in may_be_part_of:
        return by_operator
    return category or "other"


_ELEMENTWISE: Final = regex(r"elementwise_kernel|triton_poi_fused_")


def elementwise_rows(events: EventTable, rows: Rows) -> Mask:
    """Return which kernels compute each element on its own, as PyTorch's and Inductor's names show.

    Casts and copies of elements are among them. Shape of ``rows``.
    """
    return rows_named(events, _ELEMENTWISE, Category.KERNEL)[rows]


def classify_work(
    events: EventTable, tree: CallTree, launches: Launches, is_communication: Mask
) -> Int64s:
    """Return the category of every operator and of all device work, as its index.

    Work that ``Optimizer.step`` launches after its closure is an optimizer's, whatever it does.

    Args:
        is_communication: Rows of collective kernels. Shape ``(n,)``.

    Returns:
        Index into :data:`WORK_CATEGORIES`; of rows that are neither, ``other``. Shape ``(n,)``.
    """
    category = np.full(len(events), _OTHER, dtype=np.int64)

    ops = np.flatnonzero(events.category == Category.OP)
    numbers, place = np.unique(events.name[ops], return_inverse=True)
    category[ops] = _classify(numbers, place, lambda name: operator_category(events.names[name]))

    composite = tree.nearest(rows_named(events, _COMPOSITE, Category.OP))
    within = ops[composite[ops] != NO_ROW]
    category[within] = category[composite[within]]

    # An optimizer's update counts as a whole, whatever operators it uses.
    in_update = are_in_updates(events, tree)
    category[ops[in_update[ops]]] = WORK_CATEGORIES.index("optimizer")

    # A kernel's operator decides together with its name, so each pair is classified once.
    work = events.kernels
    op = np.full(len(events), NO_ROW, dtype=np.int64)
    op[launches.work] = launches.op
    launch = np.full(len(events), NO_ROW, dtype=np.int64)
    launch[launches.work] = launches.launch
    owner = op[work]
    owner = np.where((owner != NO_ROW) & (composite[owner] != NO_ROW), composite[owner], owner)
    name = np.where(owner == NO_ROW, NO_ROW, events.name[owner])
    width = len(events.names) + 1
    pairs, place = numbered(events.name[work].astype(np.int64) * width + name + 1)

    def of_pair(pair: int) -> WorkCategory:
        kernel, operator = divmod(pair, width)
        return classify_kernel(
            events.names[kernel], events.names[operator - 1] if operator else None
        )

    category[work] = _classify(pairs, place, of_pair)
    begun = launch[work]
    category[work[(begun != NO_ROW) & in_update[begun]]] = WORK_CATEGORIES.index("optimizer")

    category[is_communication] = WORK_CATEGORIES.index("communication")
    category[events.rows_of(Category.MEMCPY, Category.MEMSET)] = WORK_CATEGORIES.index("copy")
    return category


def are_categories(found: Int64s, events: EventTable) -> bool:
    """Return whether categories from a cache may belong to some events."""
    return len(found) == len(events) and is_within(found, 0, len(WORK_CATEGORIES) - 1)


def _classify(
    keys: Int32s | Int64s, place: Int64s, classify: Callable[[int], WorkCategory]
) -> Int64s:
    """Classify the most frequent keys, and return the category at each place."""
    kinds = np.full(len(keys), _OTHER, dtype=np.int64)
    frequent = np.argsort(-np.bincount(place, minlength=len(keys)), kind="stable")[:_MAX_NAMES]
    kinds[frequent] = [WORK_CATEGORIES.index(classify(key)) for key in keys[frequent].tolist()]
    return np.asarray(kinds[place])
