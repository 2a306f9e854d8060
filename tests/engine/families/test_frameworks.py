"""Fixes name the options of the library that runs the program's loop."""

from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.testing import TraceBuilder
from tests.sampled_steps import FILE, function, op_lines, recording

TRANSFORMERS = ("transformers/trainer.py", 2400, "_inner_training_loop")
LIGHTNING = ("lightning/pytorch/trainer/trainer.py", 500, "fit")
NOT_A_TRAINER = ("accelerate/optimizer.py", 140, "step")
UPDATE = ("aten::mul_", "aten::add_") * 20
MARK = "Optimizer.step#AdamW.step"


def fix_of(rule: str, b: TraceBuilder, tmp_path: Path) -> str:
    report = analyze(b.write(tmp_path / "run.pt.trace.json.gz"), select=[rule], strict=True)
    (finding,) = report.findings
    return finding.fix


def train_on(gpu: str, capability: tuple[int, int], within: tuple[str, int, str]) -> TraceBuilder:
    """Steps of products in float32 and of an optimizer, which a function of a library runs."""
    major, minor = capability
    device = {"id": 0, "name": gpu, "computeMajor": major, "computeMinor": minor}
    b = TraceBuilder(head={"deviceProperties": [device]}, stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 5, "main"), b.frame(*within):
            sgemm = "volta_sgemm_128x64_tn"
            b.launch("aten::mm", kernel=sgemm, host_ns=9_000, device_ns=500_000)
            with b.annotation(MARK):
                for name in UPDATE:
                    b.launch(name, kernel="elementwise", host_ns=50_000, device_ns=500)
            b.synchronize()
    return b


@pytest.mark.parametrize(
    ("rule", "within", "fix"),
    [
        ("unfused-optimizer", TRANSFORMERS, 'Pass `optim="adamw_torch_fused"` to `Training'),
        ("unfused-optimizer", LIGHTNING, "Pass `fused=True` to `torch.optim.AdamW`"),
        ("unfused-optimizer", NOT_A_TRAINER, "Pass `fused=True` to `torch.optim.AdamW`"),
        ("launch-bound", TRANSFORMERS, "Pass `torch_compile=True, torch_compile_mode="),
        ("launch-bound", LIGHTNING, "Try `torch.compile(model, mode="),
    ],
)
def test_options_of_the_library_that_calls_the_optimizer(
    tmp_path: Path, rule: str, within: tuple[str, int, str], fix: str
) -> None:
    assert fix_of(rule, train_on("NVIDIA H100", (9, 0), within), tmp_path).startswith(fix)


@pytest.mark.parametrize(
    ("gpu", "capability", "rule", "within", "fix"),
    [
        ("V100", (7, 0), "half-precision-unused", TRANSFORMERS, "Pass `fp16=True` to `Training"),
        ("V100", (7, 0), "half-precision-unused", LIGHTNING, 'Pass `precision="16-mixed"` to'),
        ("V100", (7, 0), "half-precision-unused", NOT_A_TRAINER, "Run the forward pass and the"),
        ("H100", (9, 0), "float32-matmul", TRANSFORMERS, "Pass `tf32=True` to `TrainingArg"),
        ("H100", (9, 0), "float32-matmul", LIGHTNING, "Call `torch.set_float32_matmul_prec"),
    ],
)
def test_precision_is_an_option_of_a_trainer(
    tmp_path: Path,
    gpu: str,
    capability: tuple[int, int],
    rule: str,
    within: tuple[str, int, str],
    fix: str,
) -> None:
    assert fix_of(rule, train_on(gpu, capability, within), tmp_path).startswith(fix)


@pytest.mark.parametrize(
    ("library", "line", "fix"),
    [
        ("transformers", 26, 'Pass `optim="adamw_torch_fused"` to `TrainingArguments`.'),
        ("transformers", 27, "Pass `fused=True` to `torch.optim.AdamW`"),  # another line
        ("accelerate", 26, "Pass `fused=True` to `torch.optim.AdamW`"),
    ],
)
def test_without_calls_samples_of_the_optimizers_line_tell_the_library(
    tmp_path: Path, library: str, line: int, fix: str
) -> None:
    def step(b: TraceBuilder) -> None:
        b.compute("aten::mm", 1_000_000)
        with b.annotation(MARK):
            for name in UPDATE:
                b.compute(name, 50_000)

    lines = op_lines(**{"aten::mm": 15, MARK: 26, "aten::mul_": 26, "aten::add_": 26})
    functions = [function("main", line, 30, library=library), function("forward", 15, 20)]
    b = recording(functions, step, lines)
    assert fix_of("unfused-optimizer", b, tmp_path).startswith(fix)


@pytest.mark.parametrize(
    ("file", "fix"),
    [("vllm/v1/worker/gpu_model_runner.py", "Leave out `enforce_eager"), (FILE, "Try `torch.comp")],
)
def test_vllm_captures_graphs_by_itself(tmp_path: Path, file: str, fix: str) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame(file, 100, "execute_model"):
            for _ in range(60):
                b.launch("aten::add", kernel="add", host_ns=20_000, device_ns=5_000)
    assert fix_of("launch-bound", b, tmp_path).startswith(fix)
