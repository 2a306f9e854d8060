"""A rule's thresholds: its own, or the user's where they differ."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from profkit.engine.detector import Rule
from profkit.errors import UsageError

Overrides = Mapping[str, Mapping[str, Any]]
"""By the name of a rule, the names and values of the thresholds to change."""


def thresholds_for(rule: Rule, overrides: Overrides) -> Any:  # noqa: ANN401  (each rule has its own)
    """The thresholds that a rule is run with.

    Args:
        overrides: What the user changed, over all rules.

    Raises:
        UsageError: The rule has no such threshold, or the value is of another kind.
    """
    changed = dict(overrides.get(rule.INFO.name, {}))
    fields = {field.name: field for field in dataclasses.fields(rule.Thresholds)}
    for name, value in changed.items():
        if name not in fields:
            message = f"The rule {rule.INFO.name} has no threshold {name}."
            raise UsageError(message, f"It has {', '.join(fields) or 'none'}.")
        default = fields[name].default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            message = f"The threshold {name} of {rule.INFO.name} is a number, not {value!r}."
            raise UsageError(message, f"Its default is {default}.")
    return rule.Thresholds(**changed)
