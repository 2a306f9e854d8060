"""Messages on leaks: rate, objects, allocation site, holder and autograd graph."""

from typing import Final

from profkit.engine.families.leaks.causes import graph_share, main_chain, without_entries
from profkit.engine.wording import at, counted, listed
from profkit.model.leak_bytes import (
    is_estimate,
    node_per_step_bytes,
    saved_per_step_bytes,
    total_per_step_bytes,
)
from profkit.model.live_memory import FINALIZER, Leak
from profkit.model.location import Location
from profkit.names import middle_cut
from profkit.units import format_bytes, format_count

_MAX_NAME: Final = 80
_MEMORY: Final = {"cpu": "Host memory", "host": "Host memory", "pinned": "Pinned host memory"}
_MIN_STORAGE_RATIO: Final = 4
_PYPLOT: Final = "Gcf.figs"
"""Where ``matplotlib.pyplot`` keeps the figures that are open."""
_OF_COMPILERS: Final = frozenset({"linecache", "torch._dynamo", "torch._inductor"})
"""Modules that keep the source or code of each compiled function."""
_MIN_VALUES: Final = 2
"""Fewer tensors do not accumulate."""
_MIN_INTERVAL_STEPS: Final = 3
"""Rarer growth is stated with the number of steps between two tensors."""
_MIN_STORAGE_BYTES: Final = 4096
"""A smaller storage may be larger than its tensor because allocators round up."""


def leak_location(leak: Leak) -> Location:
    """Return the source line that allocates what grows; empty if unknown."""
    return leak.stack[0].location if leak.stack else Location()


def leak_clause(leak: Leak) -> str:
    """Describe rate, objects, allocation site and holder: a sentence without its period."""
    origin = allocation_and_holder(leak)
    return f"{growth_text(leak)}: {objects_text(leak)}{f', {origin}' if origin else ''}"


def leak_message(leak: Leak) -> str:
    """Describe a leak in sentences, also on its autograd graph and the limit of its holder."""
    return sentences(f"{leak_clause(leak)}.", graph_sentence(leak), limit_sentence(leak))


def growth_text(leak: Leak) -> str:
    """``Host memory grows by 2.10 MiB per step (steps 12 to 300)``."""
    first, last = format_count(leak.first_step), format_count(leak.last_step)
    amount = f"{'about ' if is_estimate(leak) else ''}{format_bytes(total_per_step_bytes(leak))}"
    memory = f"Memory of {leak.device}"
    # The nodes of a graph are on the host, wherever its tensors are.
    if leak.device in _MEMORY or node_per_step_bytes(leak) > leak.per_step_bytes:
        memory = _MEMORY.get(leak.device, "Host memory")
    return f"{memory} grows by {amount} per step (steps {first} to {last})"


def allocation_and_holder(leak: Leak) -> str:
    """``allocated at train.py:31 and retained by `losses` (list, 300 entries)``, if known."""
    place, holder = at(leak_location(leak)), holder_text(leak)
    parts = (f"allocated{place}" if place else "", f"retained by {holder}" if holder else "")
    return " and ".join(filter(None, parts))


def holder_text(leak: Leak) -> str:
    """Return the holder in code, with its type and length: ``(list, 300 entries)``; or nothing."""
    chain = main_chain(leak)
    if chain is None or not chain.parts:
        return ""
    # The type is that of an entry, if the holder has several.
    is_one = holder_name(leak) in {"", chain.name}
    type_name = chain.container.rpartition(".")[2] if is_one else ""
    details = [type_name] if type_name and not type_name.startswith("_") else []

    # The length may be older than the number of objects.
    n_entries = chain.container_len or 0
    if type_name and n_entries >= max(leak.n, 1):
        details.append(counted(n_entries, "entry", "entries"))
    name = holder_name(leak) or chain.name
    holder = name if chain.kind == "unknown" else f"{quoted(name)}{chain.scope}"
    return f"{holder} ({', '.join(details)})" if details else holder


