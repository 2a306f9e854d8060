"""Whether the program is being compiled or traced, or runs within a backward pass.

profkit must not disturb that.

``torch.compile`` (Dynamo) compiles a function when the program calls it: operators run on fake
tensors meanwhile, and Dynamo traces the hooks of modules too. ``torch.jit.trace``, ``make_fx`` and
``torch.export`` run the program itself, and take every operator for one of its graph, such as the
beginning and the end of an annotation. ``torch.fx.symbolic_trace`` runs it on proxies, and has
replaced ``nn.Module.__call__`` meanwhile.

A backward pass calls hooks of gradients, in which an optimizer may step, functions of the program,
and modules whose activations are recomputed. What is set for the thread in there, such as a
profiler or a mode, is gone once that node of the graph has run.

Nothing of Dynamo is imported.

Source: seen with torch 2.13; ``torch/_guards.py`` (``CompileContext``);
``torch.ops.profiler._record_function_enter_new``; ``Engine::thread_main`` in
``torch/csrc/autograd/engine.cpp`` (``ThreadLocalStateGuard``).
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final

_NO_TASK: Final = -1


def has_compiled() -> bool:
    """Return whether ``torch.compile`` has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    with contextlib.suppress(Exception):  # its layout depends on torch's version
        return bool(utils is not None and utils.counters.get("frames", {}).get("total", 0))
    return False


def is_program_paused() -> bool:
    """Return whether a recording that begins or ends here breaks the program, in this thread.

    The program is being compiled or traced, or in a backward pass. The end of a region is taken for
    an operator of the graph being traced, and the graph can then not be copied; where stacks are
    recorded, torch's Python tracer is called after its end, which is a segmentation fault. So is a
    recording that begins or ends within a node of a backward pass, which undoes that.
    """
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    with contextlib.suppress(Exception):  # its layout depends on torch's version
        if context is not None and context.try_get() is not None:
            return True
    return is_traced() or is_in_backward()


def unless_paused(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that is skipped while the program is compiled or traced, or in a backward pass.

    A hook that Dynamo cannot trace is a graph break: slower, and with ``fullgraph=True`` an error
    in the program.
    """
    is_dynamo_tracing = dynamo_flag()

    def unless_traced(*args: Any) -> None:  # noqa: ANN401
        if is_dynamo_tracing():
            return
        if not (is_traced() or is_in_backward()):
            hook(*args)

    return unless_traced


def dynamo_flag() -> Callable[[], bool]:
    """Return the function of torch whose result is true in code that Dynamo traces.

    Only this one can be called there: Dynamo knows its result.
    """
    import torch

    return torch.compiler.is_compiling


def compiled_module_class() -> Any:  # noqa: ANN401
    """Return the class of modules that ``torch.compile`` returns, or None without any."""
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)


def is_compiled_module(module: object) -> bool:
    """Return whether a module is one that ``torch.compile`` has returned."""
    kind = compiled_module_class()
    return kind is not None and isinstance(module, kind)


def is_traced() -> bool:
    """Return whether operators that run now are recorded by the program, or have no values.

    Other dispatch modes change nothing: the monitoring of memory has one itself.
    """
    import torch

    if getattr(sys.modules.get("torch.fx._symbolic_trace"), "_is_fx_tracing_flag", False):
        return True
    native: Any = torch._C  # noqa: SLF001
    try:
        if native._get_tracing_state() is not None:  # noqa: SLF001
            return True
        if not native._len_torch_dispatch_stack():  # noqa: SLF001
            return False
        keys, mode = native._TorchDispatchModeKey, native._get_dispatch_mode  # noqa: SLF001
        return mode(keys.PROXY) is not None or mode(keys.FAKE) is not None
    except AttributeError:  # these names are private to torch
        return False


def is_in_backward() -> bool:
    """Return whether this thread runs a node of a backward pass."""
    import torch

    return torch._C._current_graph_task_id() != _NO_TASK  # noqa: SLF001  (torch has no public way)
