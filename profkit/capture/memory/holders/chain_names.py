"""A chain of objects in the user's own words.

A chain reads as an expression, stretch by stretch: ``__main__.model.fc._forward_hooks[3] → kept[7]
in the closure of hook at train.py:5``. Names of variables, attributes and keys are taken from what
holds them; nothing of the user's is called, so a key whose type is not Python's own goes by its
type's name. Every part is short and safe to show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from profkit.capture.memory.holders import links
from profkit.capture.memory.holders.attributes import full_name, is_class, namespace_of
from profkit.capture.memory.holders.holder_step import HolderStep
from profkit.capture.memory.holders.keys import size_of
from profkit.capture.memory.holders.roots import Root
from profkit.model.live_memory import Chain, HolderKind
from profkit.names import middle_cut, visible

MAX_PART: Final = 80
"""Characters of one part; more says no more to a reader."""

MAX_PARTS: Final = 24
"""Parts of a chain; of a longer one both ends are kept."""

_SAYS_LITTLE: Final[dict[HolderKind, int]] = {
    "unknown": 0,
    "module-global": 1,
    "frame": 1,
    "instance": 2,
    "class": 2,
}
"""Kinds that say less than any other, which replaces them where it is met on the way."""


@dataclass
class _Text:
    """A chain's text as it grows.

    Attributes:
        parts: What is written.
        where: What closes the stretch that is being written, such as `` in main at train.py:3``.
        kind: What kind of holder it is, as far as is known.
        containers: Type and length of the containers passed that can grow.
    """

    kind: HolderKind
    parts: list[str] = field(default_factory=list)
    where: str = ""
    containers: list[tuple[str, int]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Write on."""
        if text:
            self.parts.append(_safe(text))

    def close(self) -> None:
        """End the stretch: what follows is reached through it, and is no part of its name."""
        self.add(self.where)
        self.where = ""

    def begin(self, text: str, where: str) -> None:
        """Begin a new stretch."""
        self.close()
        self.add(f" → {text}" if self.parts else text)
        self.where = where

    def restart(self, text: str) -> None:
        """Begin again from something that is known by its own name."""
        self.parts, self.where = [], ""
        self.add(text)

    def note_kind(self, kind: HolderKind | None) -> None:
        """Take a kind that says more than the one so far."""
        if kind is not None and _telling(kind) > _telling(self.kind):
            self.kind = kind


def chain(
    path: Sequence[object], root: Root, labels: Mapping[tuple[int, int], str] | None = None
) -> Chain:
    """What a path from a root to an object is called.

    Args:
        path: The objects, each held by the one before it; the first is the root itself, or what
            it holds directly.
        labels: Names of links that are already known, by the ids of both ends.
    """
    text = _Text(root.kind)
    _begin(text, path[0], root)
    place = 0
    while place < len(path) - 1:
        _measure(text, path, place)
        label = (labels or {}).get((id(path[place]), id(path[place + 1])))
        if label:
            _write_label(text, label)
            place += 1
            continue
        link = links.link(path[place:])
        _write(text, link)
        place += link.length
    text.close()
    container, length = _growing(text.containers)
    return Chain(text.kind, _bounded(text.parts), container, length)


def _begin(text: _Text, first: object, root: Root) -> None:
    """The root's own name."""
    if root.kind == "unknown":
        text.add(links.owner(first))
        return
    text.add(root.name)
    text.where = root.where


def _write_label(text: _Text, label: str) -> None:
    """A link of torch's: an attribute, and what a graph keeps as a stretch of its own."""
    attribute, _, kept = label.partition(" → ")
    text.add(attribute)
    if kept:
        # It is kept for backward, as what is on ``ctx`` is.
        text.note_kind("context")
        text.begin(kept, "")


def _write(text: _Text, link: HolderStep) -> None:
    if link.restarts:
        text.restart(link.text)
    elif link.stretch:
        text.begin(link.text, link.where)
    else:
        text.add(link.text)
    text.note_kind(link.kind)


def _measure(text: _Text, path: Sequence[object], place: int) -> None:
    """Note a container that can grow, unless it is where something keeps its attributes."""
    thing = path[place]
    size = size_of(thing)
    if size is None or (type(thing) is dict and _is_namespace(path, place)):
        return
    text.containers.append((full_name(type(thing)), size))


def _is_namespace(path: Sequence[object], place: int) -> bool:
    thing = path[place]
    if place == 0:
        return type(thing) is dict and "__builtins__" in thing
    return namespace_of(path[place - 1]) is thing or is_class(path[place - 1])


def _telling(kind: HolderKind) -> int:
    return _SAYS_LITTLE.get(kind, len(_SAYS_LITTLE))


def _growing(containers: list[tuple[str, int]]) -> tuple[str, int | None]:
    """The container that most likely grows: the longest, and the innermost of equals."""
    if not containers:
        return "", None
    return max(reversed(containers), key=lambda one: one[1])


def _safe(text: str) -> str:
    return middle_cut(visible(text), MAX_PART)


def _bounded(parts: list[str]) -> tuple[str, ...]:
    if len(parts) <= MAX_PARTS:
        return tuple(parts)
    half = MAX_PARTS // 2
    return (*parts[:half], " … ", *parts[-half + 1 :])
