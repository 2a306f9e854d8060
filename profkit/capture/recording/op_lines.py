"""The source line of each operator, from torch's event tree.

Each call is recorded with the caller's file and line, so an operator below a call from the user's
code has that line. One that a function ran without a call is between two calls of that function
(:mod:`profkit.capture.recording.functions`). Backward operators on autograd's threads are below no
Python call: they get their forward operator's line, joined by sequence number, else that of the
call of ``backward()``.

Source: ``experimental_event_tree`` of torch's Kineto results; ``caller`` of its Python events is
the frame that called, with the line of the call.
"""

from collections.abc import Iterable
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from profkit.capture.recording.functions import Function, find_lines_between, function_at
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.source.files import SourceFiles
from profkit.dataclass import dataclass
from profkit.index.host.frames import is_library_function
from profkit.model.capture_info import OpLines
from profkit.model.torch_names import EVALUATE_FUNCTION, MODULE_PREFIX, RUN_BACKWARD, STEP_PREFIX
from profkit.readers.process_memory import garbage_collection_paused

_KINDS: Final = {
    "_ExtraFields_PyCall": "call",
    "_ExtraFields_PyCCall": "builtin",
    "_ExtraFields_TorchOp": "op",
    "_ExtraFields_Kineto": "runtime",
}
_CALLS: Final = ("call", "builtin")
_RUNTIME_PREFIXES: Final = ("cuda", "hip", "cu", "xpu", "ur", "ze")

_kind_of_type: dict[type, str] = {}
"""By the types of torch's fields."""

_Value = TypeVar("_Value")

UserFrame = tuple[str, int, str, int]
"""File, line, function, and 1 where the line is exact."""


@dataclass(frozen=True)
class Lines:
    """The source lines of a window.

    Attributes:
        paths: From shortened to absolute paths of user files.
        libraries: First parts of the shortened paths of other files.
        n_calls: Python calls that were recorded in the window.
        modules: Addresses of the modules that were called, by the names that torch gives them.
    """

    ops: OpLines
    paths: dict[str, str]
    libraries: list[str]
    n_calls: int
    modules: dict[str, int]

    def for_other_window(self) -> "Lines":
        """Return these lines for another window of the same loop, which has other events."""
        return replace(self, ops=replace(self.ops, same_window=False), n_calls=0, modules={})


class _Site(NamedTuple):
    """The place of a node, passed down from callers to callees."""

    frame: UserFrame | None
    module: str
    backward: int
    """Sequence number of the backward operator around it, or -1."""
    in_library: bool = False
    """Whether a function of a library runs, called by ``frame``."""


_Placed = tuple[Any, Any, str, list[Any], _Site]
"""A node, its fields, its kind, its children, and its place. torch makes an object of the fields,
and a list of the children, each time that they are read."""


@dataclass
class _Entry:
    """A host event other than a Python call."""

    start_ns: int
    end_ns: int
    name: str
    thread: int
    external_id: int
    frame: UserFrame | None
    module: str
    in_library: bool
    sequence: int = -1
    backward: int = -1
    parent: int = -1


@dataclass
class _Walk:
    """The state of a walk over the tree."""

    files: SourceFiles
    entries: list[_Entry] = field(default_factory=list)
    backward_calls: list[tuple[int, int, UserFrame]] = field(default_factory=list)
    n_calls: int = 0
    modules: dict[str, int] = field(default_factory=dict)
    first_lines: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """Of the functions that were called, by file and name: several may have one name."""


def lines_of(recording: ProfilerRecording, name: str) -> Lines:
    """Return the source lines of all operators in a stopped recording with stacks.

    Annotations of steps are excluded: their names differ from step to step.

    Args:
        name: The capture's name, which is also that of the annotation around an entry.
    """
    # All that is made here stays: scans of it, and of the program's objects, took a quarter of the
    # time.
    with garbage_collection_paused():
        return _find_lines(recording, name)


def _find_lines(recording: ProfilerRecording, name: str) -> Lines:
    """Find the source lines of all operators, except those of a name's annotation."""
    walk = _Walk(SourceFiles())
    nowhere = _Site(None, "", -1)

    # Depth first and without recursion: a tree may be deeper than Python's limit.
    pending = [_place(node, node.extra_fields, nowhere) for node in reversed(recording.tree())]
    while pending:
        if children := _visit(walk, *pending.pop()):
            children.reverse()
            pending += children

    entries = [
        entry
        for entry in walk.entries
        if entry.name != name and not entry.name.startswith(STEP_PREFIX)
    ]
    entries.sort(key=lambda entry: (entry.thread, entry.start_ns, -entry.end_ns))
    _nest(entries)
    _place_backward(entries, walk.backward_calls)

    thread_ids = recording.thread_ids({entry.thread for entry in entries})
    ops = _build_columns(entries, thread_ids, walk.first_lines)
    return Lines(ops, walk.files.paths, sorted(walk.files.libraries), walk.n_calls, walk.modules)


