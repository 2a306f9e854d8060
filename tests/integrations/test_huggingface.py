"""The callback for the ``Trainer`` of Transformers, in real trainers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from profkit.integrations.training import figures
from tests.docs.blocks import ROOT
from tests.integrations.trainings import LOADER, OPTIMIZER, mean_step_ms, run_example, steps_of

if TYPE_CHECKING:
    from profkit.integrations.huggingface import ProfkitTrainerCallback

EXAMPLE = "huggingface_slow_dataset"
# Importing it alone takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_transformers", "_fresh")]


@pytest.fixture(scope="module")
def _transformers() -> None:
    """Transformers is imported by the process that runs these tests: that takes seconds."""
    pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="its Trainer needs Accelerate")


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows, of which one may raise."""

    def __init__(self, n: int, fails_at: int | None = None) -> None:
        self.n = n
        self.fails_at = fails_at

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index == self.fails_at:
            raise ZeroDivisionError("in the data set")
        return {"rows": torch.ones(16)}


class Network(torch.nn.Module):
    """A network that runs another operator in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(rows)
        return {"loss": out.square().mean(), "out": out if self.training else out.sinh()}


def callback(**options: Any) -> "ProfkitTrainerCallback":  # noqa: ANN401  (those of the callback)
    from profkit.integrations.huggingface import ProfkitTrainerCallback

    return ProfkitTrainerCallback(**{"quiet": True} | options)


def train(
    n_batches: int, own: "ProfkitTrainerCallback", rows: Rows | None = None, **options: object
) -> Any:  # noqa: ANN401
    """Return the trainer, after one epoch of batches of two rows."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=2,
        num_train_epochs=1,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        log_level="error",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **options,
    )
    rows = rows or Rows(2 * n_batches)
    trainer = Trainer(
        Network(), arguments, train_dataset=rows, eval_dataset=Rows(4), callbacks=[own]
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def test_a_step_is_an_update_with_all_of_its_batches(capsys: pytest.CaptureFixture[str]) -> None:
    profkit_callback = callback(quiet=False)
    trainer = train(
        20, profkit_callback, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=5
    )

    steps = steps_of(profkit_callback.path)
    # Each fifth step is followed by an evaluation: the three steps that follow it are recorded.
    assert [step.number for step in steps] == [5, 6, 7]
    for step in steps:
        assert (step.count(OPTIMIZER), step.count("aten::sinh")) == (1, 0)
        assert step.count(LOADER) == step.count("aten::linear") == 2

    report = profkit_callback.report
    assert report is not None
    assert report.source.step_definition == "the steps of the trainer"
    assert min(step.data_wait_ns for step in report.summary.steps) > 0
    assert report.summary.memory is not None
    assert report.summary.memory.n_monitored_steps == 10
    assert f"\n{report}\n" in capsys.readouterr().err

    logged = trainer.state.log_history[-1]
    assert {name: logged[name] for name in figures(report)} == figures(report)
    assert logged["profkit/step_ms"] == pytest.approx(mean_step_ms(steps, report), abs=0.01)
    assert logged["step"] == 10


def test_a_training_that_raised_is_reported_when_the_next_one_begins() -> None:
    profkit_callback = callback()
    with pytest.raises(ZeroDivisionError, match="in the data set") as raised:
        train(20, profkit_callback, Rows(40, fails_at=16))
    assert raised.value.__context__ is None
    before = profkit_callback.report
    profkit_callback.finish()
    assert before is None
    assert profkit_callback.report is not None
    assert [step.number for step in steps_of(profkit_callback.path)][:2] == [4, 5]
    profkit_callback.finish()


@pytest.mark.slow
def test_a_program_that_ends_with_an_exception_has_a_report(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "from tests.integrations.test_huggingface import Rows, callback, train\n"
        "train(20, callback(quiet=False), Rows(40, fails_at=16))\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert "ZeroDivisionError: in the data set" in ended.stderr
    assert "\nStep time: " in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["12"], ["12", "--cured"]], ids=["fault", "cured"])
def test_the_example_has_its_problem_alone(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = run_example(EXAMPLE, arguments, monkeypatch)
    assert rules == ([] if "--cured" in arguments else ["starved-by-loader"])
