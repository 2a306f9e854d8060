"""Ids of findings: what names one finding of a report on a command line.

``SYN001@train.py:41`` is the finding of rule ``SYN001`` at that line; without a line it is
``DAT001``. Where several findings of a report would have the same id, the second is
``SYN001@train.py:41#2``. Without the number, ``profkit what-if --remove`` takes an id as well.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from profkit.errors import UsageError
from profkit.model.finding import Finding
from profkit.model.location import numbered_line
from profkit.model.report import Report
from profkit.patterns import regex

_NUMBER: Final = regex(r"#\d+$")


def finding_ids(findings: Sequence[Finding]) -> list[str]:
    """The id of each finding of a report."""
    seen: Counter[str] = Counter()
    ids = []
    for finding in findings:
        word = finding.rule
        for where in finding.locations[:1]:
            if where.file is not None:
                file = where.file.replace("\\", "/").rpartition("/")[2]
                word = f"{word}@{numbered_line(file, where.line)}"
        seen[word] += 1
        ids.append(f"{word}#{seen[word]}" if seen[word] > 1 else word)
    return ids


def selector(finding_id: str) -> str:
    """What selects the finding in a prediction: the id without its number."""
    return _NUMBER.sub("", finding_id)


def numbered_finding(report: Report, word: str) -> int:
    """The place of a finding among those of a report and its faults, from 0.

    Args:
        word: Its id; its number in the report, from 1; or the id or name of its rule, if that has
            no other finding.

    Raises:
        UsageError: There is none, or there are several.
    """
    every = (*report.findings, *report.health)
    ids = finding_ids(every)
    if word in ids and selector(word) != word:
        return ids.index(word)
    if word.isdecimal() and 1 <= int(word) <= len(every):
        return int(word) - 1
    wanted = word.casefold()
    found = [
        number
        for number, (each, own) in enumerate(zip(every, ids, strict=True))
        if wanted in {selector(own).casefold(), each.rule.casefold(), each.name.casefold()}
    ]
    if len(found) == 1:
        return found[0]
    if found:
        known = ", ".join(ids[number] for number in found)
        raise UsageError(f"{word} is the name of {len(found)} findings.", f"Choose one of {known}.")
    hint = f"It has {', '.join(ids)}." if ids else "It has no findings."
    raise UsageError(f"The report has no finding {word}.", hint)
