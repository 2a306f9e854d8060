"""What to do about a loader that the steps wait for, by what it does and what it runs on."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.frameworks import Trainer, find_trainer
from profkit.engine.families.loader_functions import LoaderFunction, are_workers_idle
from profkit.engine.families.python_calls import (
    TRANSFORMERS_PIPELINE,
    TRANSFORMERS_TRAINER,
    are_within,
)
from profkit.engine.families.run_steps import FIX_RESTARTS, is_mostly_elsewhere
from profkit.engine.wording import counted
from profkit.index.runtime_calls import rows_named
from profkit.model.events import MISSING, NO_ROW, Category, Rows
from profkit.patterns import regex
from profkit.units import format_count, format_ns

_MAX_WAITING_WORKERS: Final = 16
"""Workers that wait take memory and no core."""
_FEW_WORKERS: Final = 2
"""On a CPU the model needs the cores itself."""
_MORE_WORKERS: Final = 4
_MIN_SAVED_SHARE: Final = 0.8
"""Workers that save less of the wait are limited by the cores, which a reader should know."""
_OPENS: Final = regex(
    r"^(open|(np|numpy|torch|json|joblib|soundfile)\.load|h5py\.File|(pd|pandas|pl)\.read_\w+"
    r"|zipfile\.ZipFile|(tarfile|lmdb|zarr|rasterio)\.open|sqlite3\.connect|pq\.read_table)$"
)
"""Calls that open or read a file, as a program writes them."""


_TABLES: Final = "pandas"
"""The library that makes an object of its own of each row that a sample reads."""
_ROW: Final = regex(r"^aten::select$")
_VIEWS: Final = regex(
    r"^aten::(select|as_strided|unsqueeze|stack|cat|narrow|slice|view|expand|empty|resize_|item"
    r"|_local_scalar_dense)$"
)
"""What it takes to select the rows of a batch and to join them."""
_READ: Final = regex(r"^aten::item$")
_VECTOR: Final = regex(r"^\[\[\d+\]")
"""The dimensions of an operator whose first input is a vector."""
_MANY_OPERATORS: Final = 500
"""Operators per batch: those of a loop over its elements. A batch of 32 samples has few of each."""
_MIN_ELEMENT_SHARE: Final = 0.2
"""Each of them has operators within it, and some that compute."""
_SEARCH: Final = regex(r"(^|\.)index$")
"""A method of lists and strings that compares one element after the other."""
_MANY_ROWS: Final = 32
_NEARLY_ALL: Final = 0.95
_FIX_ROWS: Final = (
    "Take each batch by one index, as in `for index in torch.randperm(n).split(batch_size): x, y = "
    "features[index], labels[index]`: the data are tensors in memory, and the loader takes and "
    "joins their rows one by one."
)


@dataclass(frozen=True)
class LoaderWait:
    """How long the steps wait for batches.

    Attributes:
        rows: The waits.
        ns: Time of the waits per step.
        step_ns: Time of a step.
        function: The function that makes batches slow, or None.
    """

    rows: Rows
    ns: float
    step_ns: float
    function: LoaderFunction | None

    @property
    def is_of_sampler(self) -> bool:
        """Return whether the loader takes its time for the indices of batches."""
        return self.function is not None and self.function.part == "sampler"

    @property
    def is_for_lock(self) -> bool:
        """Return whether the loader takes its time waiting for a lock."""
        return self.function is not None and self.function.waits_for_lock

    @property
    def is_without_core(self) -> bool:
        """Return whether batches are made by waiting, such as for a network."""
        return self.function is not None and self.function.mostly_waits


def count_cores(ctx: Context) -> int | None:
    """Return the cores that a rank has, or None if that is not known."""
    threads = None if ctx.trace.capture is None else ctx.trace.capture.threads
    return None if threads is None else max(1, threads.n_cores // threads.n_ranks)


def count_helpful_workers(ctx: Context) -> int:
    """Count the workers that leave the model the cores that it needs itself."""
    n_workers = _MORE_WORKERS if ctx.has_device_work else _FEW_WORKERS
    return min(n_workers, count_cores(ctx) or _MORE_WORKERS)


def suggest_for_sampler(function: LoaderFunction) -> str:
    """Return the fix of a sampler that takes long for the indices of a batch."""
    return (
        f"Call `{function.name}` once per epoch and not for each batch, or do less there: a "
        "sampler runs in the main process, where workers are no help."
    )


def suggest_for_workers(ctx: Context, wait: LoaderWait) -> str:
    """Return the fix of a loader that has workers."""
    function, less = wait.function, _suggest_less(wait)
    if function is not None and wait.is_for_lock:
        return f"{_sentence(less)}: workers wait for each other there, and more are no help."
    if function is not None and wait.is_without_core:
        return (
            f"Raise `num_workers`, also beyond the cores: `{function.owner}` mostly waits. Or "
            f"{less}."
        )
    # Workers that have just started have no batch ready, whatever is fetched ahead.
    if is_mostly_elsewhere(ctx):
        return f"Start workers once. {FIX_RESTARTS}"
    if are_workers_idle(ctx):
        return (
            "Raise `prefetch_factor`, so that batches are ready ahead: the workers wait most of "
            "the time, and more of them are no help."
        )

    capture, n_cores = ctx.trace.capture, count_cores(ctx)
    n_workers = 0 if capture is None or capture.threads is None else capture.threads.n_workers
    # More workers than cores would take turns.
    if n_cores is not None and n_workers >= n_cores:
        return (
            f"{_sentence(less)}: the loader's workers are too slow, and there are no cores for "
            "more of them."
        )
    return (
        f"Raise `num_workers` or `prefetch_factor`, or {less}: the loader's workers are too slow."
    )


def suggest_workers(ctx: Context, wait: LoaderWait) -> str:
    """Return the fix of a loader that prepares batches in the loop's own process."""
    if wait.function is None and _takes_rows(ctx, wait):
        return _FIX_ROWS
    if are_within(ctx, wait.rows, TRANSFORMERS_PIPELINE):
        return (
            "Call the pipeline of Transformers with many inputs at once and `num_workers=1` (more "
            "if it does not divide inputs into chunks), so that they are prepared in parallel with "
            "the model; or do less per input."
        )

    cause = _suggest_for_cause(ctx, wait)
    less, saved_ns = cause or _suggest_less(wait), saved_by_workers_ns(ctx, wait)
    if saved_ns == 0:
        clause = _sentence(less)
        return f"{clause}: the program has one core, which workers would share with the model."
    workers = _describe_workers(ctx, wait, saved_ns)
    # What a few lines change saves more than workers, which do the same on other cores.
    return f"{_sentence(less)}. Or {workers}." if cause else f"{_sentence(workers)}, or {less}."