def _place(node: Any, fields: Any, site: _Site) -> _Placed:  # noqa: ANN401
    return node, fields, _kind_of(fields), node.children, site


def _visit(
    walk: _Walk,
    node: Any,  # noqa: ANN401
    fields: Any,  # noqa: ANN401
    kind: str,
    children: list[Any],
    site: _Site,
) -> list[_Placed]:
    """Add one node, called from ``site``, and return the places of its children."""
    if kind in _CALLS:
        walk.n_calls += 1
        return _place_below_call(walk, node, fields, children, site)
    if kind == "op":
        site = _add_op(walk, node, fields, site)
    elif kind == "runtime" and (name := _name_of(node)).startswith(_RUNTIME_PREFIXES):
        _add(walk, node, name, site)
    return _place_children(walk, children, site) if children else []


def _place_children(walk: _Walk, children: list[Any], site: _Site) -> list[_Placed]:
    """Return the places of children that are not called from a user function, as far as known."""
    placed: list[_Placed] = []
    for child in children:
        fields = child.extra_fields
        kind = _kind_of(fields)
        below = child.children
        if kind not in _CALLS:
            if kind or below:  # a quarter of all nodes are leaves such as allocations
                placed.append((child, fields, kind, below, site))
        elif _has_content(walk, child, kind, below):
            placed.append((child, fields, kind, below, _find_caller(walk, fields, site)))
    return placed


def _has_content(walk: _Walk, node: Any, kind: str, children: list[Any]) -> bool:  # noqa: ANN401
    """Return whether a node has anything at or below it: not if it is a call in C and a leaf.

    Half of all nodes are. A backward pass on a device's thread is below no call.
    """
    if kind == "builtin" and not children and RUN_BACKWARD not in _name_of(node):
        walk.n_calls += 1
        return False
    return True


def _name_of(node: Any) -> str:  # noqa: ANN401
    return _read_text(node, "name")


def _read_text(record: Any, key: str) -> str:  # noqa: ANN401
    """Read a name in torch's record; an empty one if it is not valid text.

    torch stores a pointer to the name, whose code may be freed by now, as compiled code often is.
    """
    try:
        return str(getattr(record, key))
    except UnicodeDecodeError:
        return ""


def _kind_of(fields: Any) -> str:  # noqa: ANN401
    """Return ``call``, ``builtin`` (a call in C), ``op``, ``runtime``, or empty for other nodes."""
    of = type(fields)
    kind = _kind_of_type.get(of)
    if kind is None:
        kind = _kind_of_type[of] = _KINDS.get(of.__name__, "")
    return kind


def _place_below_call(
    walk: _Walk,
    node: Any,  # noqa: ANN401
    fields: Any,  # noqa: ANN401
    children: list[Any],
    site: _Site,
) -> list[_Placed]:
    """Return the places of what a call has called."""
    name = _name_of(node)
    if name.startswith(MODULE_PREFIX):
        module = name.removeprefix(MODULE_PREFIX)
        if (info := getattr(fields, "module", None)) is not None:
            walk.modules[module] = info.self_ptr
        site = _Site(site.frame, module, site.backward, site.in_library)
    if site.frame is not None and RUN_BACKWARD in name:
        walk.backward_calls.append((node.start_time_ns, node.end_time_ns, site.frame))

    callee = getattr(fields, "callsite", None)
    file = None if callee is None else walk.files.user_file(_read_text(callee, "file_name"))
    if callee is None or file is None:
        if callee is not None and is_library_function(
            _read_text(callee, "file_name"), _read_text(callee, "function_name")
        ):
            site = _Site(site.frame, site.module, site.backward, in_library=True)
        return _place_children(walk, children, site)

    function_name = _read_text(callee, "function_name")
    function = function_at(file, callee.line_number, function_name)
    return _place_in_function(walk, (file, function_name), function, children, site)


def _place_in_function(
    walk: _Walk, place: tuple[str, str], function: Function, children: list[Any], site: _Site
) -> list[_Placed]:
    """Return the places of the children of a user function.

    Calls are recorded with their line. Other children ran between the calls around them.
    """
    file, name = place
    walk.first_lines.setdefault(place, set()).add(function.line)
    function_only = (file, function.line, name, 0)
    placed: list[_Placed] = []
    between: list[Any] = []
    before: int | None = None

    def at(frame: UserFrame) -> _Site:
        return _Site(frame, site.module, site.backward)

    def close(after: int | None) -> None:
        if not between:
            return
        lines = find_lines_between(function, before, after, [_name_of(child) for child in between])
        for child, line in zip(between, lines, strict=True):
            frame = function_only if line is None else (file, line, name, 1)
            placed.append(_place(child, child.extra_fields, at(frame)))
        between.clear()

    for child in children:
        fields = child.extra_fields
        kind = _kind_of(fields)
        if kind in _CALLS:
            line = fields.caller.line_number
            close(line)
            below = child.children
            if _has_content(walk, child, kind, below):
                placed.append((child, fields, kind, below, at((file, line, name, 1))))
            before = line
        elif kind:
            between.append(child)
    close(None)
    return placed


