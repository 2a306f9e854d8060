"""What limits a program with a device: what the device works on, and what it waits for."""

from collections.abc import Iterable, Iterator
from statistics import mean
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.families.sampled_texts import call_text
from profkit.engine.wording import listed
from profkit.model.report import Report
from profkit.model.step_summary import UNRECORDED, TimePart
from profkit.model.torch_names import SYNCHRONIZE_BUILTIN
from profkit.model.work_summary import KernelSummary
from profkit.names import short_kernel, visible
from profkit.present.critical_path import main_share
from profkit.present.idle_causes import idle_text
from profkit.present.labels import device_noun
from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause
from profkit.present.limiters.lines import (
    MAX_NAME,
    PYTHON,
    describe_name,
    describe_place,
    main_function,
    main_short_name,
)
from profkit.present.limiters.start import find_captured_time
from profkit.present.limiters.window import MIN_SHARE, NEARLY_ALL, Window
from profkit.units import format_count, format_ns, format_share

_ON_HOST: Final = ("operator", *PYTHON)
_MIN_UNRECORDED_SHARE: Final = 0.05
"""Less unrecorded work of a device is not in the headline."""
_MIN_HOST_SHARE: Final = 0.3
"""A line with less of the critical path is not why the device waits."""
_MAX_CATEGORIES: Final = 3
_MAX_KERNELS: Final = 2
_CAPTURED: Final = "because a CUDA graph is being captured, which runs nothing"
_MAIN_WORK: Final = {
    "communication": (Cause.COMMUNICATION, "collectives that nothing overlaps"),
    "copy": (Cause.COPIES, "copies and fills that nothing overlaps"),
}
_CATEGORIES: Final = {
    "matmul": "matrix products",
    "convolution": "convolutions",
    "pointwise": "pointwise work",
    "normalization": "normalization",
    "reduction": "reductions",
    "embedding": "embeddings",
    "optimizer": "the optimizer",
    "copy": "copies",
    "communication": "collectives",
}


def find_device_candidates(window: Window) -> Iterator[Candidate]:
    """Yield what the device works on, and what it waits for."""
    lost = window.find_part(UNRECORDED)
    if lost is not None and lost.share >= _MIN_UNRECORDED_SHARE:
        sentence = _describe_unrecorded_work(window.report, lost)
        yield Candidate(Cause.UNRECORDED, lost.share, sentence)

    wait = _find_main_wait(window)
    if wait is not None:
        yield _describe_idle_time(window, wait)
    yield from _find_work(window, wait)


def _describe_unrecorded_work(report: Report, lost: TimePart) -> str:
    """Return the sentence on device work that is not in the recording."""
    per_step = "" if lost.per_step_ns is None else " per step"
    return (
        f"The trace is incomplete: the {device_noun(report)} worked for "
        f"{format_ns(lost.mean_ns)}{per_step} ({format_share(lost.share)}) on something that was "
        "not recorded."
    )


def _devices(report: Report) -> str:
    """Return ``The GPU is``, or of several what is true of the busiest one."""
    several = len(report.summary.devices) > 1
    return f"At least one {device_noun(report)} is" if several else f"The {device_noun(report)} is"


# --------------------------------------------------------------------------------------- it is idle


@dataclass(frozen=True)
class _DeviceWait:
    """What a device waits for most.

    Attributes:
        cause: Whether it waits for the host, or while a graph is captured.
        kind: The kind of the idle time.
        share: The share of the steps, or of the recording, in which it waits for this.
        reason: Why, as ``because it waits for data``.
    """

    cause: Cause
    kind: str
    share: float
    reason: str


def _idle_shares(window: Window) -> dict[str, float]:
    """Return the share of the time in which the device is idle, by kind of idle time."""
    return {part.kind: part.share for part in window.breakdown.parts if part.is_idle}


