"""The reports of the recorded traces are as expected."""

import json
from pathlib import Path
from typing import Any

import pytest
from isal import igzip

import profkit
from traces.record import HOME, PROGRAMS
from traces.recordings import ANY_FOLDER, SUFFIX, expected_part

MAX_BYTES = 300_000


def trace_of(name: str) -> Path:
    (path,) = (HOME / name).glob(f"*{SUFFIX}")
    return path


def stored(name: str, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HOME / name / file).read_text())
    return content


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_trace_gives_the_expected_report(name: str) -> None:
    report = json.loads(profkit.render(profkit.analyze(trace_of(name)), "json"))
    assert expected_part(report) == stored(name, "expected.json")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_expected_report_has_only_the_finding_of_the_planted_fault(name: str) -> None:
    origin, expected = stored(name, "provenance.json"), stored(name, "expected.json")
    places = [
        (finding["rule"], finding["file"], finding["line"]) for finding in expected["findings"]
    ]
    place = f"{ANY_FOLDER}/{origin['program']}"
    assert places == ([(origin["rule"], place, origin["line"])] if origin["rule"] else [])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_trace_is_small_and_names_no_machine(name: str) -> None:
    path = trace_of(name)
    assert path.stat().st_size < MAX_BYTES
    text = igzip.decompress(path.read_bytes())
    capture = json.loads(text)["profkit"]
    assert capture["host"] == "host"
    assert all(file.startswith(ANY_FOLDER) for file in capture["paths"].values())
    assert b"/tmp/" not in text


def test_every_folder_is_listed_in_programs_json() -> None:
    folders = {path.name for path in HOME.iterdir() if path.is_dir()}
    assert folders - {"__pycache__", "gpu"} == set(PROGRAMS)
