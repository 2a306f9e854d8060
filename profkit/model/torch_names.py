"""Names that PyTorch and profkit give to the events of a trace, each spelled once.

Names of CUDA, HIP and SYCL calls are in :mod:`profkit.index.runtime_calls`.

Source: ``torch/profiler/profiler.py`` (steps), ``torch/optim/optimizer.py``,
``torch/utils/data/dataloader.py``, ``torch/csrc/autograd/engine.cpp``,
``torch/csrc/profiler/collection.cpp`` (Python calls, memory), ``torch/nn/parallel``,
``torch/csrc/distributed/c10d``, ``torch/csrc/dynamo``, ``torch/distributed/fsdp``;
``deepspeed/runtime/zero/parameter_offload.py``.
"""

import re
from typing import Final

from profkit.patterns import regex

RECORD_SHAPES: Final = "record_shapes=True"
"""What a user passes to ``torch.profiler.profile`` to record the shapes of inputs."""

STEP_PREFIX: Final = "ProfilerStep#"
STEP: Final = regex(r"^ProfilerStep#?\s*\d+$")
"""One step of ``torch.profiler``; old versions wrote it without ``#``."""

DATA_WAIT: Final = "profkit.data_wait"
"""What ``profkit.steps`` writes around the ``next`` of its iterable."""
DATA_LOADER: Final = "enumerate(DataLoader)"
"""Begin of ``enumerate(DataLoader)#…__next__``, around every ``next`` of a ``DataLoader``."""
DATA_WAITS: Final = regex(rf"^{re.escape(DATA_LOADER)}|^{re.escape(DATA_WAIT)}$")
"""A data-loader wait: the program waits for its next batch."""
WORKER_DATA_WAIT: Final = regex(rf"^{re.escape(DATA_LOADER)}#_MultiProcessing")
"""A wait for a batch that worker processes prepare."""

OWN_WORK_PREFIX: Final = "profkit: "
"""Begin of the annotations that profkit writes around its own work within a recording, such as
``profkit: start``: their time is in no step, no wait and no cost."""

OPTIMIZER_STEP: Final = regex(r"^Optimizer\.step#")
OPTIMIZER_ZERO_GRAD: Final = regex(r"^Optimizer\.zero_grad#")
OPTIMIZER: Final = regex(r"^Optimizer\.(step|zero_grad)#")
MARKS: Final = regex(rf"{OPTIMIZER.pattern}|{DATA_WAITS.pattern}")
"""Regions that the thread of a training loop runs in every step."""

FRAMING: Final = regex(rf"^(ProfilerStep|Optimizer\.|{re.escape(DATA_LOADER)}|profkit\.)")
"""Annotations that PyTorch and profkit write themselves; old traces have them as operators."""

EVALUATE_FUNCTION: Final = "autograd::engine::evaluate_function: "
"""Begin of the name of autograd's wrapper around every node that a backward pass runs."""
EVALUATED_NODE: Final = regex(rf"^{EVALUATE_FUNCTION}")
EVALUATED_ADDITION: Final = regex(rf"^{EVALUATE_FUNCTION}torch::autograd::AccumulateGrad$")
"""The wrapper around :data:`ACCUMULATE_GRAD`."""
BACKWARD: Final = regex(r"^autograd::engine::|^torch::autograd::|Backward\d*$")
"""An operator of a backward pass: the wrapper, or a node such as ``AddmmBackward0``. Versions
before 1.9 have only the nodes."""
ACCUMULATE_GRAD: Final = regex(r"^torch::autograd::AccumulateGrad$")
"""The node that adds to the gradient of a parameter, or sets it where there is none."""

DEVICE_OPERATOR: Final = regex(
    r"^aten::_?(cudnn|miopen)_(?!is_acceptable$)|^(cuda|hip|cu)\w*(Launch|Memcpy|Memset)"
)
"""Operators that only a GPU runs, and calls that ``EventList.export_chrome_trace`` writes like
operators. Recurrent networks ask on a CPU too whether they could use cuDNN."""

