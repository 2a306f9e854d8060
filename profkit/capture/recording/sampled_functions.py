"""The functions of the program in which sampled stacks were."""

import os
from collections import Counter
from typing import Final

from profkit.capture.process.stack_sampler import StackSampler
from profkit.capture.process.thread_stacks import Call, Calls
from profkit.capture.source.files import SourceFiles, library_roots, package
from profkit.model.capture_info import SampledFunction, SampledTime
from profkit.model.location import COMPREHENSIONS, MODULE_LEVEL

_MAX_FUNCTIONS: Final = 200
_MODULES: Final = os.path.join("torch", "nn", "modules")  # noqa: PTH118  (a part of a path)
_CONSTRUCTORS: Final = frozenset({"__init__", "reset_parameters", "_reset_parameters"})
_NOWHERE: Final = ("", "")


def summarize_samples(sampler: StackSampler) -> SampledTime | None:
    """Sum up what was sampled by the innermost function of user code; None where no thread ran."""
    files = SourceFiles()
    n: Counter[tuple[str, str]] = Counter()
    ns: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], Counter[int]] = {}
    libraries: dict[tuple[str, str], Counter[str]] = {}
    build_ns: Counter[tuple[str, str]] = Counter()

    for stack in sampler.counts():
        user, library, place = find_user_call(stack.calls, files)
        function = _NOWHERE if user is None else (user[0], user[2])
        n[function] += stack.n
        ns[function] += stack.ns
        lines.setdefault(function, Counter())[0 if user is None else user[1]] += stack.ns
        libraries.setdefault(function, Counter())[library] += stack.ns
        build_ns[function] += stack.ns if _builds_modules(stack.calls[place + 1 :]) else 0

    # A function has one place in the report: the line and the library in which it was longest.
    functions = [
        SampledFunction(
            place=(file, lines[file, name].most_common(1)[0][0], name),
            n=n[file, name],
            ns=spent_ns,
            library=libraries[file, name].most_common(1)[0][0],
            part="build" if 2 * build_ns[file, name] > spent_ns else "",
        )
        for (file, name), spent_ns in ns.most_common(_MAX_FUNCTIONS)
    ]
    if not functions:
        return None
    return SampledTime(
        interval_ns=round(sampler.sampled_ns / sampler.n_samples),
        n_samples=sampler.n_samples,
        running_ns=ns.total(),
        functions=functions,
    )


def _builds_modules(calls: Calls) -> bool:
    """Return whether calls of libraries are those of a constructor of torch's modules."""
    return any(_MODULES in file and name in _CONSTRUCTORS for file, _, name in calls)


def find_user_call(calls: Calls, files: SourceFiles) -> tuple[Call | None, str, int]:
    """Find the innermost call of user code.

    A comprehension belongs to the function around it.

    Returns:
        The call with its whole path, or None; the package that it is in, or empty; and its place
        among ``calls``, or -1.
    """
    library = ""
    for place, (file, line, name) in reversed(list(enumerate(calls))):
        path = files.user_file(file)
        if path is not None:
            around = (call[2] for call in reversed(calls[:place]) if call[0] == file)
            while name in COMPREHENSIONS:
                name = next(around, MODULE_LEVEL)  # noqa: PLW2901
            return (path, line, name), library, place
        library = library or package(file, library_roots())
    return None, library, -1
