"""The words of the house, one for each idea: on every page, and in ``docs/glossary.md``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GLOSSARY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "step": (
            "one turn of the program's loop: what lies between two optimizer steps, two batches of "
            "a loader, or two entries of a block. Costs are given a step."
        ),
        "region": (
            'a named stretch inside a step: a `profkit.trace("…")` within another, or '
            "`torch.profiler.record_function`."
        ),
        "op": "an operator of PyTorch, such as `aten::mm`, as it runs on the host.",
        "launch": "the host's call that sends work to a device. The work starts later.",
        "kernel": "a function that runs on a device.",
        "copy": "a move of bytes between host and device, or between devices.",
        "gap": "time in which a device had nothing to do, with the cause on the host's side.",
        "recompile": (
            "`torch.compile` compiling a function once more, since a call is unlike those before."
        ),
        "break": (
            "a place in the program where a graph of `torch.compile` ends and another one begins."
        ),
        "sync": "a call in which the host waits until a device is done.",
        "rank": "one of the processes of a distributed job, by its number.",
        "exchange": (
            "data that the ranks of a job send each other, such as an all-reduce: by a kernel of a "
            "device (NCCL), or by threads of the host (gloo, MPI)."
        ),
        "finding": (
            "one thing that a rule found: where, what it costs, and what to write instead."
        ),
        "rule": "a module that looks for one bad pattern. Its docstring is its page.",
        "cost": (
            "nanoseconds or bytes that a finding's fix can give back, and how that is known: "
            "measured, an upper bound, or an estimate."
        ),
        "holder": "an object that keeps a tensor alive, and how it is reached.",
        "snapshot": (
            "a list of all memory blocks of a device's allocator, with who asked for them."
        ),
    }
)
"""Each word and what it means, in the order in which they build on each other."""
