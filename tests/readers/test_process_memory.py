"""Large arrays take the memory of earlier ones where a process asks for it."""

import platform
import subprocess
import sys

import pytest

ARRAYS = """\
import sys
import numpy as np
from profkit.readers.process_memory import reuse_free_memory
if sys.argv[1] == "reused":
    reuse_free_memory()
for _ in range(2):
    big = np.ones(1 << 23)
    stays = bytes(100)
    del big
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def resident_kib(how: str) -> int:
    command = [sys.executable, "-c", ARRAYS, how]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_the_pages_of_a_large_array_stay_for_the_next_one() -> None:
    returned, reused = resident_kib("returned"), resident_kib("reused")
    assert 60_000 < reused - returned < 90_000