def _find_main_wait(window: Window) -> _DeviceWait | None:
    """Find what the device waits for most; None if it is never idle."""
    idle = _idle_shares(window)
    kind = max(idle, key=idle.__getitem__, default=None)
    if kind is None:
        return None

    # While graphs are captured nothing runs, whatever the host does.
    captured_ns = 0 if window.left_out else find_captured_time(window.report)
    captured_share = captured_ns / window.breakdown.total_ns
    if captured_share >= MAJORITY * sum(idle.values()):
        return _DeviceWait(Cause.CAPTURE, kind, captured_share, _CAPTURED)
    text = idle_text(kind)
    if text is not None and text.reason:
        return _DeviceWait(Cause.IDLE, kind, idle[kind], text.reason)
    occupation = _find_host_occupation(window, kind)
    if occupation is not None:
        return _DeviceWait(Cause.IDLE, kind, idle[kind], f"because the host {occupation}")

    # A launch that comes late delays its kernel until it has also reached the device.
    share = idle[kind] + idle.get("idle-launch", 0.0)
    n_kernels = [step.n_kernels for step in window.steps if step.n_kernels]
    number = f"{format_count(round(mean(n_kernels)))} " if n_kernels else ""
    reason = f"because the CPU launches its {number}kernels too slowly"
    return _DeviceWait(Cause.IDLE, kind, share, reason)


def _find_host_occupation(window: Window, kind: str) -> str | None:
    """Return what the host does while the device waits for launches or allocations.

    Args:
        window: The time that is described.
        kind: The kind of the idle time.

    Returns:
        As ``runs json.dumps(), called at train.py:8``; None if it is only known to launch slowly.
    """
    function = main_function(window)
    if function is not None:
        return f"runs {visible(call_text(function.callee, function.location))}"

    # What takes most of the host's time is the reason, and not the number of launches.
    path = window.path
    line = next((line for line in path.lines if line.kind in _ON_HOST), None) if path else None
    if line is not None and line.kind == "runtime" and line.main_share >= _MIN_HOST_SHARE:
        share = main_share(line) or format_share(line.share)
        return f"is in `{main_short_name(line)}`{describe_place(line)} ({share})"
    if line is not None and line.kind == "python" and line.share >= _MIN_HOST_SHARE:
        if SYNCHRONIZE_BUILTIN.search(line.main_name) and line.main_share >= _MIN_HOST_SHARE:
            return f"waits for another thread of Python{describe_place(line)}"
        names = [text for text in (describe_place(line).lstrip(), describe_name(line)) if text]
        if names:
            return f"runs Python {', '.join(names)}"

    return "waits for memory allocation" if kind == "idle-allocator" else None


def _describe_idle_time(window: Window, wait: _DeviceWait) -> Candidate:
    """Return how long the device is idle, and why most of that time."""
    idle_share = sum(_idle_shares(window).values())
    is_all = wait.share >= NEARLY_ALL * idle_share
    of_all = "" if is_all else f"{format_share(wait.share)} "
    idle_of = f"{_devices(window.report)} idle {format_share(idle_share)} of {window.describe()}"
    return Candidate(wait.cause, idle_share, f"{idle_of}, {of_all}{wait.reason}.")


# -------------------------------------------------------------------------------------- it is busy


def _find_work(window: Window, wait: _DeviceWait | None) -> Iterator[Candidate]:
    """Yield how long the device is busy and with what, if it is, and what it waits for besides."""
    parts = window.breakdown.parts
    work = [part for part in parts if part.kind in ("compute", *_MAIN_WORK)]
    longest = max(work, key=lambda part: part.share, default=None)
    if longest is None:
        return

    cause, text = _MAIN_WORK.get(longest.kind, (Cause.DEVICE, ""))
    main_work = f", mainly with {text} ({format_share(longest.share)})"
    kinds = main_work if text else _describe_categories(window)

    # A short wait is no part of the sentence.
    waits = ""
    if wait is not None and wait.share >= MIN_SHARE:
        where = _describe_longest_wait(window, wait)
        has_comma = kinds or window.breakdown.per_step_ns is None
        waits = f"{',' if has_comma else ''} and {_describe_wait(wait)}{where}"

    busy_share = window.breakdown.busy_share
    work_share = longest.share if busy_share is None else busy_share
    busy = f"{_devices(window.report)} busy {format_share(work_share)} of {window.describe()}"
    others = _describe_other_work(part for part in work if part is not longest)
    yield Candidate(cause, work_share, f"{busy}{kinds}{waits}{others}.")