def _describe_workers(ctx: Context, wait: LoaderWait, saved_ns: int) -> str:
    """Return how the loader gets workers, as a clause without a subject."""
    n_workers, limit = _count_workers(ctx, wait), _describe_limit(ctx, wait, saved_ns)
    aim = f", so that batches are prepared in parallel with the model{limit}"
    if find_trainer(ctx) is Trainer.TRANSFORMERS or are_within(
        ctx, wait.rows, TRANSFORMERS_TRAINER
    ):
        return (
            f"pass `dataloader_num_workers={n_workers}, dataloader_persistent_workers=True` to "
            f"`TrainingArguments`{aim}"
        )

    # Without a GPU pinning only warns.
    pinned = ", pin_memory=True" if ctx.has_device_work else ""
    return (
        f"use `DataLoader(..., num_workers={n_workers}, persistent_workers=True{pinned})`"
        f"{_divide_stream(wait)}{aim}"
    )


def _suggest_for_cause(ctx: Context, wait: LoaderWait) -> str:
    """Return what makes each batch cheap, where its code takes long for a known reason.

    A clause without a subject; empty where no reason is known.
    """
    function = wait.function
    if n_operators := _count_element_operators(ctx, wait):
        name = "the data set" if function is None else f"`{function.name}`"
        return (
            f"compute with whole tensors in {name}, which runs {format_count(n_operators)} "
            "operators per batch on single elements"
        )
    return "" if function is None or function.library else suggest_lookup(function.callee)


def _takes_rows(ctx: Context, wait: LoaderWait) -> bool:
    """Return whether batches are rows of tensors, taken one by one and joined: nothing else."""
    is_op = ctx.events.category == Category.OP
    is_op &= ctx.nearest(wait.rows) != NO_ROW
    is_op[wait.rows] = False
    n_rows = np.count_nonzero(is_op & rows_named(ctx.events, _ROW, Category.OP))
    n_views = np.count_nonzero(is_op & rows_named(ctx.events, _VIEWS, Category.OP))
    is_many = n_rows >= _MANY_ROWS * len(wait.rows)
    return bool(is_many and n_views >= _NEARLY_ALL * np.count_nonzero(is_op))


