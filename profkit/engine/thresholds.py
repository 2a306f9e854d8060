"""A rule's thresholds: its defaults, and the user's changes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from profkit.engine.detector import Rule
from profkit.errors import UsageError

Overrides = Mapping[str, Mapping[str, Any]]
"""The thresholds to change: by rule name, their names and values."""


def thresholds_for(rule: Rule, overrides: Overrides) -> Any:  # noqa: ANN401  (each rule has its own)
    """The thresholds that a rule runs with.

    Raises:
        UsageError: The rule has no such threshold, or the value is not a number.
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
