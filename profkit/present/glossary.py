"""The terms of profkit, one for each concept: in the HTML page, ``docs/glossary.md`` and all texts.

A test holds texts, docstrings and comments to them: no synonym that a term lists may be used.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from profkit.dataclass import dataclass


@dataclass(frozen=True)
class Term:
    """A term.

    Attributes:
        definition: What it means, in one or two sentences of Markdown.
        not_used: Synonyms that are not used for it, lower case; each is matched as whole words.
    """

    definition: str
    not_used: tuple[str, ...] = ()


GLOSSARY: Final[Mapping[str, Term]] = MappingProxyType(
    {
        "step": Term(
            "one iteration of the training or inference loop: from one optimizer step, loader "
            'batch or `profkit.trace("…")` entry to the next. Where the host runs ahead of the '
            "GPU, from the end of one step to the end of the next.",
            ("iteration time", "turn of the loop", "turn of a loop"),
        ),
        "per step": Term(
            "what begins in the time of the steps, divided by their number; work outside of steps "
            "is in totals alone. Costs are given per step.",
            (
                "once a step", "times a step", "ms a step", "bytes a step", "} a step",
                "`` a step", "figure a step", "a step on average", "nodes a step", "each a step",
            ),
        ),
        "incomplete step": Term(
            "a step that the recording's begin or end cut off. Figures per step leave it out.",
        ),
        "disturbed step": Term(
            "a step in which other programs took its thread's core for a quarter of the time or "
            "more, while it had a core in another recorded step. Figures per step leave it out.",
        ),
        "region": Term(
            'a named range inside a step: a `profkit.trace("…")` inside another, or '
            "`torch.profiler.record_function`.",
            ("named stretch",),
        ),
        "trace": Term(
            "a file of timed events that `torch.profiler` (Kineto) wrote.", ("tracefile",)
        ),
        "snapshot": Term(
            "the state and history of the CUDA caching allocator, as "
            "`torch.cuda.memory._dump_snapshot` writes it.",
            ("memory dump",),
        ),
        "process group": Term("ranks that run collectives together; `ProcessGroup` in PyTorch."),
        "matched collective": Term(
            "a collective whose calls on all recorded ranks of its process group were found. Calls "
            "that are not matched are not counted.",
        ),
        "transfer": Term(
            "the time of a collective from its start on the last rank to its end on all ranks. "
            "What the other ranks spend in it before is *waiting*.",
        ),
        "operator": Term("a PyTorch operator, such as `aten::mm`, as it runs on the host."),
        "launch": Term(
            "the host call that enqueues work on a device. The time from its start to the start of "
            "that work on an idle device is the *launch latency*.",
            ("launch under way", "launches are under way"),
        ),
        "kernel": Term("a function that runs on a device."),
        "category": Term(
            "the kind of work of a kernel or operator: matmul, attention, convolution, pointwise, "
            "normalization, reduction, embedding, optimizer, copy, communication or other, by the "
            "kernel's name and the operator that launched it.",
            ("kernel class", "kernel type", "type of kernel"),
        ),
        "FLOP utilization": Term(
            "the time that the floating-point operations of a step's matmuls, convolutions and "
            "attention take at the device's dense peak, as a share of the step time. *Model FLOP "
            "utilization* (MFU) counts 6 operations for each token and parameter instead.",
            ("model flops utilization", "flops utilization"),
        ),
        "copy": Term(
            "a transfer of bytes between host and device (host-to-device, device-to-host) or "
            "between devices.",
        ),
        "idle time": Term(
            "time in which no kernel or copy runs on a device, with its cause on the host side.",
            ("bubble", "bubbles", "stands idle", "host is too slow"),
        ),
        "critical path": Term(
            "what the steps wait for at each moment, until the last one is complete: the host, a "
            "device, or the next batch. Its segments add up to the steps, and only less time on it "
            "makes them shorter.",
            ("longest path",),
        ),
        "unrecorded device work": Term(
            "time in which a device must have worked on something that is not in the recording, "
            "since a call waited for it.",
            ("missing device work", "hidden device work"),
        ),
        "sync": Term(
            "a call that blocks the host until work on a device has finished: a host-device "
            "synchronization.",
        ),
        "collective": Term(
            "communication between the ranks of a job, such as an all-reduce: a kernel on a device "
            "(NCCL, RCCL) or threads of the host (gloo, MPI).",
            ("exchange", "exchanges", "exchanged", "exchange data"),
        ),
        "exposed communication": Term(
            "time in which a device runs collectives and no compute kernel.",
        ),
        "rank": Term("the index of a process in a distributed job."),
        "recompilation": Term(
            "`torch.compile` compiling a function again because a guard of the earlier compilation "
            "failed.",
        ),
        "graph break": Term(
            "a place where `torch.compile` ends one graph and starts another.",
        ),
        "guard failure": Term("the condition that a compiled function was compiled for, and that a "
                              "later call did not meet."),
        "rule": Term(
            "a check for one performance or memory problem. Its docstring is its page.",
            ("detector", "detectors"),
        ),
        "finding": Term(
            "a problem that a rule reports: where it is, what it costs, and how to fix it.",
            ("hotspot", "hotspots", "1 thing", "one thing that"),
        ),
        "skipped check": Term(
            "a rule that could not run on a recording, because data that it needs is missing. A "
            "skipped check says how to record that data.",
            ("could look", "could not look", "not looked at", "looked at nothing", "cannot look"),
        ),
        "fix": Term(
            "the code or setting to use instead.",
            ("cure", "cures", "cured", "what to write instead"),
        ),
        "cost": Term(
            "nanoseconds or bytes that a fix can save, and its basis: `measured`, `replay` (the "
            "difference between the recording and its replay without the cause), `upper-bound` or "
            "`estimate`.",
            ("give back", "gives back", "given back by"),
        ),
        "headline": Term(
            "the first sentences of a report: what limits the program, how much of a step it "
            "takes, and the finding with the highest cost.",
            ("verdict", "verdicts"),
        ),
        "overhead": Term(
            "by how much recording or monitoring slows down the program.",
            ("stretch", "stretched", "stretches", "stretching"),
        ),
        "source line": Term(
            "the innermost line of the user's own code on a stack; frames of torch, installed "
            "packages and the standard library are library code.",
            ("line of yours", "lines of yours", "no line known", "an unknown line",
             "unrecorded source line", "no stack recorded"),
        ),
        "allocated": Term(
            "bytes that tensors occupy in the caching allocator.", ("asked for", "asked of")
        ),
        "reserved": Term("bytes that the caching allocator has obtained from the driver."),
        "active": Term(
            "allocated bytes, and freed blocks that another stream still uses.",
        ),
        "allocation site": Term(
            "the source line that allocated a block or tensor.", ("birth", "births")
        ),
        "live block": Term(
            "a block that is allocated and not freed at a point of the history.",
            ("what stood", "that stood", "what stands", "still stand", "still stands"),
        ),
        "trend": Term("how a value develops over steps or history, as a line of bars.",
                      ("courses",)),
        "leak": Term(
            "memory that grows with every step over the monitored steps.",
            ("hungry",),
        ),
        "holder": Term(
            "an object that keeps a tensor alive. The path of references from a root such as a "
            "module global to the tensor is its *reference chain*.",
        ),
        "reference cycle": Term(
            "objects that refer to each other; a cycle through autograd's C++ objects is invisible "
            "to Python's garbage collector.",
            ("ring", "rings"),
        ),
        "sample": Term(
            "one measurement of memory at a step boundary while a program is monitored.",
            ("a look", "each look", "first look", "last look", "closer look", "closer looks",
             "the looks", "all looks"),
        ),
        "monitoring": Term(
            "sampling the memory of a running program at its step boundaries.",
            ("is watched", "was watched", "were watched", "are watched", "watched program",
             "watched step", "watched steps", "watcher"),
        ),
    }
)  # fmt: skip
"""Each term, in the order in which they build on each other."""

PLAIN_ENGLISH: Final = (
    "told", "lent", "lends", "at the least", "at the most", "told apart", "heard", "hears",
    "likewise", "waits its turn", "set aside", "worth a word", "hand it on", "of the house",
    "in words", "in the user's own words", "could not be had", "come to hold",
)  # fmt: skip
"""Words and phrases that have no technical meaning here and are not used either."""
