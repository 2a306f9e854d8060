"""The windows of a capture keep what torch could lose before they are written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.region import Region, warm_up
from profkit.capture.recording.windows import RecordingWindows


def windows() -> RecordingWindows:
    return RecordingWindows(
        Options(quiet=True), all_threads=False, on_python_profiler=lambda _: None
    )


def exported(recording: ProfilerRecording, path: Path) -> list[str]:
    """Return the names of the operators in a recording's file."""
    recording.export(path)
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "cpu_op"]


def test_what_a_device_did_is_exported_before_another_profiler_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = windows()
    opened.start_main(stacks=False)
    main: Any = opened.main
    monkeypatch.setattr(ProfilerRecording, "records_devices", True)
    torch.ones(3).cos()
    opened.stop_main()

    # From here on, torch would write other times.
    monkeypatch.setattr(main._profile, "export_chrome_trace", lambda _: pytest.fail("too late"))
    opened.start_lines()
    torch.ones(3).sin()
    opened.stop_lines()
    assert exported(main, tmp_path / "main.json") == [
        "aten::ones",
        "aten::empty",
        "aten::fill_",
        "aten::cos",
    ]
    assert exported(main, tmp_path / "again.json")
    opened.drop_all()


def test_a_step_with_stacks_that_stands_for_the_others_is_exported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = windows()
    opened.start_lines()
    lines: Any = opened.lines
    monkeypatch.setattr(ProfilerRecording, "records_devices", True)
    torch.ones(3).sin()
    opened.stop_lines()
    monkeypatch.setattr(lines._profile, "export_chrome_trace", lambda _: pytest.fail("too late"))
    opened.promote_lines()
    assert opened.main is not None
    assert "aten::sin" in exported(opened.main, tmp_path / "lines.json")
    opened.drop_all()


def test_without_a_device_nothing_is_exported_before_it_is_written() -> None:
    opened = windows()
    opened.start_main(stacks=False)
    opened.stop_main()
    assert opened.main is not None
    assert not opened.main.records_devices
    assert opened.main._exported is None
    opened.drop_all()


def test_the_first_region_is_used_before_a_recording_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []
    monkeypatch.setattr(Region, "__enter__", lambda _: used.append("region"))
    monkeypatch.setattr(Region, "__exit__", lambda *_: None)
    monkeypatch.setattr(ProfilerRecording, "start", lambda _: used.append("recording"))

    # torch takes 8 to 16 ms for the first one, which would be a part of the first step.
    warm_up.cache_clear()
    opened = windows()
    opened.start_main(stacks=False)
    opened.start_lines()
    assert used == ["region", "recording", "recording"]
