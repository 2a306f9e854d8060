"""A rule's page in sections of text and code."""

import pytest

from profkit.engine.detector import Rule
from profkit.engine.registry import rules
from profkit.present.rule_page import Passage, rule_page

SECTIONS = (
    "What it finds", "Why it matters", "How to fix it", "Example", "Use instead", "Reads",
    "When to ignore this", "Source",
)  # fmt: skip


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.INFO.id)
def test_every_rule_has_every_section_and_code_to_write_instead(rule: Rule) -> None:
    page = rule_page(rule)
    assert tuple(page) == SECTIONS
    assert all(page.values())
    assert any(passage.is_code for passage in page["Use instead"])
    assert not [p for section in page.values() for p in section if p.text.startswith("::")]


def test_paragraphs_are_one_line_and_code_keeps_its_own() -> None:
    (item_sync,) = (rule for rule in rules() if rule.INFO.name == "item-sync")

    page = rule_page(item_sync)
    assert page["Use instead"] == (
        Passage(
            "for batch in loader:\n"
            "    losses.append(train_step(batch).detach())\n"
            "losses = torch.stack(losses).tolist()",
            is_code=True,
        ),
    )

    (reason,) = page["Why it matters"]
    assert not reason.is_code
    assert reason.text.startswith(
        "Normally the host runs ahead of the GPU. To read a value it waits"
    )
    assert "\n" not in reason.text
