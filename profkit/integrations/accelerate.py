"""For loops that use Accelerate: ``with ProfkitProfile(accelerator) as profile:``."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from accelerate import Accelerator

from profkit.integrations.training import RecordsTraining, harmless


class ProfkitProfile(RecordsTraining):
    """Records some steps of a loop, monitors memory over all, and reports at the end of the block.

    It is used like ``accelerator.profile()``: ``profile.step()`` is called after each batch. A step
    ends with the batch after which gradients are synchronized: with ``accelerator.accumulate`` it
    has several. Its figures are passed to ``accelerator.log``.

    Args:
        accelerator: The accelerator of the loop.
        options: As for the callbacks of trainers.
    """

    def __init__(self, accelerator: Accelerator, name: str = "train", **options: Any) -> None:  # noqa: ANN401  (each is typed by RecordsTraining)
        super().__init__(name, **options)
        self._accelerator = accelerator

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._end(error)

    @harmless
    def step(self) -> None:
        """End the step after a batch, unless gradients of more batches are accumulated."""
        if self._accelerator.sync_gradients:
            self.training.step()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Enter a block that is in no step, such as an evaluation."""
        self.training.pause()
        try:
            yield
        finally:
            self.training.resume()

    @harmless
    def _begin(self) -> None:
        self.training.begin()

    @harmless
    def _end(self, error: BaseException | None) -> None:
        self.training.end(error, self._accelerator.log)
