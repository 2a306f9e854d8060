"""Carries out calls on the workers of a Dask cluster.

A worker starts a process for each call, as on one machine: calls in threads would wait for each
other's interpreter, and one that lacks memory would end the worker with the results of others.

Source: Dask.distributed's documentation: "Futures", "Launch Tasks from Tasks", "Resilience".
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from profkit.errors import (
    InternalError,
    LostProcessError,
    MissingFileError,
    ProfkitError,
    UnreadableFileError,
    UsageError,
)
from profkit.scale.processes import WorkerProcess
from profkit.scale.resources import MemoryBudget, planned_bytes

_TIMEOUT_S: Final = 30
INSTALL: Final = "pip install 'profkit[dask]'"
_RETRIES: Final = 1


@contextlib.contextmanager
def connected(
    address: str | None, scheduler_file: str | None, say: Callable[[str], None]
) -> Iterator[Any]:
    """Connect to a running cluster during a block.

    Args:
        address: Of the scheduler, such as ``tcp://10.0.0.1:8786``.
        scheduler_file: The file that ``dask scheduler --scheduler-file`` has written.
        say: Shows messages to the user.

    Raises:
        UsageError: Dask is not installed, or there is no such scheduler.
    """
    try:
        from distributed import Client  # noqa: PLC0415  (an extra)
    except ImportError:
        raise UsageError("A cluster needs a package that is not installed.", INSTALL) from None

    hint = "Give the address that it printed when it started, or the file that it has written."
    try:
        if scheduler_file is not None:
            # Dask would wait for a file that does not exist.
            Path(scheduler_file).open().close()
        client = Client(
            address, scheduler_file=scheduler_file, timeout=_TIMEOUT_S, set_as_default=False
        )
    except (OSError, ValueError, TimeoutError) as error:
        message = f"There is no Dask scheduler at {address or scheduler_file}: {error}."
        raise UsageError(message, hint) from error

    with client:
        say(f"Dask dashboard: {client.dashboard_link}")
        if not client.nthreads():
            say("the cluster has no workers yet: waiting for them")
        yield client


@contextlib.contextmanager
def client_of_this_worker() -> Iterator[Any]:
    """Give the client of the cluster that runs this task, during a block; None outside of a task.

    Meanwhile the task leaves its place on the worker: it would wait for its own end.
    """
    distributed = sys.modules.get("distributed")
    try:
        if distributed is not None:
            distributed.get_worker()
    except ValueError:
        distributed = None
    if distributed is None:
        yield None
        return
    with distributed.worker_client() as client:
        yield client


def call_on_cluster(
    function: str,
    items: Sequence[object],
    needs_bytes: Sequence[int],
    client: Any,  # noqa: ANN401  (distributed.Client)
) -> Generator[tuple[int, Any], None, None]:
    """Call a function for each item, one task each.

    A task whose process dies is repeated once; Dask repeats the tasks of workers that die.

    Args:
        function: As ``module:name``; the workers have to have its package.
        needs_bytes: Memory that the call of each item needs.

    Yields:
        The index of an item, and what the function returned for it, or the error that it raised.

    Raises:
        UsageError: The workers cannot import profkit, or the cluster has ended.
    """
    from distributed import as_completed  # noqa: PLC0415  (an extra)

    if getattr(client, "asynchronous", False):
        hint = "Give Client(..., asynchronous=False)."
        raise UsageError("The client of the cluster is asynchronous.", hint)

    futures = client.map(
        call_on_worker,
        [function] * len(items),
        items,
        needs_bytes,
        pure=False,
        retries=_RETRIES,
    )
    index_of = {future.key: index for index, future in enumerate(futures)}

    try:
        for future in as_completed(futures, loop=client.loop, raise_errors=False):
            yield index_of[future.key], _get_result(future)
            future.release()
    finally:
        if client.status == "running":
            client.cancel([future for future in futures if not future.done()], force=True)


def _get_result(future: Any) -> Any:  # noqa: ANN401  (of Dask; what the function returns)
    """Return a task's result or error.

    Raises:
        UsageError: The error concerns the cluster, not the item.
    """
    try:
        # Dask makes the result again if its worker has died since.
        return future.result()
    except Exception as raised:  # noqa: BLE001  (of the task, or of Dask)
        error = raised

    if future.cancelled():
        raise UsageError("The Dask cluster has ended, or cancelled the tasks.", "Start it again.")
    if isinstance(error, ModuleNotFoundError):
        message = f"The workers of the Dask cluster cannot import profkit: {error}."
        raise UsageError(message, f"Install it in their environment: {INSTALL}.")
    if type(error).__name__ == "KilledWorker":
        hint = "Often memory ran out: see the logs of the workers."
        return LostProcessError("The workers that read it died.", hint)

    if isinstance(error, ProfkitError):
        return error
    return InternalError(f"Dask raised {type(error).__name__}: {error}.", "Please report it.")


def call_on_worker(function: str, item: object, needs_bytes: int) -> Any:  # noqa: ANN401  (what the function returns)
    """Call a function in a process that this worker starts.

    Raises:
        LostProcessError: The process died.
    """
    with _idle.process(function, needs_bytes) as process:
        result = process.call(item)

    if isinstance(result, LostProcessError):
        raise result
    if isinstance(result, MissingFileError | UnreadableFileError):
        from distributed import get_worker  # noqa: PLC0415  (an extra)

        hint = (
            f"The worker {get_worker().address} read it: files have to be where all workers see "
            "them, at the same path or a URL."
        )
        return type(result)(result.message, hint)
    return result


class _IdleProcesses:
    """The processes of a Dask worker, which has a thread for each task at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[WorkerProcess]] = {}
        self._budget: MemoryBudget | None = None

    @contextlib.contextmanager
    def process(self, function: str, needs_bytes: int) -> Iterator[WorkerProcess]:
        """Give a process that carries out one call, when there is memory for it."""
        with self._lock:
            if self._budget is None:
                self._budget = MemoryBudget(planned_bytes())

        with self._budget.taking(needs_bytes):
            with self._lock:
                waiting = self._idle.setdefault(function, [])
                process = waiting.pop() if waiting else WorkerProcess(function)
            try:
                yield process
            except BaseException:
                process.end()
                raise
            with self._lock:
                if process.is_alive:
                    waiting.append(process)


_idle: Final = _IdleProcesses()
