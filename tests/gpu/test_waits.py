"""On a real device: what waits is heard at its line, and what does not wait passes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import profkit

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
Does = Callable[[torch.Tensor], object]


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """A few numbers on the device, which has done all its work."""
    values = torch.arange(64.0, device="cuda")
    torch.cuda.synchronize()
    return values


def through_an_event(_: torch.Tensor) -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


WAITS: dict[str, Does] = {
    "item": lambda x: x[3].item(),
    "float": lambda x: float(x[3]),
    "truth": lambda x: bool(x[3] > 0),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "print": str,
    "nonzero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 3],
    "a number of the device as an index": lambda x: list(range(64))[x[3].to(torch.int64)],
    "a copy from pageable memory": lambda _: torch.ones(1 << 20).cuda(),
    "the whole device": lambda _: torch.cuda.synchronize(),
    "a stream": lambda _: torch.cuda.current_stream().synchronize(),
    "an event": through_an_event,
}
PASSES: dict[str, Does] = {
    "arithmetic": lambda x: (x @ x) * 2 + 1,
    "where": lambda x: torch.where(x > 3, x, 0.0),
    "a mask that is filled": lambda x: x.masked_fill(x > 3, 0.0),
    "a tensor made on the device": torch.zeros_like,
    "a copy from pinned memory": lambda x: x.copy_(
        torch.ones(64, pin_memory=True), non_blocking=True
    ),
    "a copy to pinned memory": lambda x: torch.empty(64, pin_memory=True).copy_(
        x, non_blocking=True
    ),
    "an event that is recorded": lambda _: torch.cuda.Event().record(),
    "one stream that waits for another": lambda _: torch.cuda.Stream().wait_stream(
        torch.cuda.current_stream()
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_an_error_at_its_line(name: str, x: torch.Tensor) -> None:
    does = WAITS[name]
    with pytest.raises(profkit.HostSyncError, match=Path(__file__).name), profkit.no_sync():
        does(x)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize("name", PASSES)
def test_what_does_not_wait_passes(name: str, x: torch.Tensor) -> None:
    does = PASSES[name]
    does(x)  # the first time a kernel is loaded, which may wait
    with profkit.no_sync() as guard:
        does(x)
    assert guard.lines == ()


def test_as_many_waits_are_counted_as_there_are(x: torch.Tensor) -> None:
    with profkit.no_sync(raises=False) as guard:
        for _ in range(100):
            x[0].item()
    assert [line.n_calls for line in guard.lines] == [100]


def test_a_training_step_that_reads_nothing_back_passes() -> None:
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


def test_the_trace_hears_of_waits_in_operators_and_counts_none_twice() -> None:
    # In a process of its own: torch's GPU trace can't be switched off again.
    heard = {
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
    assert heard[True] >= 2
    assert heard[False] <= heard[True]