def objects_text(leak: Leak) -> str:
    """``300 tensors of shape (120, 3) float32``, ``40 objects of type dict``."""
    if leak.kind == "host":
        return f"{counted(leak.n, 'object')} of type {quoted(leak.type)}"
    if leak.is_enlarged:
        dtype = f" of {leak.shape.dtype}" if leak.shape else ""
        become = "becomes" if leak.n == 1 else "become"
        return f"{counted(leak.n, 'tensor')}{dtype} that {become} larger"

    shape = f" of shape {leak.shape}" if leak.shape else ""
    graph = "the autograd graph of " if leak.kind == "graph" else ""
    interval_steps = round((leak.last_step - leak.first_step) / max(leak.n, 1))
    is_rare = leak.kind == "tensors" and interval_steps >= _MIN_INTERVAL_STEPS and leak.n > 1
    rate = f", about one every {format_count(interval_steps)} steps" if is_rare else ""
    return f"{graph}{counted(leak.n, 'tensor')}{shape}{rate}"


def graph_sentence(leak: Leak) -> str:
    """``Each step adds 7 graph nodes, which save 64.0 KiB for backward.``, or nothing."""
    graph = leak.graph
    if graph is None or not graph.n_nodes:
        return ""
    at_least = "" if graph.is_exact else "at least "
    nodes = f"The autograd graph has {at_least}{counted(graph.n_nodes, 'node')}"
    saved_bytes = graph.saved_bytes
    if leak.nodes_per_step >= 1:
        at_least, saved_bytes = "", saved_per_step_bytes(leak)
        nodes = f"Each step adds {counted(round(leak.nodes_per_step), 'graph node')}"

    saved = (
        f", which save {at_least}{format_bytes(saved_bytes)} for backward" if saved_bytes else ""
    )
    return f"{nodes}{saved}."


def values_sentence(leak: Leak, min_step_bytes: int) -> str:
    """Say what remains of a leak without its graph; return "" if that is too little to matter."""
    if leak.kind != "tensors" or leak.n < _MIN_VALUES:
        return ""

    per_step = total_per_step_bytes(leak) * (1 - graph_share(leak))
    # The graph is an average over its nodes, the size of tensors of one shape is known.
    tensor_bytes = leak.shape.n_bytes if leak.shape else None
    if tensor_bytes is not None:
        n_steps = max(leak.last_step - leak.first_step, 1)
        per_step = min(per_step, max(leak.storage_bytes or 0, tensor_bytes) * leak.n / n_steps)
    if per_step < min_step_bytes:
        return ""
    return (
        f"The values alone take about {format_bytes(round(per_step))} per step: clear "
        f"{quoted_holder(leak, 'what holds them')} after use, or keep only the last ones."
    )


def limit_sentence(leak: Leak) -> str:
    """``Once `memory` is full (100,000 entries), it takes at least 26.3 GiB.``, or nothing."""
    chain = main_chain(leak)
    if chain is not None and chain.is_by_sample:
        return f"{quoted(chain.name)} is full once each sample of the data set was read."
    if chain is None or leak.limit_bytes is None:
        return ""
    limit = chain.container_limit
    n_entries = "" if limit is None else f" ({counted(limit, 'entry', 'entries')})"
    full = f"Once {quoted(chain.name)} is full{n_entries}"
    return f"{full}, it takes at least {format_bytes(leak.limit_bytes)}."


def limit_fix(leak: Leak) -> str:
    """Return what to do about a holder that has a limit; empty without one."""
    chain = main_chain(leak)
    if chain is not None and chain.is_by_sample:
        return (
            f"Leave {quoted(chain.name)} if all samples fit in memory, or store the last ones only."
        )
    if chain is None or leak.limit_bytes is None:
        return ""
    return f"Lower the limit of {quoted(chain.name)}, or store less in each entry."


def emptying_fix(leak: Leak) -> str:
    """Return which method of the holder's object to call; empty if it has none to empty it."""
    chain = main_chain(leak)
    if chain is None or not chain.emptied_by or "." not in chain.name:
        return ""
    owner, _, attribute = chain.name.rpartition(".")
    call = quoted(f"{owner}.{chain.emptied_by}()")
    return f"Call {call} once the values of {quoted(attribute)} are used: it empties them."


