"""Renders a path of objects as a reference chain.

A chain reads as an expression, in segments: ``__main__.model.fc._forward_hooks[3] → seen[7] in the
closure of hook at train.py:5``. Variables, attributes and keys are read without running user code,
so a key whose type is not built in is shown by its type's name. Every part is short and printable.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, NamedTuple

from profkit.capture.memory.holders import links
from profkit.capture.memory.holders.attributes import (
    full_name,
    is_class,
    namespace_of,
    type_name,
)
from profkit.capture.memory.holders.containers import find_key, length_of, limit_of
from profkit.capture.memory.holders.declared_limits import find_declared_limit
from profkit.capture.memory.holders.emptying_methods import find_emptying_method
from profkit.capture.memory.holders.links import is_a
from profkit.capture.memory.holders.roots import Root, is_class_of_program
from profkit.dataclass import dataclass
from profkit.model.live_memory import Chain, HolderKind
from profkit.names import middle_cut, visible

MAX_PART: Final = 80
"""Characters of one part."""

MAX_PARTS: Final = 24
"""Parts of a chain; a longer one is cut in the middle."""

_ARROW: Final = " → "
"""Before a new name that is reached through the one before."""

_UNSPECIFIC_KINDS: Final[dict[HolderKind, int]] = {
    "unknown": 0,
    "module-global": 1,
    "frame": 1,
    "instance": 2,
    "class": 2,
}
"""Kinds that a more specific one on the chain replaces."""


_Role = Literal["name", "attribute", "entry", "scope", "unnamed"]


class _Part(NamedTuple):
    """A part of a chain: a name, its scope, an attribute, an entry, or an unnamed reference."""

    text: str
    role: _Role


class _Container(NamedTuple):
    """A container that can grow.

    Attributes:
        limit: Most entries that it takes, or None.
        n_parts: Number of parts that lead to it.
        position: Its place on the path.
    """

    type: str
    length: int
    limit: int | None
    n_parts: int
    position: int


@dataclass
class _Text:
    """The text of a chain under construction.

    Attributes:
        where: Suffix of the current segment, such as `` in main at train.py:3``.
        is_library: Whether all objects so far belong to a library.
        kind: The most specific kind of holder so far.
        containers: Each container passed that can grow.
    """

    kind: HolderKind
    parts: list[_Part] = field(default_factory=list)
    where: str = ""
    is_library: bool = False
    containers: list[_Container] = field(default_factory=list)

    def add(self, text: str, role: _Role = "attribute") -> None:
        """Add a part, unless it is empty."""
        if text:
            self.parts.append(_Part(middle_cut(visible(text), MAX_PART), role))

    def end_segment(self) -> None:
        """Write the scope of the current segment's name."""
        self.add(self.where, "scope")
        self.where = ""

    def start_segment(self, text: str, where: str) -> None:
        """Go on with a new name, which is reached through the one before."""
        self.end_segment()
        self.add(f"{_ARROW}{text}" if self.parts else text, "name")
        self.where = where

    def restart(self, text: str) -> None:
        """Begin again with a holder that has a name of its own."""
        self.parts, self.where = [], ""
        self.add(text, "name")
        self.containers = [last._replace(n_parts=1) for last in self.containers[-1:]]

    def note_kind(self, kind: HolderKind | None) -> None:
        """Adopt a kind if it is more specific than the current one."""
        if kind is not None and _specificity(kind) > _specificity(self.kind):
            self.kind = kind


def render_chain(
    path: Sequence[object], root: Root, labels: Mapping[tuple[int, int], str] | None = None
) -> Chain:
    """Render a path from a root to an object.

    Args:
        path: The objects, each held by the one before; the first is the root itself or what it
            holds directly.
        labels: Names of links that are already known, by the ids of both ends.
    """
    text = _write_path(path, root, labels or {})

    growing = _find_growing(text.containers)
    owner_path = path if growing is None else path[: growing.position + 1]
    if growing is not None and growing.limit is None:
        limit = _find_declared_limit(owner_path, root)
        # A bound that was exceeded is none.
        is_kept = limit is not None and growing.length <= limit
        growing = growing._replace(limit=limit if is_kept else None)
    name, scope = _find_name_and_scope(text.parts, None if growing is None else growing.n_parts)

    return Chain(
        text.kind,
        _shorten([part.text for part in text.parts]),
        "" if growing is None else growing.type,
        None if growing is None else growing.length,
        name=name,
        scope=scope,
        is_entry=any(part.role == "entry" for part in text.parts[1:]),
        is_library=text.is_library,
        container_limit=None if growing is None else growing.limit,
        emptied_by=find_emptying_method(owner_path),
        is_by_sample=growing is not None and _is_by_sample(owner_path),
    )


def _write_path(path: Sequence[object], root: Root, labels: Mapping[tuple[int, int], str]) -> _Text:
    """Write the links of a path, and note the containers that it passes."""
    text = _Text(root.kind, is_library=root.is_library)
    if root.kind == "unknown":
        text.add(links.unnamed_holder(path[0]), "name")
    else:
        text.add(root.name, "name")
        text.where = root.where

    is_foreign = root.is_library or root.kind == "unknown"
    position = 0
    while position < len(path) - 1:
        _note_container(text, path, position)
        if is_foreign and _is_instance_of_program(path[position]):
            is_foreign = text.is_library = False
            # How a trainer or loader reaches it tells less than the name of its class.
            if position or root.kind != "unknown":
                text.restart(type_name(type(path[position])))
                text.kind = "instance"

        # A link through C++ cannot be read from the objects: the search has named it.
        label = labels.get((id(path[position]), id(path[position + 1])))
        if label:
            _write_label(text, label)
            position += 1
            continue

        link = links.name_link(path[position:])
        if link.restarts:
            text.restart(link.text)
            # What it keeps may be the program's, but is freed only by a change of this holder.
            is_foreign = False
        elif link.starts_segment:
            text.start_segment(link.text, link.where)
        else:
            named: _Role = "entry" if link.is_entry else "attribute"
            text.add(link.text, named if link.is_named else "unnamed")
        text.note_kind(link.kind)
        position += link.length
    text.end_segment()
    return text


