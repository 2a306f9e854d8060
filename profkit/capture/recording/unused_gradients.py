"""Finds modules whose gradients are computed and used by no optimizer, such as a teacher's.

Recorded calls of modules have the address of the module, so that what a step has called is known
without a search. That is done at the end of a step, while the program has its models: the gradients
of the step are there, unless it has freed them.

Source: ``NNModuleInfo`` in ``torch/csrc/profiler/orchestration/python_tracer.h`` (``self_``).
"""

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from profkit.capture.process.frames import locals_of, running
from profkit.capture.process.objects import instances, type_ids
from profkit.model.capture_info import UnusedGradients

_MAX_MODULES: Final = 50_000
"""Modules of more addresses are not examined: it takes a microsecond for each."""


def find_unused_gradients(addresses: Mapping[str, int]) -> list[UnusedGradients]:
    """Find the outermost modules that have gradients, none of which an optimizer uses.

    Nothing is found where no optimizer has any parameter of these modules: one that updates copies
    of them, as for mixed precision or shards, is not known.

    Args:
        addresses: The modules that a step has called, by the names that torch gives them.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not addresses or len(addresses) > _MAX_MODULES:
        return []

    # One pass over all objects, which takes 0.1 s for a million.
    optimizer_types = type_ids(torch.optim.Optimizer)
    types = optimizer_types | type_ids(torch.nn.Module)
    candidates = instances(gc.get_objects(), types)
    optimized = {
        id(parameter)
        for optimizer in candidates
        if id(type(optimizer)) in optimizer_types
        for parameter in _updated(optimizer)
    }
    if not optimized:
        return []

    called = set(addresses.values())
    modules = {id(module): module for module in candidates if id(module) in called}

    # A module whose own parameters are some used and some not is neither.
    unused, is_any_used = set(), False
    for address, module in modules.items():
        parameters = list(_parameters_of(module))
        used = [parameter for parameter in parameters if id(parameter) in optimized]
        is_any_used |= bool(used)
        if parameters and not used and any(_has_gradient(one) for one in parameters):
            unused.add(address)
    if not is_any_used:
        return []
    return list(_describe(modules, unused, addresses))


def _describe(
    modules: Mapping[int, Any], unused: set[int], addresses: Mapping[str, int]
) -> Iterator[UnusedGradients]:
    """Yield the outermost of the unused modules, with the called modules within each."""
    within: set[int] = set()
    for address in unused:
        within |= {id(module) for module in _submodules(modules[address])} - {address}

    for address in sorted(unused - within):
        inside = {id(module) for module in _submodules(modules[address])}
        gradients = [
            parameter.grad
            for parameter in _parameters_of(modules[address])
            if _has_gradient(parameter)
        ]
        yield UnusedGradients(
            name=_name_of(modules[address]),
            modules=[name for name, called in addresses.items() if called in inside],
            n_parameters=len(gradients),
            bytes=sum(gradient.numel() * gradient.element_size() for gradient in gradients),
        )


def _updated(optimizer: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the parameters of an optimizer; none while it is being made."""
    for group in vars(optimizer).get("param_groups", ()):
        yield from group["params"]


def _submodules(module: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield a module and all modules in it, without a method that a program may have replaced."""
    pending, seen = [module], set()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            pending += vars(current).get("_modules", {}).values()
            yield current


def _parameters_of(module: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the parameters of a module and of all modules in it that are to be trained."""
    for submodule in _submodules(module):
        for parameter in vars(submodule).get("_parameters", {}).values():
            if parameter is not None and parameter.requires_grad:
                yield parameter


def _has_gradient(parameter: Any) -> bool:  # noqa: ANN401
    return parameter.grad is not None


def _name_of(module: Any) -> str:  # noqa: ANN401
    """Return a variable that has a module, such as ``teacher``, or else its class."""
    for names in (vars(sys.modules["__main__"]), *map(locals_of, running())):
        for name, value in list(names.items()):
            if value is module and not name.startswith("_"):
                return name

        # Attributes of the object whose method runs, and modules of a module.
        attributes = getattr(names.get("self"), "__dict__", {})
        for name, value in [*attributes.items(), *attributes.get("_modules", {}).items()]:
            if value is module:
                return f"self.{name}"
    return type(module).__name__
