"""The profile for loops that use Accelerate, in real loops."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import profkit
from profkit.integrations.training import figures
from tests.integrations.trainings import LOADER, OPTIMIZER, run_example, steps_of
from tests.step_counts import count_steps

EXAMPLE = "accelerate_slow_dataset"
# Importing it alone takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_accelerate", "_fresh")]


@pytest.fixture
def _accelerate() -> Iterator[None]:
    """Accelerate without the state of an earlier accelerator, which all later ones share."""
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Loop:
    """A loop in which two batches are one update.

    Args:
        n_batches: Of two rows each.
    """

    def __init__(self, n_batches: int) -> None:
        from accelerate import Accelerator

        from profkit.integrations.accelerate import ProfkitProfile

        self.logged: dict[str, float] = {}
        self.accelerator: Any = Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.accelerator.log = self.logged.update
        rows: Any = torch.randn(2 * n_batches, 16)
        layer = torch.nn.Linear(16, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        loader: DataLoader[torch.Tensor] = DataLoader(rows, batch_size=2)
        self.parts = self.accelerator.prepare(layer, optimizer, loader)
        self.profile = ProfkitProfile(self.accelerator, quiet=True)

    def run(self, *, evaluate_every: int = 0, fails_at: int | None = None) -> None:
        """Run it.

        Args:
            evaluate_every: After so many batches another operator is called.
            fails_at: The batch that raises.
        """
        layer, optimizer, loader = self.parts
        with self.profile:
            for number, batch in enumerate(loader):
                if number == fails_at:
                    raise ZeroDivisionError("in the loop")
                with self.accelerator.accumulate(layer):
                    self.accelerator.backward(layer(batch).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                self.profile.step()
                if evaluate_every and (number + 1) % evaluate_every == 0:
                    with self.profile.paused():
                        torch.ones(2).sinh()


def test_a_step_is_an_update_with_all_of_its_batches() -> None:
    loop = Loop(20)
    loop.run(evaluate_every=10)
    steps = steps_of(loop.profile.path)
    # Each fifth step is followed by an evaluation: the three steps that follow it are recorded.
    assert [step.number for step in steps] == [5, 6, 7]
    for step in steps:
        assert (step.count(OPTIMIZER + "SGD"), step.count("aten::sinh")) == (1, 0)
        assert step.count(LOADER) == step.count("aten::linear") == 2
    report = loop.profile.report
    assert report is not None
    assert min(step.data_wait_ns for step in report.summary.steps) > 0
    assert report.summary.memory is not None
    assert report.summary.memory.n_monitored_steps == 10
    assert loop.logged == figures(report)


def test_an_exception_leaves_a_report_and_is_raised_unchanged() -> None:
    loop = Loop(20)
    with pytest.raises(ZeroDivisionError, match="in the loop") as raised:
        loop.run(fails_at=13)
    assert raised.value.__context__ is None
    assert [step.number for step in steps_of(loop.profile.path)] == [4, 5]
    assert loop.profile.report is not None


def test_steps_of_profkit_measure_the_wait_for_a_prepared_loader() -> None:
    loop = Loop(12)
    layer, _, loader = loop.parts
    batches = profkit.steps(loader, "batches", quiet=True, stacks=False)
    for batch in batches:
        layer(batch)
    assert batches.path is not None
    summary = profkit.analyze(batches.path).summary
    assert count_steps(summary) == 3
    assert all(0 < step.data_wait_ns < step.dur_ns for step in summary.steps)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["12"], ["12", "--cured"]], ids=["fault", "cured"])
def test_the_example_has_its_problem_alone(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = run_example(EXAMPLE, arguments, monkeypatch)
    assert rules == ([] if "--cured" in arguments else ["starved-by-loader"])