def _find_caller(walk: _Walk, fields: Any, site: _Site) -> _Site:  # noqa: ANN401
    """Return a call's place: its caller if that is user code, else the place of its parent."""
    caller = fields.caller
    file = walk.files.user_file(_read_text(caller, "file_name"))
    if file is None:
        return site
    frame = (file, caller.line_number, _read_text(caller, "function_name"), 1)
    return _Site(frame, site.module, site.backward)


def _add_op(walk: _Walk, node: Any, fields: Any, site: _Site) -> _Site:  # noqa: ANN401
    """Add an operator or annotation; events below it are in the same backward operator."""
    sequence = fields.sequence_number
    name = _name_of(node)
    if sequence >= 0 and (name.startswith(EVALUATE_FUNCTION) or _is_backward(fields.scope)):
        site = _Site(site.frame, site.module, sequence, site.in_library)
    entry = _add(walk, node, name, site)
    entry.sequence = sequence
    return site


@lru_cache
def _is_backward(scope: Any) -> bool:  # noqa: ANN401
    return str(scope).endswith("BACKWARD_FUNCTION")


def _add(walk: _Walk, node: Any, name: str, site: _Site) -> _Entry:  # noqa: ANN401
    external_id = node.correlation_id
    if external_id <= 0:
        external_id = -1

    entry = _Entry(
        node.start_time_ns,
        node.end_time_ns,
        name,
        node.start_tid,
        external_id,
        site.frame,
        site.module,
        site.in_library,
        backward=site.backward,
    )
    walk.entries.append(entry)
    return entry


def _nest(entries: list[_Entry]) -> None:
    """Set every entry's parent: the innermost enclosing entry of its thread.

    Entries are sorted by thread and start, longer ones first.
    """
    # A stack of the entries that are open, as operators of one thread are within each other.
    around: list[int] = []
    for place, entry in enumerate(entries):
        while around and not (
            entries[around[-1]].thread == entry.thread
            and entries[around[-1]].end_ns >= entry.end_ns
        ):
            around.pop()
        entry.parent = around[-1] if around else -1
        around.append(place)


def _place_backward(
    entries: list[_Entry], backward_calls: list[tuple[int, int, UserFrame]]
) -> None:
    """Set the lines of backward operators: of the forward operator, else of ``backward()``."""
    forward: dict[int, _Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.start_ns):
        if entry.sequence >= 0 and entry.backward < 0:
            # Operators without gradients have the number of the next one with gradients, so the
            # last one of a number created the autograd node.
            forward[entry.sequence] = entry

    for entry in entries:
        origin = forward.get(entry.backward)
        if origin is not None and origin.frame is not None:
            entry.frame = origin.frame
            entry.module = entry.module or origin.module
        elif entry.frame is None:
            entry.frame = next(
                (frame for start, end, frame in backward_calls if start <= entry.start_ns <= end),
                None,
            )


def _build_columns(
    entries: list[_Entry],
    thread_ids: dict[int, int],
    first_lines: dict[tuple[str, str], set[int]],
) -> OpLines:
    # Names, frames and modules repeat in each step, and are written once.
    name, names = _number([entry.name for entry in entries])
    frame, frames = _number([entry.frame for entry in entries])
    module, modules = _number([entry.module or None for entry in entries])
    # A line belongs to the last function of its name that begins before it.
    definitions = [
        max((first for first in first_lines.get((file, name), ()) if first <= line), default=0)
        for file, line, name, _ in frames
    ]

    return OpLines(
        same_window=True,
        name=name,
        parent=[entry.parent for entry in entries],
        thread=[thread_ids.get(entry.thread, entry.thread) for entry in entries],
        external_id=[entry.external_id for entry in entries],
        frame=frame,
        module=module,
        in_library=[place for place, entry in enumerate(entries) if entry.in_library],
        names=names,
        frames=frames,
        modules=modules,
        first_lines=definitions,
    )


def _number(values: Iterable[_Value | None]) -> tuple[list[int], list[_Value]]:
    """Return the index of each value among the distinct ones, -1 for None; and those."""
    numbers: dict[_Value, int] = {}
    indices = [-1 if v is None else numbers.setdefault(v, len(numbers)) for v in values]
    return indices, list(numbers)