MODULE_PREFIX: Final = "nn.Module: "
"""Begin of the name of the Python call of a module."""
BUILTIN_PREFIX: Final = "<built-in "
"""Begin of the name of the Python call of a builtin, such as ``<built-in method item of …>``."""
SYNCHRONIZE_BUILTIN: Final = regex(rf"^{BUILTIN_PREFIX}(?:(?:function|method) )?_?\w*synchronize\b")
"""The builtin of ``torch.cuda.synchronize``, or of a stream's or an event's. It gives Python's
global lock back while the driver waits, and takes it again before it returns."""
TENSOR_METHOD: Final = regex(r"^<built-in method (\w+) of Tensor")
RUN_BACKWARD: Final = "method run_backward of"
"""In the name of the builtin that ``Tensor.backward`` and ``torch.autograd.grad`` call."""
MEMORY: Final = "[memory]"
"""An allocation or a free."""

DATA_PARALLEL_FORWARD: Final = regex(r"^DataParallel\.forward$")
DATA_PARALLEL_FUNCTIONS: Final = regex(
    r"^(Scatter|Broadcast|Gather|ReduceAddCoalesced)(Backward)?$"
)
"""Autograd functions with which ``DataParallel`` distributes and collects tensors."""
DISTRIBUTED_DATA_PARALLEL_FORWARD: Final = regex(r"^DistributedDataParallel\.forward$")
DISTRIBUTED_DATA_PARALLEL: Final = regex(
    rf"{DISTRIBUTED_DATA_PARALLEL_FORWARD.pattern}|^torch(\.distributed\.ddp\.|::distributed::)reducer::"
    r"|^nn\.Module: DistributedDataParallel_"
)
"""Its forward, its reducer's operators, or the Python call of the module."""
FULLY_SHARDED: Final = regex(r"^(FSDP::|FullyShardedDataParallel)")

COLLECTIVE: Final = regex(
    r"^(c10d|_c10d_functional|c10d_functional)::|^record_param_comms$|^symm_mem::\w*(reduce|gather)"
    r"|^(nccl|rccl|xccl|hccl|ucc|gloo|mpi):"
)
"""An operator or annotation that starts, runs or awaits a collective."""
HOST_COLLECTIVE: Final = regex(r"^(gloo|mpi):")
"""A collective that threads of the host run; the annotation lasts until it is done."""
DEVICE_COLLECTIVE: Final = regex(r"^(nccl|rccl|xccl|hccl):")
"""A collective that a device runs; the annotation ends when its kernel is launched."""

COMPILED_REGION_PREFIX: Final = "Torch-Compiled Region"
COMPILED_REGION: Final = regex(r"^Torch-Compiled Region(: (?P<number>.+))?$")
"""A run of a compiled function; since torch 2.5 with its compile id, such as ``3/1``."""
DYNAMO_OVERHEAD: Final = regex(r"^(TorchDynamo Cache Lookup|Pregraph bytecode)$")
COMPILING: Final = regex(r"\(dynamo_timed\)$|^entire_\w+_compile$|^dynamo$")
COMPILING_FUNCTION: Final = regex(
    r"^(dynamo|entire_frame_compile|_compile(\.<locals>)?(\.compile_inner)? \(dynamo_timed\))$"
)
"""The row around the whole compilation of one function, since torch 2.0."""
COMPILE_ID: Final = regex(r"^dynamo_data: compile_id=(?P<number>\S+)$")
COMPILED_AUTOGRAD: Final = "CompiledAutograd"
TRAINING: Final = regex(rf"{OPTIMIZER_STEP.pattern}|{BACKWARD.pattern}|{COMPILED_AUTOGRAD}")
"""Signs of a backward pass, even one that does not record which nodes it ran."""
RESUMED: Final = ("torch_dynamo_resume_in_", "<resume in ")
"""Begins of the names of functions that torch generates for the code after a graph break."""
