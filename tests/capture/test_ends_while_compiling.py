"""A recording whose time is up while the program is being compiled."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import time
import torch
from torch.autograd import profiler

def backend(graph, inputs):
    end = time.monotonic() + 0.6
    while time.monotonic() < end:  # Python can run a signal's handler between any two of these
        pass
    print("recorded to the end of compilation:", profiler._is_profiler_enabled)
    return graph.forward

compiled = torch.compile(torch.nn.Linear(2, 2), backend=backend)
compiled(torch.ones(1, 2)).sum().backward()
end = time.monotonic() + 0.6
while profiler._is_profiler_enabled and time.monotonic() < end:
    pass
print("still recorded:", profiler._is_profiler_enabled)
"""
RUN = """\
import sys
from profkit.capture import step_detection
step_detection.STACKS_SECONDS = 0.2
from profkit.cli.main import main
sys.argv = ["profkit", "run", "program.py"]
main()
"""


def test_it_ends_after_the_compilation(tmp_path: Path) -> None:
    """Ended within it, the program ended with an error or with a segmentation fault."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recorded to the end of compilation: True\nstill recorded: False\n" in done.stdout
