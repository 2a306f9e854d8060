"""The callback for Lightning, in real trainers."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

import profkit
from profkit.capture.process import console
from profkit.errors import UsageError
from profkit.integrations.training import Training, figures
from tests.integrations.trainings import LOADER, OPTIMIZER, mean_step_ms, run_example, steps_of
from tests.step_counts import count_steps

if TYPE_CHECKING:
    from profkit.integrations.lightning import ProfkitCallback

EXAMPLE = "lightning_losses_kept"
pytestmark = [
    pytest.mark.usefixtures("_lightning", "_fresh"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*clears events at the end of each cycle"),
]


@pytest.fixture(scope="module")
def _lightning() -> None:
    """Lightning is imported by the process that runs these tests: that takes five seconds."""
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def callback(**options: Any) -> "ProfkitCallback":  # noqa: ANN401  (those of the callback)
    from profkit.integrations.lightning import ProfkitCallback

    return ProfkitCallback(**{"quiet": True} | options)


def build_network(*, fails_at: int | None = None, leaks: bool = False) -> object:
    """Build a module whose validation runs an operator that its training does not have.

    Args:
        fails_at: The batch that raises.
        leaks: Whether each step stores 16 KiB.
    """
    import lightning.pytorch

    class Network(lightning.pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 4)
            self.outputs: list[torch.Tensor] = []

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            if number == fails_at:
                raise ZeroDivisionError("in the training step")
            if leaks:
                self.outputs.append(torch.ones(4096))
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def validation_step(self, batch: torch.Tensor, _number: int) -> None:
            self.layer(batch).sinh()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Network()


def fitted(module: object, n_batches: int, own: "ProfkitCallback", **options: object) -> None:
    """Fit for one epoch of batches of two rows.

    Args:
        own: The callback of profkit.
        options: Of the trainer.
    """
    import lightning.pytorch

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.pytorch.Trainer(
        accelerator="cpu",
        max_epochs=1,
        enable_checkpointing=False,
        callbacks=[own],
        **quiet | options,
    )
    loader: DataLoader[torch.Tensor] = DataLoader(torch.randn(2 * n_batches, 16), batch_size=2)  # type: ignore[arg-type]
    trainer.fit(module, loader, loader)


def test_a_step_is_an_update_with_all_of_its_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning.pytorch.loggers import CSVLogger

    profkit_callback, logger = callback(quiet=False), CSVLogger(tmp_path, version="one")
    fitted(
        build_network(),
        20,
        profkit_callback,
        accumulate_grad_batches=2,
        val_check_interval=10,
        limit_val_batches=2,
        logger=logger,
    )
    steps = steps_of(profkit_callback.path)
    # Each fifth step is followed by a validation: the three steps that follow it are recorded.
    assert [step.number for step in steps] == [5, 6, 7]
    for step in steps:
        assert (step.count(LOADER), step.count(OPTIMIZER), step.count("aten::sinh")) == (2, 1, 0)
        assert step.count("aten::linear") == 2
    report = profkit_callback.report
    assert report is not None
    assert report.source.step_definition == "the steps of the trainer"
    assert count_steps(report.summary) == 3
    dur_us = {f"ProfilerStep#{step.number}": step.dur_us for step in steps}
    for reported in report.summary.steps:
        assert round(reported.dur_ns / 1000) == pytest.approx(dur_us[reported.name], abs=1)
    assert min(step.data_wait_ns for step in report.summary.steps) > 0
    assert report.summary.memory is not None
    assert report.summary.memory.n_monitored_steps == 10
    printed = capsys.readouterr().err
    assert f"\n{report}\n" in printed
    logged = (tmp_path / "lightning_logs" / "one" / "metrics.csv").read_text().splitlines()
    values = dict(zip(logged[0].split(","), logged[-1].split(","), strict=True))
    assert float(values["profkit/step_ms"]) == pytest.approx(mean_step_ms(steps, report), abs=0.01)
    assert {name for name in values if "/" in name} == set(figures(report))
    assert values["step"] == "10"


def test_an_exception_leaves_a_report_and_is_raised_unchanged() -> None:
    profkit_callback = callback()
    with pytest.raises(ZeroDivisionError, match="in the training step") as raised:
        fitted(build_network(fails_at=6), 20, profkit_callback)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert profkit_callback.report is not None
    assert [step.number for step in steps_of(profkit_callback.path)] == [4, 5]


@pytest.mark.slow
def test_a_leak_is_found_in_all_steps() -> None:
    profkit_callback = callback()
    fitted(build_network(leaks=True), 60, profkit_callback, limit_val_batches=0)
    assert profkit_callback.report is not None
    (leak,) = [
        finding for finding in profkit_callback.report.findings if finding.cost.per_step_bytes
    ]
    assert leak.cost.per_step_bytes == 4 * 4096
    assert "outputs" in leak.message


def test_the_profiler_of_the_trainer_has_torchs_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning.pytorch.profilers import PyTorchProfiler

    profkit_callback = callback()
    fitted(
        build_network(),
        12,
        profkit_callback,
        profiler=PyTorchProfiler(dirpath=tmp_path, filename="own"),
    )
    assert profkit_callback.path is None
    assert list(tmp_path.glob("*own*"))
    assert "Another torch profiler is running" in capsys.readouterr().err


def test_a_callback_that_fails_does_not_break_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_self: Training) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Training, "step", broken)
    profkit_callback = callback()
    fitted(build_network(), 6, profkit_callback)
    warned = [line for line in capsys.readouterr().err.splitlines() if "fault of ours" in line]
    assert len(warned) == 1
    assert "the callback failed; the training goes on without it" in warned[0]
    assert profkit_callback.report is None


def test_it_leaves_the_steps_to_a_recording_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    profkit_callback = callback(quiet=False)
    with profkit.trace("outer", quiet=True, stacks=False):
        fitted(build_network(), 6, profkit_callback)
    assert profkit_callback.path is None
    assert profkit_callback.report is None
    assert "“train” is part of another recording" in capsys.readouterr().err


def test_a_wrong_argument_is_an_error_where_it_is_given() -> None:
    with pytest.raises(UsageError, match="active"):
        callback(active=0)
    assert not console._printed


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["40"], ["40", "--cured"]], ids=["fault", "cured"])
def test_the_example_has_its_problem_alone(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = run_example(EXAMPLE, arguments, monkeypatch)
    assert rules == ([] if "--cured" in arguments else ["retained-graph"])
    assert capsys.readouterr().out.startswith("40 steps, last loss ")
