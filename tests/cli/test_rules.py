"""``profkit rules`` shows the list of rules and their pages."""

import json

import pytest

from profkit.cli.main import main
from profkit.engine.registry import rules


def test_the_table_has_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    shown = capsys.readouterr().out
    assert rules()
    for rule in rules():
        assert rule.INFO.id in shown
        assert rule.INFO.name in shown


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_id_name_or_title_is_cut_at_any_width(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"width": width, "color": False, "unicode": True, "base": ""}
    monkeypatch.setattr("profkit.cli.rules.layout", lambda: wide)
    assert main(["rules"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for rule in rules():
        assert rule.INFO.id in shown
        assert rule.INFO.name in shown
        assert rule.INFO.title.split()[-1] in shown
        assert rule.INFO.severity in shown


@pytest.mark.parametrize("word", ["SYN001", "syn001", "item-sync"])
def test_every_rule_has_a_page(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", word]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SYN001 item-sync: ")
    assert "How to fix it" in shown


def test_a_family_is_a_shorter_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "SYN"]) == 0
    shown = capsys.readouterr().out
    assert "SYN001" in shown
    assert "DAT001" not in shown


def test_the_catalogue_can_be_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--format", "json"]) == 0
    cards = json.loads(capsys.readouterr().out)
    assert [card["id"] for card in cards] == [rule.INFO.id for rule in rules()]
    assert set(cards[0]) == {"id", "name", "title", "severity", "needs", "since"}


def test_an_unknown_rule_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "item-snyc"]) == 2
    assert "Did you mean 'item-sync'?" in capsys.readouterr().err
