"""Overhead of ``profkit.listen`` per step: while nobody asks, and while ``profkit top`` looks.

Idle: ``step()`` of an optimizer while the program listens, less the same without, and ``step()`` of
the listener; the fastest of several rounds. Looking: processor time that the program takes for one
look, as a share of the two seconds between two of them.

Run it with ``python benchmarks/listening.py``.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import profkit
from benchmarks.figures import compared
from profkit.capture.live.endpoint import Conversation
from profkit.capture.live.search import find_listening

N_CALLS = 2_000
ROUNDS = 100
TARGET_IDLE_US = 1.0
TARGET_SHARE = 0.01


def per_call_us(call: Callable[[], object]) -> float:
    """Processor time of a call in microseconds."""
    began = time.thread_time()
    for _ in range(N_CALLS):
        call()
    return (time.thread_time() - began) / N_CALLS * 1e6


def idle(folder: str) -> tuple[float, float]:
    """Microseconds that listening adds to ``step()`` of an optimizer, and those of its own.

    The two alternate, so that a change of the machine's speed affects both.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    bare, heard, own_ms = [], [], []
    for _ in range(ROUNDS):
        bare.append(per_call_us(optimizer.step))
        listening = profkit.listen("benchmark", dir=folder)
        heard.append(per_call_us(optimizer.step))
        listening.stop()
        listening = profkit.listen("benchmark", dir=folder)
        own_ms.append(per_call_us(listening.step))
        listening.stop()
    return min(heard) - min(bare), min(own_ms)


def asked(folder: str, question: dict[str, object]) -> float:
    """Processor seconds of one answer: of all threads of this process, less the asking one."""
    listening = profkit.listen("benchmark", dir=folder)
    for _ in range(600):
        listening.step()
    took = []
    with Conversation(find_listening(str(Path(folder) / "benchmark"))) as conversation:
        for _ in range(ROUNDS):
            began, thread_began = time.process_time(), time.thread_time()
            conversation.ask(question, 5.0)
            took.append(time.process_time() - began - (time.thread_time() - thread_began))
            time.sleep(0.01)
    listening.stop()
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    os.environ["PROFKIT_QUIET"] = "1"  # or else a line for each round
    with tempfile.TemporaryDirectory() as folder:
        added_us, own_us = idle(folder)
        look_s = asked(folder, {"ask": "figures", "after": 500})
        stacks_s = asked(folder, {"ask": "stacks"})
    compared("nobody asks: a step of the optimizer longer by", added_us, "µs", TARGET_IDLE_US)
    compared("nobody asks: step() of the listener", own_us, "µs", TARGET_IDLE_US)
    compared("profkit top: share of the program's time", 100 * look_s / 2, "%", 100 * TARGET_SHARE)
    print(f"profkit stacks        {stacks_s * 1e6:6.0f} µs")


if __name__ == "__main__":
    main()
