"""The recordings of a GPU in ``traces/gpu`` give on any machine the reports that were written down.

Without recordings there is nothing to hold; `docs/truth.md` says which are owed.
"""

import gzip
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from examples.gpu.record import OUT
from examples.gpu.recording.kept import (
    LARGEST_BYTES,
    files_of,
    report_on,
    what_a_device_must_have,
)
from examples.gpu.recording.rows import CURED, EXPECTED, ROOT
from profkit.engine.registry import rules
from traces.recordings import ANY_FOLDER

RECORDED = sorted(path.parent.name for path in OUT.glob("*/provenance.json"))
MAKE = shutil.which("make")
NAMES = {rule.INFO.id: rule.INFO.name for rule in rules()}


def stored(name: str, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((OUT / name / file).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_of_a_gpu_gives_the_report_that_was_written_down(name: str) -> None:
    report = report_on(OUT / name)
    assert report is not None
    decoded = json.loads(profkit.render(report, "json"))
    assert what_a_device_must_have(decoded) == stored(name, "expected.json")


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_written_down_names_the_fault_and_no_rule_that_should_not_speak(
    name: str,
) -> None:
    origin, expected = stored(name, "provenance.json"), stored(name, "expected.json")
    place = (f"{ANY_FOLDER}/{origin['program']}", origin["line"])
    placed = [
        (NAMES[finding["rule"]], finding["file"], finding["line"])
        for finding in expected["findings"]
    ]
    allowed = {*origin["same_rules"]}
    if origin["rule"]:
        assert (origin["rule"], *place) in placed
        allowed.add(origin["rule"])
    assert {rule for rule, _, _ in placed} <= allowed


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_of_a_gpu_is_small_and_names_no_machine(name: str) -> None:
    for path in files_of(OUT / name):
        assert path.stat().st_size <= LARGEST_BYTES
        assert path.name.startswith("host_")
        text = gzip.decompress(path.read_bytes())
        assert b"/tmp/" not in text
        if path.name.endswith(".pickle.gz"):
            assert pickle.loads(text)["device_traces"]  # noqa: S301  (a file of this repository)
        elif path.name.endswith(".pt.trace.json.gz"):
            assert json.loads(text)["profkit"]["host"] == "host"


def test_every_recording_is_of_a_program_of_the_table() -> None:
    assert {name.removesuffix(CURED) for name in RECORDED} <= set(EXPECTED)
    assert {path.parent.name for path in OUT.glob("*/*.gz")} == set(RECORDED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.skipif(MAKE is None, reason="there is no make here")
def test_the_command_for_a_gpu_says_in_one_sentence_that_there_is_none() -> None:
    made = subprocess.run(
        [
            str(MAKE),
            "--no-print-directory",
            "-o",
            "install",
            f"BIN={Path(sys.executable).parent}",
            "gpu-test",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert made.returncode != 0
    assert made.stdout == "There is no CUDA GPU here that torch can use, and gpu-test needs one.\n"
