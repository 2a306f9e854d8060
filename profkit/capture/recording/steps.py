"""``profkit.steps``: a loop over batches, each iteration of which is a step."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Final, Generic, NoReturn, TypeVar

from profkit.arguments import ITERABLE, NAME, Arguments, shown
from profkit.capture.recording.region import Region
from profkit.capture.recording.schedule import DEFAULT_ACTIVE, DEFAULT_WAIT, DEFAULT_WARMUP
from profkit.capture.recording.trace import OPTIONS, TraceCapture, trace
from profkit.errors import UsageError
from profkit.model.torch_names import DATA_WAIT

Batch = TypeVar("Batch")

_ARGUMENTS: Final = Arguments("profkit.steps", batches=ITERABLE, name=NAME, **OPTIONS)


class StepLoop(Generic[Batch]):
    """The batches of a loop whose steps are recorded, with the wait for each batch.

    Args:
        batches: What to loop over.
        name: The name of the trace.
        options: The arguments of :func:`profkit.trace`.

    Attributes:
        path: The last trace file, or None.
    """

    def __init__(self, batches: Iterable[Batch], name: str, options: dict[str, Any]) -> None:
        self._batches = batches
        self._name = name
        self._options = options
        self.path: str | None = None

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: If the batches have no length.
        """
        if isinstance(self._batches, Sized):
            return len(self._batches)
        raise TypeError(f"{type(self._batches).__name__} has no length")

    def __enter__(self) -> NoReturn:
        """Refuse to be opened: it is a loop.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "profkit.steps makes a loop and opens no block.",
            f"Write `for batch in profkit.steps(batches, {self._name!r}):`.",
        )

    def __exit__(self, *_error: object) -> None:
        """Do nothing: Python searches this method before it opens a block."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches. A step begins with the wait for its batch."""
        block = trace(self._name, **self._options)
        if not isinstance(block, TraceCapture):
            # Not recorded, its steps still count for what listens to them.
            for batch in self._batches:
                yield batch
                block.step()
            return

        block.set_step_kind("loader")
        try:
            with block:
                batches = iter(self._batches)
                # A loader of torch annotates its wait itself.
                measure_wait = not _is_loader(batches)
                while True:
                    try:
                        if measure_wait and block.is_recording:
                            with Region(DATA_WAIT):
                                batch = next(batches)
                        else:
                            batch = next(batches)
                    except StopIteration:
                        return

                    yield batch
                    block.step()
        finally:
            self.path = block.path


def steps(
    batches: Iterable[Batch],
    name: str = "steps",
    *,
    wait: int = DEFAULT_WAIT,
    warmup: int = DEFAULT_WARMUP,
    active: int | None = DEFAULT_ACTIVE,
    **options: Any,  # noqa: ANN401  (each is typed by profkit.trace)
) -> StepLoop[Batch]:
    """Loop over batches, and record some of the steps and the wait for their data.

    ::

        for batch in profkit.steps(loader, "train"):
            train_step(batch)

    Args:
        batches: A DataLoader or any other iterable.
        name: A name for the folder and the report.
        wait: Steps at the start that are not recorded.
        warmup: Steps after those; source lines come from one of them.
        active: Steps to record; None for all.
        **options: As for :func:`profkit.trace`.

    Returns:
        The same batches, to loop over once or several times; ``path`` is the trace once the loop
        has ended.

    Raises:
        UsageError: If an argument is invalid.
    """
    if isinstance(batches, str) and not isinstance(name, str):
        raise UsageError(
            "profkit.steps takes the batches first and then the name; here the first argument is "
            f"the string {shown(batches)}, and the second one, the name, is {shown(name)}.",
            f"Write profkit.steps(batches, {shown(batches)}).",
        )
    arguments = {"wait": wait, "warmup": warmup, "active": active, **options}
    _ARGUMENTS.check(batches=batches, name=name, **arguments)
    trace(name, **arguments)
    return StepLoop(batches, name, arguments)


def _is_loader(batches: object) -> bool:
    """Return whether torch annotates the wait for these batches itself, as its DataLoader does."""
    return any(kind.__module__ == "torch.utils.data.dataloader" for kind in type(batches).__mro__)