def _count_element_operators(ctx: Context, wait: LoaderWait) -> int:
    """Count the operators per batch of a loop over its elements; 0 if there is none."""
    is_op = ctx.tree.is_op & (ctx.nearest(wait.rows) != NO_ROW)
    is_op[wait.rows] = False
    n_ops, n_waits = int(np.count_nonzero(is_op)), max(1, len(wait.rows))
    if n_ops < _MANY_OPERATORS * n_waits or _takes_rows(ctx, wait):
        return 0

    # An index into one dimension, or a read of its value, takes one element.
    selects = np.flatnonzero(is_op & rows_named(ctx.events, _ROW, Category.OP))
    dims = ctx.events.input_dims.at(selects)
    names = ctx.events.names
    is_vector = [number != MISSING and bool(_VECTOR.match(names[number])) for number in dims]
    n_elements = sum(is_vector) + np.count_nonzero(
        is_op & rows_named(ctx.events, _READ, Category.OP)
    )
    return n_ops // n_waits if n_elements >= _MIN_ELEMENT_SHARE * n_ops else 0


def suggest_lookup(callee: str) -> str:
    """Return the clause of a fix for a call that searches a list; empty for another one."""
    if not _SEARCH.search(callee):
        return ""
    return f"make a `dict` of the places once, instead of a search by `{callee}` each time"


def saved_by_workers_ns(ctx: Context, wait: LoaderWait) -> int:
    """Return the most time per step that workers can save of a loader without.

    Batches that take a core need one of those that the model has too. A GPU leaves them all.
    """
    n_cores = count_cores(ctx)
    if n_cores is None or wait.is_without_core or ctx.has_device_work:
        return round(wait.ns)
    # No schedule is shorter than all work divided by the cores, nor than the model itself.
    return round(min(wait.ns, wait.step_ns * (1 - 1 / n_cores)))


def is_limited_by_cores(ctx: Context, wait: LoaderWait) -> bool:
    """Return whether workers would save little of the wait, as the program has few cores."""
    return saved_by_workers_ns(ctx, wait) < _MIN_SAVED_SHARE * wait.ns


def _describe_limit(ctx: Context, wait: LoaderWait, saved_ns: int) -> str:
    """Return how much of the wait workers save if that is not most of it, as a clause."""
    if not is_limited_by_cores(ctx, wait):
        return ""
    cores = counted(count_cores(ctx) or 1, "core")
    return f" (which saves up to {format_ns(saved_ns)} of it on {cores})"


def _count_workers(ctx: Context, wait: LoaderWait) -> int:
    """Count the workers that keep up with the model, as far as there are cores for them."""
    if wait.is_without_core and not wait.is_for_lock:
        n_needed = -(-round(wait.ns) // max(1, round(wait.step_ns - wait.ns)))
        return max(_MORE_WORKERS, min(_MAX_WAITING_WORKERS, n_needed))
    return count_helpful_workers(ctx)


def _divide_stream(wait: LoaderWait) -> str:
    """Return what an ``IterableDataset`` needs for workers, as a clause; empty for others."""
    if wait.function is None or wait.function.part != "stream":
        return ""
    return " and divide the data by `get_worker_info()` in the dataset's `__iter__`"


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _suggest_less(wait: LoaderWait) -> str:
    """Return how each batch gets cheaper, as a clause without a subject."""
    function = wait.function
    if function is None:
        return "do less per sample in the dataset's `__getitem__`"
    if wait.is_for_lock or wait.is_without_core:
        return (
            f"do less while `{function.owner}` holds its lock"
            if wait.is_for_lock
            else "do the waits of a batch at once, such as by threads in the dataset's "
            "`__getitems__`"
        )
    if _OPENS.search(function.callee):
        return f"do `{function.callee}` once per worker, if each sample reads the same file"
    if function.library == _TABLES:
        return (
            "do the conversion of the table's columns to tensors once, before the loop, and index "
            "these per sample: a row of a table takes pandas many times as long"
        )
    # What the program does not define is as fast as it is.
    if function.callee not in {"", function.owner}:
        return f"call `{function.callee}` less often in `{function.owner}`"
    return f"do less in `{function.name}`"
