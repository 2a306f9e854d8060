"""What the callbacks of trainers share, without a trainer."""

from pathlib import Path

import pytest

import profkit
from profkit.capture.recording import current
from profkit.errors import UsageError
from profkit.integrations.training import RecordsTraining


class Callback(RecordsTraining):
    """A callback of no trainer."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"leks": True}, "Callback has no argument leks. Did you mean leaks?"),
        ({"warmpu": 1}, "Callback has no argument warmpu. Did you mean warmup?"),
        ({"leaks": "yes"}, "Callback: leaks must be True or False, not 'yes'."),
    ],
)
def test_a_callback_names_itself_where_an_argument_is_wrong(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Callback("train", **options)  # type: ignore[arg-type]  # that is the mistake
    assert str(caught.value).startswith(message)


def test_a_trainer_within_another_recording_reports_its_steps_to_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current.reset_limits()
    ends: list[int] = []
    training = Callback("inner", dir=tmp_path, quiet=True).training
    with profkit.trace("outer", dir=tmp_path, quiet=True):
        monkeypatch.setattr(current, "step_listeners", [lambda: ends.append(1)])
        training.begin()
        for _ in range(3):
            training.step()
    assert len(ends) == 3
