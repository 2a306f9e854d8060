"""The callback for Lightning: ``Trainer(callbacks=[ProfkitCallback()])``."""

import sys
from typing import TYPE_CHECKING, Any

from profkit.integrations.training import RecordsTraining, harmless

# The same package under its older name, of which programs use either.
if TYPE_CHECKING or "lightning" in sys.modules or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback


class ProfkitCallback(RecordsTraining, Callback):
    """Records some training steps, monitors memory over all, and reports at the end of ``fit``.

    A step ends with the batch after which the optimizer steps: with ``accumulate_grad_batches`` it
    has several. It begins at the end of the previous one, with the wait for its data; a validation
    is not part of a step. With manual optimization each batch is a step.

    Of several ranks, all record the same steps, and rank 0 reports. Its figures are passed to the
    trainer's loggers. If the trainer's profiler uses torch's, profkit only monitors memory.
    """

    _n_batches = 0
    _n_updates = 0

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002
        """Begin, after the validation that checks the program."""
        self._n_batches, self._n_updates = 0, trainer.global_step
        self.training.begin()

    @harmless
    def on_train_batch_end(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """End the step, unless gradients of more batches are accumulated."""
        self._n_batches += 1
        is_updated = trainer.global_step != self._n_updates
        if is_updated or self._n_batches >= trainer.accumulate_grad_batches:
            self._n_batches, self._n_updates = 0, trainer.global_step
            self.training.step()

    @harmless
    def on_validation_start(self, *_args: Any) -> None:  # noqa: ANN401
        """Pause: a validation is not a step."""
        self.training.pause()

    @harmless
    def on_validation_end(self, *_args: Any) -> None:  # noqa: ANN401
        """Begin the next step."""
        self.training.resume()

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002
        """Report."""

        def log(figures: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

        self.training.end(None, log)

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002
        """Report on what was recorded until then."""
        self.training.end(exception)

    @harmless
    def teardown(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Report if ``fit`` has ended in another way."""
        self.training.end(None)
