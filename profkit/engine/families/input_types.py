"""Operators by the type of their first tensor, where types were recorded."""

from collections.abc import Collection

import numpy as np

from profkit.engine.context import Context
from profkit.index.compute.inputs import parse_inputs
from profkit.index.distinct import distinct
from profkit.model.events import MISSING, Mask, Rows


def first_types(ctx: Context, rows: Rows) -> dict[int, str]:
    """Return the type of the first input by the number of each text of types of some operators.

    Types are as Kineto writes them, such as ``c10::Half``; an empty one is not known.
    """
    types = ctx.events.input_types.at(rows)
    found = {}
    for number in distinct(types[types != MISSING]).tolist():
        inputs = parse_inputs("[]", ctx.events.names[number], "")
        first = inputs.types[0] if inputs is not None and inputs.types else ""
        found[number] = first if isinstance(first, str) else ""
    return found


def are_of_types(ctx: Context, rows: Rows, types: Collection[str]) -> Mask:
    """Return which operators have a first input of one of some types. Shape of ``rows``."""
    numbers = [number for number, kind in first_types(ctx, rows).items() if kind in types]
    return np.isin(ctx.events.input_types.at(rows), numbers)
