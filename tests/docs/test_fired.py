"""The page of what has made each rule fire is true."""

import json

import pytest

from docs import fired
from profkit.engine.registry import rules
from tests.corpus.recordings import CORPUS, needs_corpus

RECORDED = json.loads(fired.RECORDED.read_text())
NAMES = {rule.INFO.id: rule.INFO.name for rule in rules()}


def test_each_rule_has_fired_or_says_why_not() -> None:
    shown = {*RECORDED["recordings"], *fired.find_programs(), *fired.find_gpu_programs()}
    assert shown <= set(NAMES)
    silent = [rule.INFO for rule in rules() if rule.INFO.id not in shown]
    assert [info.id for info in silent if not info.no_example] == []


def test_the_programs_are_there_and_tests_name_their_rule() -> None:
    paths = {path for programs in fired.find_programs().values() for path in programs}
    assert [path for path in paths if not (fired.ROOT / path).is_file()] == []
    for rule, path in RECORDED["tests"].items():
        text = (fired.ROOT / path).read_text()
        assert rule in text or NAMES[rule] in text


@needs_corpus
@pytest.mark.slow
def test_the_recordings_of_other_people_are_those_of_today() -> None:
    assert fired.find_recorded(CORPUS) == RECORDED["recordings"]