def _describe_wait(wait: _DeviceWait) -> str:
    """Return ``waits 34% for data``, or ``is idle 12%: launch latency``."""
    share, text = format_share(wait.share), idle_text(wait.kind)
    if text is None or not text.waits_for:
        return f"is idle {share}: {text.label if text is not None else wait.kind}"
    return f"waits {share} {text.waits_for}"


def _describe_longest_wait(window: Window, wait: _DeviceWait) -> str:
    """Return ``, the longest in `cudaGraphLaunch` at replay (runner.py:13)``; empty if unknown."""
    lines = window.path.lines if window.path is not None else ()
    line = next((line for line in lines if line.kind in _ON_HOST), None)
    if line is None or wait.kind != "idle-host" or line.kind != "runtime":
        return ""
    # A cold start is before the first device work, or has a sentence of its own.
    path = window.path
    cold_ns = 0.0 if path is None else path.cold_start_ns / max(1, path.n_steps)
    waited_ns = wait.share * window.breakdown.mean_ns
    main_ns = line.mean_ns * line.main_share / line.share - cold_ns
    if main_ns < _MIN_HOST_SHARE * waited_ns:
        return ""
    return f", the longest in `{main_short_name(line)}`{describe_place(line)}"


def _describe_categories(window: Window) -> str:
    """Return ``, mostly with matrix products (73% of kernel time)``; empty where none is large.

    Where the first one is less than half of the kernel time, the next ones are named, too.
    """
    large = [
        category
        for category in window.report.summary.categories
        if category.kind in _CATEGORIES and category.share >= MIN_SHARE
    ]
    large.sort(key=lambda category: -category.share)
    if not large:
        return _describe_kernels(window)

    first_name, first_share = _CATEGORIES[large[0].kind], large[0].share
    if first_share >= NEARLY_ALL:
        return f", nearly all with {first_name}"
    texts, named_share = [f"{first_name} ({format_share(first_share)} of kernel time)"], first_share
    for category in large[1:_MAX_CATEGORIES]:
        if named_share < MAJORITY:
            texts.append(f"{_CATEGORIES[category.kind]} ({format_share(category.share)})")
            named_share += category.share
    word = "mostly" if first_share >= MAJORITY else "mainly"
    return f", {word} with {listed(texts)}"


def _describe_kernels(window: Window) -> str:
    """Return ``, mainly with `merge` (32% of kernel time)``, where no kind of work is known."""
    summary = window.report.summary
    kernels = sorted(summary.top_kernels, key=lambda kernel: -kernel.share)
    if not summary.categories:
        return ""
    large = [kernel for kernel in kernels if kernel.share >= MIN_SHARE][:_MAX_KERNELS]
    if not large:
        return ""
    first, *others = large
    texts = [f"`{_kernel_name(first)}` ({format_share(first.share)} of kernel time)"]
    texts += [f"`{_kernel_name(kernel)}` ({format_share(kernel.share)})" for kernel in others]
    word = "mostly" if first.share >= MAJORITY else "mainly"
    return f", {word} with {listed(texts)}"


def _kernel_name(kernel: KernelSummary) -> str:
    return visible(short_kernel(kernel.name, MAX_NAME))


def _describe_other_work(parts: Iterable[TimePart]) -> str:
    """Return ``; collectives that nothing overlaps take 21%``; empty where they are short."""
    texts = [(_MAIN_WORK[part.kind][1], part.share) for part in parts if part.kind in _MAIN_WORK]
    return "".join(
        f"; {text} take {format_share(share)}" for text, share in texts if share >= MIN_SHARE
    )
