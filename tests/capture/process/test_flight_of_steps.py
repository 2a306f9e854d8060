"""The dump at the end of a rank that has called no collectives."""

from pathlib import Path

import pytest

from profkit.capture.process import flight_recorder
from profkit.model.flight_record import RankSteps
from profkit.readers.flight_recorder import read_dump

TIMES = {"ends_ns": [30, 50], "own_ns": [0, 1], "delayed_ns": [2, 3], "cpu_ns": [9, 8]}
STEPS = {"first": [0], **TIMES}
NO_STEPS = {"first": [0], **{name: [] for name in TIMES}}


@pytest.fixture(autouse=True)
def _second_of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_the_steps_of_a_rank_without_collectives_are_written(tmp_path: Path) -> None:
    path = flight_recorder.write(tmp_path / "a.pt.trace.json.gz", is_end=True, steps=STEPS)
    assert path is not None
    record = read_dump(Path(path))
    assert record is not None
    assert (record.rank, record.is_end, record.calls) == (1, True, ())
    assert record.steps == RankSteps(0, (30, 50), (0, 1), (2, 3), (9, 8))


@pytest.mark.parametrize("steps", [None, NO_STEPS])
def test_nothing_is_written_without_steps_and_collectives(
    tmp_path: Path, steps: dict[str, list[int]] | None
) -> None:
    assert flight_recorder.write(tmp_path / "a.pt.trace.json.gz", is_end=True, steps=steps) is None
    assert list(tmp_path.iterdir()) == []
