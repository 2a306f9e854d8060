"""Messages on growth of host memory outside tensors, and of loader workers."""

from typing import Final

from profkit.engine.families.leaks.messages import (
    allocation_and_holder,
    growth_text,
    holder_name,
    leak_location,
    leak_message,
    limit_sentence,
    quoted,
    sentences,
    storage_ratio,
)
from profkit.engine.wording import at, counted
from profkit.model.live_memory import Leak
from profkit.units import format_bytes, format_count, format_share

MAIN_SHARE: Final = 0.5
"""Minimum share of a growth that is reported as its cause."""
_ALL: Final = format_share(1.0)


def host_message(leak: Leak) -> str:
    """Describe the rate, and the cause as far as it is known."""
    if leak.kind == "workers":
        return _describe_workers(leak)
    if leak.kind == "native":
        return _native_message(leak)
    place, ratio = allocation_and_holder(leak), storage_ratio(leak)
    if leak.n:
        text = leak_message(leak)
    elif place:
        text = sentences(f"{growth_text(leak)}: Python objects, {place}.", limit_sentence(leak))
    else:
        text = f"{growth_text(leak)}, and no Python object that holds it was found."

    view = f"Each entry is a view that retains an array {ratio} times as large."
    return sentences(text, view if ratio else "")


def _native_message(leak: Leak) -> str:
    place = allocation_and_holder(leak)
    if leak.chains:
        return (
            f"{growth_text(leak)}. No tensor and no object that can be measured owns it: most "
            f"likely objects of type {quoted(leak.type)} do, {place}."
        )
    if leak.is_mapped:
        return (
            f"{growth_text(leak)}: it is mapped beside the heap, by a library or by `mmap`, and is "
            "not unmapped."
        )
    names = ", ".join(map(quoted, leak.operators))
    during = f" in {names}" if names else ""
    if leak.is_for_new_shapes:
        return (
            f"{growth_text(leak)}: a library caches a plan for each new shape of a tensor"
            f"{during}{at(leak_location(leak))}."
        )
    return (
        f"{growth_text(leak)}. No tensor and no Python object owns it: a library allocates it"
        f"{during}{at(leak_location(leak))} and does not free it."
    )


def _describe_workers(leak: Leak) -> str:
    first, last = format_count(leak.first_step), format_count(leak.last_step)
    amount = f"{'about ' if leak.n > 1 else ''}{format_bytes(leak.per_step_bytes)}"
    whose = counted(leak.n, "loader worker")
    sampled = " (one was sampled)" if leak.n > 1 else ""
    text = f"The memory of {whose}{sampled} grows by {amount} per step (steps {first} to {last})"

    if leak.copied_share >= MAIN_SHARE:
        share = format_share(leak.copied_share)
        share = "all" if share == _ALL else f"at least {share}"
        return f"{text}. {share.capitalize()} of it is copies of objects of the main process."
    if holder_name(leak):
        return sentences(f"{text}: {_describe_addition(leak)}.", limit_sentence(leak))
    if leak.made_share >= MAIN_SHARE:
        return f"{text}. The workers retain objects that they create."
    return (
        f"{text}. It may be copies of objects of the main process, or objects that the workers "
        "retain in memory that the main process had freed."
    )


def _describe_addition(leak: Leak) -> str:
    holder, place = quoted(holder_name(leak)), leak_location(leak).place
    if leak.made_share < MAIN_SHARE:
        return (
            f"most likely {holder}, to which {place} adds, although a part of it may be records of "
            "operators that profkit has left behind"
        )
    return f"most likely {holder}, to which {place} adds in each worker"
