"""Operators by the shapes of their inputs."""

from collections.abc import Iterator

from profkit.index.compute.inputs import OpInputs, Shape, parse_inputs
from profkit.index.distinct import distinct
from profkit.model.events import MISSING, EventTable, Rows

NO_SHAPE: Shape = ()


def by_shapes(events: EventTable, rows: Rows) -> Iterator[tuple[OpInputs, Rows]]:
    """Yield operators of which the shapes were recorded, grouped by the shapes of all inputs.

    Types and values of the inputs are left out, as operators of one group may have several.
    """
    numbers = events.input_dims.at(rows)
    for number in distinct(numbers[numbers != MISSING]).tolist():
        inputs = parse_inputs(events.names[number], "", "")
        if inputs is not None:
            yield inputs, rows[numbers == number]


def tensor_shape(inputs: OpInputs, place: int) -> Shape:
    """Return the shape of the input at a place; empty for a list, a number, or without such one."""
    shape = inputs.shapes[place] if place < len(inputs.shapes) else NO_SHAPE
    return tuple(size for size in shape if isinstance(size, int))


def list_shapes(inputs: OpInputs, place: int) -> tuple[Shape, ...]:
    """Return the shapes of the list of tensors at a place; empty without a list of known shapes.

    torch writes the shapes of up to thirty tensors, and of longer lists none.

    Source: ``TENSOR_LIST_DISPLAY_LENGTH_LIMIT`` in ``torch/csrc/profiler/util.h``.
    """
    shape = inputs.shapes[place] if place < len(inputs.shapes) else NO_SHAPE
    return tuple(member for member in shape if isinstance(member, tuple))
