"""Memory is monitored in programs whose model is called in threads, as in a service."""

import itertools
from pathlib import Path

import pytest
import torch

from profkit.capture.run.thread_calls import MANY_CALLS, ThreadCalls
from profkit.model.live_memory import LiveMemory
from profkit.readers.live_memory import read_live
from tests.processes import start_forked

SERVICE = """\
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
import torch

KEPT = []
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())


def handle(number):
    with torch.no_grad():
        output = model(torch.randn(16, 64))
    if "leaks" in sys.argv:
        KEPT.append(output)
    return output.sum().item()


def thread_for_each(number):
    thread = threading.Thread(target=handle, args=(number,))
    thread.start()
    thread.join()


if "threads" in sys.argv:
    for number in range(600):
        thread_for_each(number)
else:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(handle, range(600)))
print("served")
"""
TRAINING = """\
import threading
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    for _ in range(3):
        thread = threading.Thread(target=model, args=(torch.randn(4, 8),))
        thread.start()
        thread.join()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def monitored(folder: Path, source: str, *arguments: str) -> LiveMemory:
    """Return the memory that profkit has monitored over a program."""
    (folder / "program.py").write_text(source)
    ended = start_forked(folder, "-m", "profkit", "run", "program.py", *arguments)
    assert ended.code == 0, ended.err
    (path,) = folder.rglob("*.memory.json.gz")
    return read_live(str(path))


@pytest.mark.parametrize("kind", ["pool", "threads"])
def test_growth_of_a_service_has_its_holder(tmp_path: Path, kind: str) -> None:
    live = monitored(tmp_path, SERVICE, "leaks", kind)
    (leak,) = live.leaks
    # At each scan three calls are in flight, whose tensors may be kept before they are counted.
    assert leak.per_step_bytes == pytest.approx(16 * 64 * 4, rel=0.3)
    assert "".join(leak.chains[0].parts).startswith("__main__.KEPT")
    # The call that each thread is in when a sample is taken may not be counted.
    assert 560 <= live.n_steps <= 600
    assert any("call of the model in a thread" in sentence for sentence in live.not_measured)


@pytest.mark.parametrize("kind", ["pool", "threads"])
def test_a_service_that_keeps_nothing_has_no_leak(tmp_path: Path, kind: str) -> None:
    assert monitored(tmp_path, SERVICE, kind).leaks == ()


def test_the_programs_own_steps_go_before_calls_in_threads(tmp_path: Path) -> None:
    live = monitored(tmp_path, TRAINING)
    assert live.step_definition == "optimizer"
    assert live.n_steps == pytest.approx(60, abs=1)
    assert not any("thread" in sentence for sentence in live.not_measured)


def test_calls_that_are_only_counted_are_steps_all_the_same() -> None:
    steps: list[int] = []

    class Monitor:
        """Needs each tenth step, and the number of the others."""

        n_steps = 0

        @property
        def n_idle_steps(self) -> int:
            return -self.n_steps % 10

        def step(self) -> None:
            self.n_steps += 1
            steps.append(self.n_steps)

        def count(self, n_steps: int) -> None:
            self.n_steps += n_steps

    monitor, module = Monitor(), torch.nn.Linear(1, 1)
    calls = ThreadCalls(lambda _source: monitor)  # type: ignore[arg-type, return-value]
    for _ in range(101):
        calls.note(module)
    assert steps[-1] - steps[0] == monitor.n_steps - steps[0] >= 90
    assert {step % 10 for step in steps[2:]} == {1}
    # It is a service after many calls of its model, and other modules never count.
    assert not calls.note(module)
    calls._calls = itertools.count(MANY_CALLS)
    assert calls.note(module)
    assert not calls.note(torch.nn.Linear(1, 1))
