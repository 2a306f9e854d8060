"""Finds modules whose gradients are computed and used by no optimizer, such as a teacher's.

Recorded calls of modules have the address of the module, so that what a step has called is known
without a search. That is done at the end of a step, while the program has its models: the gradients
of the step are there, unless it has freed them.

Source: ``NNModuleInfo`` in ``torch/csrc/profiler/orchestration/python_tracer.h`` (``self_``).
"""

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profkit.capture.process.frames import locals_of, running
from profkit.capture.process.objects import instances, no_torch_function, type_ids
from profkit.model.capture_info import UnusedGradients


def find_unused_gradients(addresses: Mapping[str, int]) -> list[UnusedGradients]:
    """Find the outermost modules that have gradients, none of which an optimizer uses.

    Nothing is found where no optimizer has any parameter of these modules: one that updates copies
    of them, as for mixed precision or shards, is not known.

    Args:
        addresses: The modules that a step has called, by the names that torch gives them.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not addresses:
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
    modules = [module for module in candidates if id(module) in called]
    with no_torch_function():
        return _find_unused(modules, optimized, addresses)


def _find_unused(
    modules: list[Any], optimized: set[int], addresses: Mapping[str, int]
) -> list[UnusedGradients]:
    """Find the outermost of some modules whose gradients are all unused."""
    order = _order(modules)
    used: set[int] = set()
    with_gradients: set[int] = set()
    for module in order:
        children = [id(child) for child in _children(module)]
        own = list(_parameters_of(module))
        if not used.isdisjoint(children) or any(id(one) in optimized for one in own):
            used.add(id(module))
        if not with_gradients.isdisjoint(children) or any(map(_has_gradient, own)):
            with_gradients.add(id(module))

    # An optimizer that has none of these parameters may have copies of all of them.
    called = set(map(id, modules))
    if used.isdisjoint(called):
        return []
    unused = (with_gradients - used) & called

    # What is within an unused module is a part of it, called or not.
    within: set[int] = set()
    for module in reversed(order):
        if id(module) in unused or id(module) in within:
            within.update(id(child) for child in _children(module))
    unused -= within

    outermost = [module for module in order if id(module) in unused]
    names = _find_names(outermost)
    return [
        _describe(module, names.get(id(module), type(module).__name__), addresses)
        for module in outermost
    ]


def _describe(module: Any, name: str, addresses: Mapping[str, int]) -> UnusedGradients:  # noqa: ANN401
    """Describe a module with its gradients, and the called modules within it."""
    parts = _order([module])
    inside = set(map(id, parts))
    parameters = (parameter for part in parts for parameter in _parameters_of(part))
    gradients = [parameter.grad for parameter in parameters if _has_gradient(parameter)]
    return UnusedGradients(
        name=name,
        modules=[called for called, address in addresses.items() if address in inside],
        n_parameters=len(gradients),
        bytes=sum(gradient.numel() * gradient.element_size() for gradient in gradients),
    )


def _updated(optimizer: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the parameters of an optimizer; none while it is being made."""
    for group in vars(optimizer).get("param_groups", ()):
        yield from group["params"]


def _order(modules: list[Any]) -> list[Any]:
    """Return some modules and all modules in them, each once and after those in it."""
    order: list[Any] = []
    seen: set[int] = set()
    pending = [(module, False) for module in modules]

    # Without recursion: modules may be nested more deeply than Python's limit.
    while pending:
        module, is_left = pending.pop()
        if is_left:
            order.append(module)
        elif id(module) not in seen:
            seen.add(id(module))
            pending.append((module, True))
            pending += ((child, False) for child in _children(module))
    return order


def _children(module: Any) -> list[Any]:  # noqa: ANN401
    """Return the modules in a module, without a method that a program may have replaced."""
    return [child for child in vars(module).get("_modules", {}).values() if child is not None]


def _parameters_of(module: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the parameters of a module itself that are to be trained."""
    for parameter in vars(module).get("_parameters", {}).values():
        if parameter is not None and parameter.requires_grad:
            yield parameter


def _has_gradient(parameter: Any) -> bool:  # noqa: ANN401
    return parameter.grad is not None


def _find_names(modules: list[Any]) -> dict[int, str]:
    """Find variables that have some modules, such as ``teacher``, by the modules' addresses.

    The first name of each is used: globals of the program come before locals of its functions, and
    these before attributes of the object whose method runs. Last come modules of modules that have
    a name, such as ``model.backbone``.
    """
    wanted = set(map(id, modules))
    found: dict[int, str] = {}
    scopes = [vars(sys.modules["__main__"]), *map(locals_of, running())]
    for names in scopes:
        for name, value in list(names.items()):
            if id(value) in wanted and not name.startswith("_"):
                found.setdefault(id(value), name)

        # A module has its modules in a dict of their own.
        attributes = getattr(names.get("self"), "__dict__", {})
        for name, value in [*attributes.items(), *attributes.get("_modules", {}).items()]:
            if id(value) in wanted:
                found.setdefault(id(value), f"self.{name}")
    return {**_find_paths(scopes, wanted), **found}


def _find_paths(scopes: Sequence[Mapping[str, Any]], wanted: set[int]) -> dict[int, str]:
    """Find attributes of modules that have a name, by the addresses of the modules in them."""
    torch: Any = sys.modules["torch"]
    paths: dict[int, str] = {}
    named = [item for names in scopes for item in list(names.items())]
    pending = [(name, value) for name, value in named if issubclass(type(value), torch.nn.Module)]
    seen: set[int] = set()

    # Breadth first, so that the shortest path is found.
    for path, module in pending:
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, child in vars(module).get("_modules", {}).items():
            # Layers of a `Sequential` have numbers.
            part = f".{name}" if name.isidentifier() else f"[{name}]" if name.isdecimal() else ""
            if child is not None and part and not path.startswith("_"):
                pending.append((path + part, child))
                if id(child) in wanted:
                    paths.setdefault(id(child), path + part)
    return paths
