"""Texts on the critical path of the steps: labels, main kinds, and unexplained waits."""

from typing import Final

from profkit.model.critical_path import CriticalPathSummary, PathKindName, PathLine
from profkit.model.torch_names import BUILTIN_PREFIX, DATA_LOADER
from profkit.names import short_kernel, visible
from profkit.patterns import regex
from profkit.units import format_ns, format_share

_LABELS: Final[dict[PathKindName, str]] = {
    "operator": "operators",
    "python": "Python",
    "runtime": "runtime calls",
    "sync": "syncs",
    "data-wait": "loading data",
    "launch-latency": "launch latency",
    "kernel": "kernels",
    "copy": "copies and fills",
    "communication": "collectives",
    "gap": "gaps",
    "unrecorded": "unrecorded device work",
}
WITH_KERNEL_NAMES: Final = ("kernel", "communication")
_AFTER_WHICH_WORK_STARTS: Final = ("gap", "launch-latency")
NO_FUNCTION: Final = "outside operators"
"""The name of Python time of which no function is known."""
_NO_NAME: Final[dict[str, str]] = {"python": NO_FUNCTION}
_LOADER: Final = f"{DATA_LOADER}#"
_BUILTIN: Final = regex(
    rf"^{BUILTIN_PREFIX}(?:function|method) (?P<name>\w+)"
    r"(?: of (?:[\w.]+\.)?(?P<type>\w+) object.*)?>$"
)
"""``<built-in function zoom_shift>``, ``<built-in method div of Tensor object at 0x7f00>``."""
_MAX_KINDS: Final = 3
_MIN_SHARE: Final = 0.01
_NEARLY_ALL: Final = 0.95
_MOST: Final = 0.5
"""A name with a smaller share of a line's time is called its longest, not its main one."""


def path_label(kind: PathKindName) -> str:
    """Return the label of a kind of segments, such as ``loading data``."""
    return _LABELS[kind]


def path_title(path: CriticalPathSummary) -> str:
    """``Critical path per step (shares of 142 ms)``: it may be longer than a step."""
    of = " of the whole recording" if path.per_step_ns is None else " per step"
    return f"Critical path{of} (shares of {format_ns(path.mean_ns)})"


def main_kinds(path: CriticalPathSummary, *, everything: bool = False) -> str:
    """``kernels 36.6%, loading data 33.1%, operators 25.3%``.

    Args:
        everything: Whether to list all kinds instead of the main ones.
    """
    shown = [part for part in path.parts if everything or part.share >= _MIN_SHARE]
    limit = None if everything else _MAX_KINDS
    # A path of small parts alone shows the largest of them.
    return ", ".join(
        f"{path_label(part.kind)} {format_share(part.share)}"
        for part in (shown or path.parts)[:limit]
    )


def entry_name(kind: PathKindName, name: str) -> str:
    """Return a segment's name, kernels without their arguments; for a gap, the work after it."""
    if not name:
        return _NO_NAME.get(kind, "")
    # A gap has no name: the work that starts after it shows where it is.
    is_work = kind in WITH_KERNEL_NAMES or kind in _AFTER_WHICH_WORK_STARTS
    shown = visible(short_kernel(name) if is_work else _host_name(name))
    if kind == "unrecorded":
        return f"during {shown}"
    return f"before {shown}" if kind in _AFTER_WHICH_WORK_STARTS else shown


def _host_name(name: str) -> str:
    """Return the name of a host event, builtins as they are called: ``Tensor.div()``."""
    builtin = _BUILTIN.match(name)
    if builtin is None:
        return name.removeprefix(_LOADER)
    of = f"{builtin['type']}." if builtin["type"] else ""
    return f"{of}{builtin['name']}()"


def main_name(line: PathLine) -> str:
    """Return the main name as shown; empty for the function that the source line is in."""
    is_place = line.location.file is not None and line.main_name == line.location.place
    return "" if is_place else entry_name(line.kind, line.main_name)


def main_share(line: PathLine) -> str:
    """Return the share of the main name, or empty where it is none or nearly all of the line."""
    is_all = line.main_share >= _NEARLY_ALL * line.share
    return "" if is_all or not main_name(line) else format_share(line.main_share)


def main_word(line: PathLine) -> str:
    """``mostly`` before a name with at least half of the line, ``longest`` before another one.

    Empty where there is no name, or it is nearly all of the line.
    """
    if not main_share(line):
        return ""
    return "mostly" if line.main_share >= _MOST * line.share else "longest"


def large_lines(path: CriticalPathSummary) -> tuple[PathLine, ...]:
    """Return the lines with at least a hundredth of the path."""
    return tuple(line for line in path.lines if line.share >= _MIN_SHARE)


def unexplained_text(path: CriticalPathSummary) -> str:
    """Return a sentence about unexplained waits, or empty where they are few."""
    if path.is_explained:
        return ""
    share = format_share(path.unexplained_share)
    return (
        f"The recording shows no cause for {share} of the critical path, so that predicted savings "
        "are upper bounds."
    )
