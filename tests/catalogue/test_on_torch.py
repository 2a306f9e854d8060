"""What PyTorch itself records is what the rules look for."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

from profkit.api import analyze
from profkit.engine.context import Context
from profkit.engine.families.reads import ReadKind, read_kinds
from profkit.index.device.syncs import find_user_reads
from profkit.model.finding import Finding
from tests.traces import load_trace

N_STEPS = 4
VALUES = torch.arange(6.0)


def recorded(step: Callable[[], object], path: Path) -> Path:
    """Return a trace of some steps by PyTorch's own profiler, with stacks and memory."""
    step()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=N_STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        with_stack=True,
        profile_memory=True,
    ) as profiler:
        for _ in range(N_STEPS + 1):
            step()
            profiler.step()
    return path


def found(step: Callable[[], object], rule: str, tmp_path: Path) -> tuple[Finding, ...]:
    chosen = rule.split(",")
    return analyze(recorded(step, tmp_path / "t.json"), select=chosen, strict=True).findings


def branch() -> int:
    return 1 if VALUES[0] else 2


@pytest.mark.parametrize(
    "read",
    [
        lambda: [VALUES[1].item()],
        lambda: float(VALUES[1]),
        branch,
        lambda: VALUES[VALUES > 2],
        lambda: [VALUES.nonzero()],
        lambda: VALUES.masked_select(VALUES > 2),
        lambda: torch.unique(VALUES),
        lambda: torch.equal(VALUES, VALUES),
        lambda: f"{VALUES[1]:.3f}",
        lambda: str(VALUES[1]),
    ],
    ids=[
        "item",
        "float",
        "if",
        "mask",
        "nonzero",
        "masked_select",
        "unique",
        "equal",
        "format",
        "print",
    ],
)
def test_each_way_to_read_counts_on_the_line_that_reads(
    tmp_path: Path, read: Callable[[], object]
) -> None:
    report = analyze(recorded(read, tmp_path / "t.json"), strict=True)
    line = report.summary.sync_lines[0]
    assert (line.location.file or "").endswith(Path(__file__).name)
    assert line.n_in_step >= 1
    assert not [finding for finding in report.findings if finding.rule.startswith("SYN")]


def test_the_reads_of_a_scaler_and_of_clipping_are_told_from_others(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu")

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(model(VALUES).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        VALUES[0].item()

    ctx = Context(load_trace(recorded(step, tmp_path / "t.json")))
    rows = find_user_reads(ctx.events, ctx.tree)
    rows = rows[ctx.step_of(rows) >= 0]
    kinds = [ReadKind(kind) for kind in read_kinds(ctx, rows).tolist()]
    assert kinds == [ReadKind.NORM, ReadKind.SCALER, ReadKind.VALUE] * N_STEPS


def test_an_optimizer_a_sampler_and_a_mask_that_is_set_are_not(tmp_path: Path) -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batches = iter(DataLoader(TensorDataset(torch.randn(64, 6)), batch_size=2, shuffle=True))

    def step() -> None:
        (batch,) = next(batches)
        batch[batch > 0] = 0.0
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    assert found(step, "item-sync", tmp_path) == ()


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_optimizer_that_loops_is_found(tmp_path: Path, *, is_fused: bool) -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused)

    def step() -> None:
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()

    findings = found(step, "unfused-optimizer", tmp_path)
    assert [finding.locations[0].function for finding in findings] == ([] if is_fused else ["step"])


def test_growth_is_stated_to_the_byte(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        kept.append(torch.zeros(25_000))
        torch.zeros(50_000).sum()

    (finding,) = found(step, "unfreed-tensors", tmp_path)
    assert finding.cost.per_step_bytes == 100_000
    assert finding.n == N_STEPS
    assert finding.locations[0].function == "step"


def test_training_with_state_and_gradients_does_not_grow(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    last = [torch.zeros(1)]

    def step() -> None:
        optimizer.zero_grad()
        last[0] = model(torch.randn(256, 64)).square().mean()
        last[0].backward()
        optimizer.step()

    assert found(step, "unfreed-tensors", tmp_path) == ()


def test_gradients_that_add_up_do_not_grow(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    assert found(lambda: model(torch.randn(256, 64)).sum().backward(), "MEM001", tmp_path) == ()


def test_a_graph_that_is_kept_is_found_with_what_it_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    batch = torch.randn(256, 64)
    losses: list[torch.Tensor] = []
    findings = found(lambda: losses.append(model(batch).mean()), "unfreed-tensors", tmp_path)
    # Each ReLU saves its result, which also is the next layer's input: 256 by 64 floats, twice.
    grown = sum(finding.cost.per_step_bytes or 0 for finding in findings)
    assert 2 * 256 * 64 * 4 <= grown <= 2 * 256 * 64 * 4 + 64


def test_no_graph_is_the_cure(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    batch = torch.randn(256, 64)
    losses: list[torch.Tensor] = []
    step = torch.no_grad()(lambda: losses.append(model(batch).mean()))
    assert found(step, "unfreed-tensors", tmp_path) == ()