def _find_name_and_scope(parts: list[_Part], end: int | None) -> tuple[str, str]:
    """Find the name of what grows, and the scope of that name.

    Args:
        end: The number of parts that lead to the container that grows; None without one, where
            it is the last name before the chain's last entry.
    """
    roles = [part.role for part in parts]
    entries = [place for place, role in enumerate(roles) if place and role == "entry"]

    if end is None:
        end = entries[-1] if entries else len(parts) - (roles[-1:] == ["scope"])
        while end > 1 and roles[end - 1] == "entry":
            end -= 1

    # The last new name before it: ``seen[7] in the closure of hook``, not what leads there.
    start = max((place for place in range(end) if roles[place] == "name"), default=0)

    if "unnamed" in roles[start:end]:
        end = roles.index("unnamed", start)
        while end > start + 1 and parts[end - 1].text.startswith("._"):
            end -= 1  # how a library stores it, as ``DataFrame._mgr``

    name = "".join(part.text for part in parts[start:end]).removeprefix(_ARROW)
    following_parts = itertools.takewhile(lambda part: part.role != "name", parts[end:])
    scope = next((part.text for part in following_parts if part.role == "scope"), "")
    return name.removeprefix("__main__.").lstrip("."), scope


def _write_label(text: _Text, label: str) -> None:
    """Write a link through C++: an attribute, and a saved tensor as a segment of its own."""
    attribute, _, saved = label.partition(_ARROW)
    text.add(attribute)
    if saved:
        # Saved for backward, as attributes of ``ctx`` are.
        text.note_kind("context")
        text.start_segment(saved, "")


def _note_container(text: _Text, path: Sequence[object], position: int) -> None:
    """Note a container that can grow, unless it is a namespace."""
    thing = path[position]
    length = length_of(thing)
    if length is None or (type(thing) is dict and _is_namespace(path, position)):
        return
    n_parts, kind = len(text.parts), type(thing)
    queue = _find_queue(path, position)
    if queue is not None:
        # A program knows its queue or executor, and not where that stores its items.
        n_parts, kind = n_parts - 1, type(queue)

    text.containers.append(_Container(full_name(kind), length, limit_of(thing), n_parts, position))


def _find_queue(path: Sequence[object], position: int) -> object | None:
    """Find the queue or executor that an object on a path stores the items of, or None."""
    for owner in reversed(path[max(position - 2, 0) : position]):
        if type(owner) is not dict:
            return owner if links.is_queue(owner) else None
    return None


def _find_declared_limit(path: Sequence[object], root: Root) -> int | None:
    """Find the most entries that the program allows in the container at the end of a path."""
    for place in range(len(path) - 2, max(len(path) - 4, -1), -1):
        thing = path[place]
        if place == 0 and type(thing) is dict and "__builtins__" in thing:
            key = find_key(thing, path[-1])
            return find_declared_limit(str(key[0]), None, thing) or None if key else None

        key = find_key(namespace_of(thing), path[-1])
        if key is not None:
            return find_declared_limit(str(key[0]), thing, {}) or None

    # A variable of a running function, most likely of the program's own file.
    if len(path) == 1 and root.kind == "frame" and not root.is_library:
        return find_declared_limit(root.name, None, vars(sys.modules["__main__"])) or None
    return None


def _is_by_sample(path: Sequence[object]) -> bool:
    """Tell whether a container is a data set's, and has at most one entry for each sample."""
    container = path[-1]
    is_indexed = type(container) is dict and all(type(key) is int for key in list(container)[:8])
    owners = [
        thing
        for thing in path[-3:-1]
        if is_a(thing, "torch.utils.data", "Dataset")
        and not is_a(thing, "torch.utils.data", "IterableDataset")
    ]
    return is_indexed and bool(owners)


def _is_instance_of_program(thing: object) -> bool:
    return namespace_of(thing) is not None and is_class_of_program(type(thing))


def _is_namespace(path: Sequence[object], position: int) -> bool:
    thing = path[position]
    if position == 0:
        return type(thing) is dict and "__builtins__" in thing
    return namespace_of(path[position - 1]) is thing or is_class(path[position - 1])


def _specificity(kind: HolderKind) -> int:
    return _UNSPECIFIC_KINDS.get(kind, len(_UNSPECIFIC_KINDS))


def _find_growing(containers: list[_Container]) -> _Container | None:
    """Find the container that most likely grows: the longest, and the innermost of equals."""
    return max(reversed(containers), key=lambda container: container.length, default=None)


def _shorten(parts: list[str]) -> tuple[str, ...]:
    if len(parts) <= MAX_PARTS:
        return tuple(parts)
    half = MAX_PARTS // 2
    return (*parts[:half], " … ", *parts[-half + 1 :])
