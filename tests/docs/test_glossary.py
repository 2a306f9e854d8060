"""Texts, docstrings and comments use the glossary's terms, and the glossary is on its page."""

import re

from profkit.present.glossary import GLOSSARY
from tests.docs.texts import ROOT, files, violations


def test_the_page_has_every_term_once_in_order() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert re.findall(r"^- \*\*([\w -]+)\*\*:", page, re.MULTILINE) == list(GLOSSARY)


def test_no_term_is_a_synonym_of_another() -> None:
    synonyms = {word for term in GLOSSARY.values() for word in term.not_used}
    assert not synonyms & set(GLOSSARY)


def test_texts_use_no_synonym_of_a_term() -> None:
    assert [place for path in files() for place in violations(path)] == []
