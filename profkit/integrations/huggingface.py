"""The callback for the ``Trainer`` of Transformers: ``callbacks=[ProfkitTrainerCallback()]``."""

import inspect
from typing import Any

from transformers import Trainer, TrainerCallback

from profkit.integrations.training import RecordsTraining, harmless


class ProfkitTrainerCallback(RecordsTraining, TrainerCallback):
    """Records some training steps, monitors memory over all, and reports at the end of ``train()``.

    A step is what the trainer calls one: an update with all of its batches, of which there are
    several with ``gradient_accumulation_steps``. It begins at the end of the previous one, with the
    wait for its data; an evaluation is not part of a step.

    Of several ranks, all record the same steps, and rank 0 reports. Its figures are passed to
    ``trainer.log``, and so to all of its loggers. The trainer does not tell its callbacks that
    ``train()`` raised: the report is then printed at the end of the program, or by :meth:`finish`.
    """

    _trainer: Trainer | None = None

    @harmless
    def finish(self) -> None:
        """Report now, where ``train()`` has raised."""
        self._trainer = None
        self.training.end(None)

    @harmless
    def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Begin."""
        self._trainer = _find_running_trainer()
        self.training.begin()

    @harmless
    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Go on after an evaluation that the trainer did not tell of."""
        self.training.resume()

    @harmless
    def on_step_end(self, /, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """End the step; an evaluation may follow."""
        self.training.step()
        self._pause_if(control)

    @harmless
    def on_epoch_end(self, /, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Pause if an evaluation follows."""
        self._pause_if(control)

    @harmless
    def on_prediction_step(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Pause in an evaluation that the program itself has begun."""
        self.training.pause()

    @harmless
    def on_evaluate(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Begin the next step."""
        self.training.resume()

    @harmless
    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        """Report."""
        trainer, self._trainer = self._trainer, None
        self.training.end(None, None if trainer is None else trainer.log)

    def _pause_if(self, control: Any) -> None:  # noqa: ANN401  (a TrainerControl)
        if control.should_evaluate:
            self.training.pause()


def _find_running_trainer() -> Trainer | None:
    """Return the trainer that calls a callback: its ``log`` is the one way to all loggers.

    Source: ``CallbackHandler.call_event`` passes the model and the loaders, but no trainer.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None