def storage_ratio(leak: Leak) -> int:
    """Return the storage of a tensor as a multiple of its own bytes; 0 if not much larger."""
    own_bytes = leak.shape.n_bytes if leak.shape else None
    storage_bytes = leak.storage_bytes or 0
    if leak.kind not in {"tensors", "host"} or not own_bytes or storage_bytes < _MIN_STORAGE_BYTES:
        return 0
    times = storage_bytes // own_bytes
    return times if times >= _MIN_STORAGE_RATIO else 0


def holder_name(leak: Leak) -> str:
    """Return the holder's name in the user's code, or empty if unknown.

    A dict of lists is named where the leak is in several of its lists.
    """
    chain = main_chain(leak)
    if chain is None or chain.kind == "unknown":
        return ""

    scopes = {(other.name, other.scope) for other in leak.chains if other.kind == chain.kind}
    owners = {(without_entries(name), scope) for name, scope in scopes}
    return owners.pop()[0] if len(scopes) > 1 and len(owners) == 1 else chain.name


def quoted_holder(leak: Leak, otherwise: str) -> str:
    """Return the holder's name between backticks, or other words for it if it is unknown."""
    return quoted(holder_name(leak)) if holder_name(leak) else otherwise


def in_holder(leak: Leak) -> str:
    """``in `losses```, with a leading space; empty if the holder's name is unknown."""
    return f" in {quoted(holder_name(leak))}" if holder_name(leak) else ""


def library_fix(leak: Leak) -> str:
    """Return what to do about a holder that belongs to a library; empty if it is the program's."""
    chain = main_chain(leak)
    if chain is None:
        return ""
    first = "".join(chain.parts[:1])
    if first.startswith(FINALIZER):
        return (
            f"Let {quoted(first)} watch the object that its arguments belong to, not one that "
            "outlives them, or pass it no tensor. A finalizer keeps its arguments until the object "
            "that it watches is freed, or until its `detach()`."
        )
    if not chain.is_library or chain.kind == "unknown":
        return ""

    name = quoted(chain.name)
    if chain.name.endswith(_PYPLOT):
        return f"Close each figure after use, by `plt.close(fig)`: {name} keeps all that are open."
    if chain.parts[0] in _OF_COMPILERS:
        return (
            f"Compile less often: {name} keeps what each compilation generates. "
            "`TORCH_LOGS=recompiles` names the guard that fails."
        )
    return f"Find the call that adds to {name}, which belongs to a library, and make it less often."


def describe_holders(group: tuple[Leak, ...]) -> str:
    """Describe the holders of leaks that are one, with what each retains; empty for one holder.

    ``This is the sum of `metric.preds` (40.0 KiB) and `metric.target` (8.00 KiB).``
    """
    per_step = bytes_by_holder(group)
    if len(per_step) < 2:  # noqa: PLR2004
        return ""
    numbers = {0 if leak.graph is None else leak.graph.number for leak in group}
    if len(numbers) == 1 and 0 not in numbers:
        names = listed([quoted(name) for name in per_step])
        return f"{names} hold the same graph: it is freed only if each of them is changed."
    sizes = [f"{quoted(name)} ({format_bytes(n)})" for name, n in per_step.items()]
    return f"This is the sum of {listed(sizes)}."


def list_other_holders(group: tuple[Leak, ...]) -> str:
    """Return the names of all holders of leaks that are one, but the first; empty without."""
    return listed([quoted(name) for name in list(bytes_by_holder(group))[1:]])


def bytes_by_holder(group: tuple[Leak, ...]) -> dict[str, int]:
    """Return bytes per step by the holder's name, in the order of the leaks."""
    per_step: dict[str, int] = {}
    for leak in group:
        name = holder_name(leak)
        if name:
            per_step[name] = per_step.get(name, 0) + total_per_step_bytes(leak)
    return per_step


def quoted(name: str) -> str:
    """Put a name between backticks, cut if it is too long for a sentence."""
    return f"`{middle_cut(name.replace('`', chr(39)), _MAX_NAME)}`"


def sentences(*parts: str) -> str:
    """Joins sentences, without empty ones."""
    return " ".join(part for part in parts if part)
