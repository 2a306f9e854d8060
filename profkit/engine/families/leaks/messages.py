"""What grows, in sentences with the user's own lines and names."""

import re
from typing import Final

from profkit.engine.families.leaks.causes import (
    container_name,
    container_place,
    is_estimate,
    main_chain,
    node_per_step_bytes,
    saved_per_step_bytes,
    total_per_step_bytes,
)
from profkit.engine.wording import at, counted
from profkit.model.live_memory import Leak
from profkit.model.location import Location
from profkit.names import middle_cut
from profkit.units import format_bytes, format_count

_LONGEST_NAME: Final = 80
_WHERE: Final = {"cpu": "host memory", "host": "host memory", "pinned": "page-locked host memory"}
_SHAPE: Final = re.compile(r"\(([\d, ]*)\) [a-z]+(\d*)\w*")
_FAR_MORE: Final = 4
_FAR_MORE_BYTES: Final = 4096
"""Allocators round up; below this a storage may be larger than its tensor for that alone."""
_UNITS: Final = ("()", "(1,)")
"""Shapes of a single number."""


def leak_location(growth: Leak) -> Location:
    """The user's line that makes what grows; nothing where it is not known.

    Args:
        growth: What grows.
    """
    if not growth.stack:
        return Location()
    frame = growth.stack[0]
    return frame.location


def leak_clause(growth: Leak) -> str:
    """How fast, what, by which line, and who holds it: a sentence without its full stop.

    Args:
        growth: What grows.
    """
    about = allocation_and_holder(growth)
    return f"{growth_text(growth)}: {objects_text(growth)}{f', {about}' if about else ''}"


def leak_message(growth: Leak) -> str:
    """The same as a sentence, and another one on the graph behind.

    Args:
        growth: What grows.
    """
    return sentences(f"{leak_clause(growth)}.", graph_sentence(growth))


def growth_text(growth: Leak) -> str:
    """``Each step from 12 to 300 keeps 2.10 MiB more in host memory``.

    Args:
        growth: What grows.
    """
    first, last = format_count(growth.first_step), format_count(growth.last_step)
    amount = (
        f"{'about ' if is_estimate(growth) else ''}{format_bytes(total_per_step_bytes(growth))}"
    )
    is_on_host = growth.device in _WHERE or node_per_step_bytes(growth) > growth.per_step_bytes
    where = f"the memory of {growth.device}"
    if is_on_host:
        where = _WHERE.get(growth.device, "host memory")
    return f"Each step from {first} to {last} keeps {amount} more in {where}"


def allocation_and_holder(growth: Leak) -> str:
    """``made at train.py:31 and held by losses (list, 300 entries)``, or a part of it.

    Args:
        growth: What grows.
    """
    place = at(leak_location(growth))
    parts = [f"made{place}"] if place else []
    holder = holder_text(growth)
    if holder:
        parts.append(f"held by {holder}")
    return " and ".join(parts)


def holder_text(growth: Leak) -> str:
    """The holder in code, and what it is: ``(list, 300 entries)``; empty where none is known.

    Args:
        growth: What grows.
    """
    chain = main_chain(growth)
    if chain is None or not chain.parts:
        return ""
    kind = chain.container.rpartition(".")[2]
    about = [kind] if kind and not kind.startswith("_") else []
    # It may have been counted before the last of them came.
    n_entries = chain.container_len or 0
    if kind and n_entries >= max(growth.n, 1):
        about.append(counted(n_entries, "entry", "entries"))
    what = f"{quoted(container_name(chain))}{container_place(chain)}"
    return f"{what} ({', '.join(about)})" if about else what


def objects_text(growth: Leak) -> str:
    """``300 tensors of shape (120, 3) float32``, ``40 objects of type dict``.

    Args:
        growth: What grows.
    """
    if growth.kind == "host":
        return f"{counted(growth.n, 'object')} of type {quoted(growth.type)}"
    shape = f" of shape {growth.shape}" if growth.shape else ""
    behind = "the autograd graph behind " if growth.kind == "graph" else ""
    return f"{behind}{counted(growth.n, 'tensor')}{shape}"


def graph_sentence(growth: Leak) -> str:
    """``Each step adds 7 graph nodes, which keep 64.0 KiB for a backward pass.``, or nothing.

    Args:
        growth: What grows.
    """
    graph = growth.graph
    if graph is None or not graph.n_nodes:
        return ""
    if growth.nodes_per_step >= 1:
        kept = saved_per_step_bytes(growth)
        nodes = f"Each step adds {counted(round(growth.nodes_per_step), 'graph node')}"
        keeping = f", which keep {format_bytes(kept)} for a backward pass" if kept else ""
        return f"{nodes}{keeping}."
    whom = "it" if growth.n == 1 else "them"
    least = "" if graph.is_exact else "at least "
    nodes = f"Behind {whom} hang {least}{counted(graph.n_nodes, 'graph node')}"
    saved = format_bytes(graph.saved_bytes)
    keeping = f" that keep {least}{saved} for a backward pass" if graph.saved_bytes else ""
    return f"{nodes}{keeping}."


def storage_ratio(growth: Leak) -> int:
    """How many times its own bytes a tensor's storage has; 0 where it is not far more.

    Args:
        growth: What grows.
    """
    own = _SHAPE.fullmatch(growth.shape)
    if own is None or growth.kind != "tensors" or not growth.n:
        return 0
    graph_bytes = growth.graph.saved_bytes if growth.graph else 0
    storage_bytes = (growth.bytes - graph_bytes) // growth.n
    own_bytes = int(own[2] or 8) // 8  # the one type without a number in its name is bool
    for length in filter(None, own[1].replace(" ", "").split(",")):
        own_bytes *= int(length)
    if not own_bytes or storage_bytes < _FAR_MORE_BYTES:
        return 0
    times = storage_bytes // own_bytes
    return times if times >= _FAR_MORE else 0


def is_scalar(growth: Leak) -> bool:
    """Whether what grows is single numbers, as far as is known.

    Args:
        growth: What grows.
    """
    return growth.shape.startswith(_UNITS)


def holder_name(growth: Leak) -> str:
    """What the holder is called in the user's code, or empty where it is not known.

    Args:
        growth: What grows.
    """
    chain = main_chain(growth)
    return "" if chain is None else container_name(chain)


def quoted(name: str) -> str:
    """A name between backticks, cut where it is too long for a sentence.

    Args:
        name: A name from the user's program.
    """
    return f"`{middle_cut(name.replace('`', chr(39)), _LONGEST_NAME)}`"


def sentences(*parts: str) -> str:
    """Sentences after each other, without those that say nothing.

    Args:
        parts: Sentences, each with its full stop, or empty.
    """
    return " ".join(part for part in parts if part)
