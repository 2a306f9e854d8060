"""Any call of the system that recording, monitoring and reporting make may fail.

The program prints the same, ends with the same exit code, and no half-written file remains.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRIES = Path(__file__).with_name("faulty_run.py")


def tried(*faults: str) -> list[dict[str, Any]]:
    """How the program ended without a fault, and then with each."""
    command = [sys.executable, str(TRIES), *faults]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def assert_unbroken(result: dict[str, Any]) -> None:
    assert (result["code"], result["out"]) == (3, "end 14\n"), (result["call"], result["err"])
    assert "Traceback" not in result["err"], result["call"]
    assert "this is a bug" not in result["err"], (result["call"], result["err"])
    assert result["partial"] == [], result["call"]


@pytest.mark.slow
def test_the_program_is_unbroken_if_a_file_cannot_be_written_or_opened() -> None:
    without, written, *later = tried("one:^os.rename ", "from:^open import capture/run")
    for result in (without, written, *later):
        assert_unbroken(result)
    assert "profkit: warning: " in written["err"]
    # Others are imported when the recording has begun.
    not_started = [result for result in later if "recording could not start" in result["err"]]
    assert len(not_started) > 1
    for result in not_started:
        # Nor can what reports be imported then.
        assert "profkit: there is no report: " in result["err"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "from"])
@pytest.mark.parametrize(
    "calls", ["^[a-z_.]+ (?!import)", "^open import [a-d]", "^open import [e-z]"]
)
def test_it_is_unbroken_whatever_fails(calls: str, how: str) -> None:
    without, *results = tried(f"{how}:{calls}")
    assert len(without["calls"]) > 100
    for result in results:
        if how == "from":  # nor can what was half written be removed then
            result["partial"] = []
        assert_unbroken(result)
