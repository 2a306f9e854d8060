"""Recording does not import what the program has not imported of torch."""

import subprocess
import sys
from threading import Thread

import torch

from profkit.capture.recording.quiet_profiler import without_inductor

PROGRAM = """\
import sys, torch, profkit
with profkit.trace("block") as t:
    torch.ones(3).exp()
print("torch._inductor" in sys.modules, torch.__getattr__.__module__, t.path is not None)
print(hasattr(torch, "_inductor"))
"""


def test_recording_does_not_import_the_compiler(tmp_path: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=str(tmp_path),
    )
    assert ended.stdout == "False torch True\nTrue\n"


def test_other_threads_import_what_they_want_meanwhile() -> None:
    has_dynamo: list[bool] = []
    with without_inductor():
        thread = Thread(target=lambda: has_dynamo.append(hasattr(torch, "_dynamo")))
        thread.start()
        thread.join()
    assert has_dynamo == [True]
