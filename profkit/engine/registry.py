"""All rules: profkit's and the plugins'."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, cast

from profkit.engine.detector import Rule, RuleInfo
from profkit.errors import PluginError, UsageError
from profkit.plugins import discover

GROUP: Final = "profkit.detectors"
"""The package of the rules, and the entry point group of plugins."""
_PARTS: Final = ("INFO", "Thresholds", "detect")


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """Return every rule by id.

    Raises:
        PluginError: A module lacks a part of a rule, or two rules have the same id or name.
    """
    by_key: dict[str, Rule] = {}
    for module in discover(GROUP, GROUP):
        missing = [part for part in _PARTS if not hasattr(module, part)]
        if missing:
            message = f"The rule {module.__name__} has no {missing[0]}."
            raise PluginError(message, "A rule is a module with INFO, Thresholds and detect.")

        rule = cast("Rule", module)
        for key in (rule.INFO.id, rule.INFO.name):
            if key in by_key:
                message = f"The rules {by_key[key].__name__} and {module.__name__} are both {key}."
                raise PluginError(message, "Ids and names of rules are unique; uninstall one.")
            by_key[key] = rule

    return tuple(sorted(set(by_key.values()), key=lambda rule: rule.INFO.id))


def matches(info: RuleInfo, word: str) -> bool:
    """Return whether a word selects a rule: by id, by name, or by the start of its id (``SYN``)."""
    return word == info.name or info.id.upper().startswith(word.upper())


def choose_rules(
    known: tuple[Rule, ...], select: Iterable[str], ignore: Iterable[str]
) -> tuple[Rule, ...]:
    """Return the rules that are selected and not ignored; all if nothing is selected.

    Args:
        select: Ids, names or families, as in ``ignore``.

    Raises:
        UsageError: A word selects no rule, or all selected rules are ignored.
    """
    selected, ignored = tuple(select), tuple(ignore)

    for word in (*selected, *ignored):
        if not any(matches(rule.INFO, word) for rule in known):
            names = [rule.INFO.name for rule in known] + [rule.INFO.id for rule in known]
            close = get_close_matches(word, names, n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "See `profkit rules`."
            message = f"There is no rule {word}."
            raise UsageError(message, hint)

    remaining = tuple(
        rule
        for rule in known
        if (not selected or any(matches(rule.INFO, word) for word in selected))
        and not any(matches(rule.INFO, word) for word in ignored)
    )
    if not remaining and ignored:
        # A report without rules would say that there are no problems.
        raise UsageError("All selected rules are ignored.", "Ignore fewer of them.")

    return remaining
