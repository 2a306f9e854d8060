"""On a real device: syncs are reported at their line, and other work passes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import profkit

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
Work = Callable[[torch.Tensor], object]


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """Numbers on the device, which is idle."""
    values = torch.arange(64.0, device="cuda")
    torch.cuda.synchronize()
    return values


def through_an_event(_: torch.Tensor) -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


SYNCS: dict[str, Work] = {
    "item": lambda x: x[3].item(),
    "float": lambda x: float(x[3]),
    "truth": lambda x: bool(x[3] > 0),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "print": str,
    "nonzero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 3],
    "a device scalar as an index": lambda x: list(range(64))[x[3].to(torch.int64)],
    "a copy from pageable memory": lambda _: torch.ones(1 << 20).cuda(),
    "the whole device": lambda _: torch.cuda.synchronize(),
    "a stream": lambda _: torch.cuda.current_stream().synchronize(),
    "an event": through_an_event,
}
PASSES: dict[str, Work] = {
    "arithmetic": lambda x: (x @ x) * 2 + 1,
    "where": lambda x: torch.where(x > 3, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 3, 0.0),
    "a tensor created on the device": torch.zeros_like,
    "a copy from pinned memory": lambda x: x.copy_(
        torch.ones(64, pin_memory=True), non_blocking=True
    ),
    "a copy to pinned memory": lambda x: torch.empty(64, pin_memory=True).copy_(
        x, non_blocking=True
    ),
    "recording an event": lambda _: torch.cuda.Event().record(),
    "a stream that waits for another": lambda _: torch.cuda.Stream().wait_stream(
        torch.cuda.current_stream()
    ),
}


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_is_an_error_at_its_line(name: str, x: torch.Tensor) -> None:
    work = SYNCS[name]
    with pytest.raises(profkit.HostSyncError, match=Path(__file__).name), profkit.no_sync():
        work(x)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize("name", PASSES)
def test_work_without_a_sync_passes(name: str, x: torch.Tensor) -> None:
    work = PASSES[name]
    work(x)  # loads the kernel, which may synchronize
    with profkit.no_sync() as guard:
        work(x)
    assert guard.lines == ()


def test_every_sync_is_counted(x: torch.Tensor) -> None:
    with profkit.no_sync(raises=False) as guard:
        for _ in range(100):
            x[0].item()
    assert [line.n_calls for line in guard.lines] == [100]


def test_a_training_step_without_a_sync_passes() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    network.cuda()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    batch, labels = torch.randn(32, 64, device="cuda"), torch.randint(4, (32,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch), labels).backward()
        optimizer.step()

    step()
    with profkit.no_sync() as guard:
        step()
    assert guard.lines == ()


IN_AN_OPERATOR = """
import torch, profkit
x = torch.ones(4, device="cuda")
with profkit.no_sync(raises=False, extensions=%s) as guard:
    torch.ops.aten.nonzero(x)
    x[0].item()
print(sum(line.n_calls for line in guard.lines))
"""


def test_the_gpu_trace_reports_syncs_in_operators_and_counts_none_twice() -> None:
    # In a separate process: torch's GPU trace cannot be switched off again.
    counted = {
        extensions: int(
            subprocess.run(
                [sys.executable, "-c", IN_AN_OPERATOR % extensions],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for extensions in (False, True)
    }
    assert counted[True] >= 2
    assert counted[False] <= counted[True]
