"""The handler for engines of PyTorch-Ignite: ``ProfkitHandler().attach(trainer)``."""

from typing import Any

from ignite.engine import Engine, Events
from torch.utils.data import DataLoader

from profkit.integrations.training import RecordsTraining, harmless


class ProfkitHandler(RecordsTraining):
    """Records some iterations, monitors memory over all, and reports at the end of ``run()``.

    A step is an iteration: from the event ``GET_BATCH_STARTED``, so with the wait for its data, to
    the next one, with what other handlers do after it. Work between two epochs, such as an
    evaluation, is not part of a step. When ``run()`` has ended, the figures of the report are in
    ``engine.state.metrics``.
    """

    @harmless
    def attach(self, engine: Engine) -> None:
        """Record the iterations of an engine."""
        for event, handler in {
            Events.STARTED: self._on_started,
            Events.GET_BATCH_STARTED: self._on_wait,
            Events.GET_BATCH_COMPLETED: self._on_batch,
            Events.ITERATION_COMPLETED: self._on_iteration,
            Events.EPOCH_COMPLETED: self._on_epoch,
            Events.TERMINATE: self._on_end,
            Events.COMPLETED: self._on_end,
            Events.EXCEPTION_RAISED: self._on_exception,
        }.items():
            engine.add_event_handler(event, handler)

    @harmless
    def _on_started(self, _engine: Engine) -> None:
        self.training.begin()

    @harmless
    def _on_wait(self, engine: Engine) -> None:
        self.training.resume()
        if not isinstance(engine.state.dataloader, DataLoader):  # which annotates it itself
            self.training.wait_begins()

    @harmless
    def _on_batch(self, _engine: Engine) -> None:
        self.training.wait_ends()

    @harmless
    def _on_iteration(self, engine: Engine) -> None:
        self.training.step()
        length = engine.state.epoch_length
        if length and engine.state.iteration % length == 0:
            self.training.pause()

    @harmless
    def _on_epoch(self, _engine: Engine) -> None:
        self.training.pause()

    @harmless
    def _on_end(self, engine: Engine) -> None:
        self.training.end(None, engine.state.metrics.update)

    @harmless
    def _end_by(self, error: BaseException) -> None:
        self.training.end(error)

    def _on_exception(self, engine: Engine, error: BaseException) -> None:
        """Report, and raise the exception as the engine would do without a handler of this event.

        Source: ``Engine._handle_exception``.
        """
        self._end_by(error)
        handlers: Any = engine._event_handlers  # noqa: SLF001  (there is no public accessor)
        if len(handlers[Events.EXCEPTION_RAISED]) == 1:
            raise error
