"""Every cause of idle time has its words and its colour in all formats."""

from typing import get_args

import pytest

from profkit.model.device_summary import IdleCause
from profkit.model.step_summary import IDLE
from profkit.model.timeline import SliceKind
from profkit.present.idle_causes import IDLE_CAUSES, idle_text
from profkit.present.labels import part_label
from profkit.present.part_colors import SERIES, color_number

CAUSES = get_args(IdleCause)


def test_each_cause_has_a_text_and_a_lane_of_the_timeline() -> None:
    assert tuple(IDLE_CAUSES) == CAUSES
    assert {f"{IDLE}{cause}" for cause in CAUSES} <= set(get_args(SliceKind))


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_a_reason_or_what_a_device_waits_for(cause: IdleCause) -> None:
    text = IDLE_CAUSES[cause]
    assert text.reason or text.waits_for
    assert 1 <= text.color <= len(SERIES)


def test_a_cause_of_a_later_version_has_its_name_and_the_reason_is_unknown() -> None:
    kind = f"{IDLE}moon"
    assert part_label(kind) == "GPU idle: moon"
    assert color_number(kind) == IDLE_CAUSES["unknown"].color
    text = idle_text(kind)
    assert text is not None
    assert text.reason == "for a cause that the recording does not show"


def test_work_is_not_idle_time() -> None:
    assert idle_text("compute") is None
    assert part_label("compute") == "compute"
