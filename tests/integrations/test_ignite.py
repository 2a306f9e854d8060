"""The handler for engines of PyTorch-Ignite, in real engines."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from profkit.integrations.training import figures
from tests.integrations.trainings import LOADER, OPTIMIZER, run_example, steps_of
from tests.step_counts import count_steps

if TYPE_CHECKING:
    from profkit.integrations.ignite import ProfkitHandler

EXAMPLE = "ignite_outputs_kept"
# Importing it alone takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_ignite", "_fresh")]


@pytest.fixture(scope="module")
def _ignite() -> None:
    pytest.importorskip("ignite.engine", reason="PyTorch-Ignite is not installed")


def batches(n: int) -> DataLoader[torch.Tensor]:
    """Return a loader of batches of two rows."""
    return DataLoader(torch.randn(2 * n, 16), batch_size=2)  # type: ignore[arg-type]


def attach(*, fails_at: int = 0) -> "tuple[Any, ProfkitHandler]":
    """Return an engine that evaluates after each epoch by another operator, and the handler.

    Args:
        fails_at: The iteration that raises, from 1.
    """
    from ignite.engine import Engine, Events

    from profkit.integrations.ignite import ProfkitHandler

    layer = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def update(engine: Any, batch: torch.Tensor) -> None:  # noqa: ANN401  (an Engine)
        if engine.state.iteration == fails_at:
            raise ZeroDivisionError("in the update")
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()

    evaluator = Engine(lambda _engine, batch: layer(batch).sinh())
    trainer, handler = Engine(update), ProfkitHandler(quiet=True)
    handler.attach(trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(batches(2)))
    return trainer, handler


def test_a_step_is_an_iteration_with_the_wait_for_its_data() -> None:
    trainer, handler = attach()
    trainer.run(batches(5), max_epochs=2)

    steps = steps_of(handler.path)
    # The fifth iteration is the last of its epoch: those after the evaluation are recorded.
    assert [step.number for step in steps] == [5, 6, 7]
    for step in steps:
        assert step.count(OPTIMIZER) == step.count("aten::linear") == 1
        assert step.count("aten::sinh") == 0
    # The engine asks for one batch more than the loader has before it begins anew.
    assert [step.count(LOADER) for step in steps] == [2, 1, 1]

    report = handler.report
    assert report is not None
    assert report.source.step_definition == "the steps of the trainer"
    assert report.summary.memory is not None
    assert report.summary.memory.n_monitored_steps == 10
    assert {name: trainer.state.metrics[name] for name in figures(report)} == figures(report)


def test_the_wait_for_data_that_no_loader_of_torch_reads_is_measured() -> None:
    def rows() -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.005)
            yield torch.randn(2, 16)

    trainer, handler = attach()
    trainer.run(rows(), max_epochs=1, epoch_length=8)
    assert handler.report is not None
    summary = handler.report.summary
    assert count_steps(summary) == 3
    assert all(5e6 <= step.data_wait_ns < step.dur_ns for step in summary.steps)


def test_an_exception_leaves_a_report_and_is_raised_unchanged() -> None:
    trainer, handler = attach(fails_at=7)
    with pytest.raises(ZeroDivisionError, match="in the update") as raised:
        trainer.run(batches(20))
    assert raised.value.__context__ is None
    assert [step.number for step in steps_of(handler.path)] == [4, 5]
    assert handler.report is not None


def test_an_exception_that_the_program_handles_is_left_to_it() -> None:
    from ignite.engine import Events

    trainer, handler = attach(fails_at=7)
    handled: list[BaseException] = []
    trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda _, error: handled.append(error))
    trainer.run(batches(20))
    assert [type(error) for error in handled] == [ZeroDivisionError]
    assert handler.report is not None


def test_a_training_that_is_terminated_has_a_report() -> None:
    from ignite.engine import Events

    trainer, handler = attach()
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=8), trainer.terminate)
    trainer.run(batches(20))
    assert [step.number for step in steps_of(handler.path)] == [4, 5, 6]
    assert trainer.state.metrics["profkit/step_ms"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["40"], ["40", "--cured"]], ids=["fault", "cured"])
def test_the_example_has_its_problem_alone(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = run_example(EXAMPLE, arguments, monkeypatch)
    assert rules == ([] if "--cured" in arguments else ["retained-graph"])
