"""Ids that name one finding of a report on a command line.

``SYN001@train.py:41`` is the finding of rule ``SYN001`` at that line; without a line it is
``DAT001``. Where several findings of a report would have the same id, the second is
``SYN001@train.py:41#2``. Without the number, ``profkit what-if --remove`` takes an id as well.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from profkit.errors import UsageError
from profkit.model.finding import Finding
from profkit.model.location import base_name, numbered_line
from profkit.model.report import Report
from profkit.patterns import regex

_NUMBER: Final = regex(r"#\d+$")


def finding_ids(findings: Sequence[Finding]) -> list[str]:
    """Return the id of each finding of a report."""
    seen: Counter[str] = Counter()
    ids = []
    for finding in findings:
        word = finding.rule
        for where in finding.locations[:1]:
            if where.file is not None:
                word = f"{word}@{numbered_line(base_name(where.file), where.line)}"
        # A rule can have several findings at one line.
        seen[word] += 1
        ids.append(f"{word}#{seen[word]}" if seen[word] > 1 else word)
    return ids


def selector(finding_id: str) -> str:
    """Return the name of a finding in a prediction: the id without its number."""
    return _NUMBER.sub("", finding_id)


def find_finding(report: Report, word: str) -> int:
    """Find the place of a finding among the findings and faults of a report, from 0.

    Args:
        word: Its id; its number in the report, from 1; or the id or name of its rule, if that has
            no other finding.

    Raises:
        UsageError: There is none, or there are several.
    """
    findings = (*report.findings, *report.health)
    ids = finding_ids(findings)
    if word in ids and selector(word) != word:
        return ids.index(word)
    if word.isdecimal() and 1 <= int(word) <= len(findings):
        return int(word) - 1

    wanted = word.casefold()
    numbers = [
        number
        for number, (finding, id_) in enumerate(zip(findings, ids, strict=True))
        if wanted in {selector(id_).casefold(), finding.rule.casefold(), finding.name.casefold()}
    ]
    if len(numbers) == 1:
        return numbers[0]
    if numbers:
        choices = ", ".join(ids[number] for number in numbers)
        message = f"{word} is the name of {len(numbers)} findings."
        raise UsageError(message, f"Choose one of {choices}.")
    hint = f"It has {', '.join(ids)}." if ids else "It has no findings."
    raise UsageError(f"The report has no finding {word}.", hint)
