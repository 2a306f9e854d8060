"""Casts of weights and biases, which ``torch.autocast`` inserts before an operator."""

import json
from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.runtime_calls import rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Rows
from profkit.patterns import regex

_CAST: Final = regex(r"^aten::_to_copy$")
_TO: Final = regex(r"^aten::to$")
_LAYER: Final = regex(r"^aten::(linear|conv[123]d|conv_transpose[123]d)$")


def find_cast_parameters(events: EventTable, tree: CallTree) -> Rows:
    """Find the casts of float32 parameters within operators of layers, ascending.

    The parameters of these operators are their second and third input. A cast is identified by its
    shape. It is left out if the parameter has the shape of the first input.

    Source: ``aten/src/ATen/autocast_mode.h`` (``cached_cast``): a cast is reused within one
    ``autocast`` block, and only if the parameter requires a gradient.
    """
    around = tree.op_around
    cast = np.flatnonzero(rows_named(events, _CAST, Category.OP))
    call = around[cast]
    cast, call = cast[call != NO_ROW], call[call != NO_ROW]
    is_to = rows_named(events, _TO, Category.OP)[call]
    cast, call = cast[is_to], call[is_to].astype(np.intp)

    layer = around[call]
    is_of_layer = (layer != NO_ROW) & rows_named(events, _LAYER, Category.OP)[layer]
    cast, call, layer = cast[is_of_layer], call[is_of_layer], layer[is_of_layer]

    texts = np.stack(
        (events.input_dims.at(cast), events.input_types.at(cast), events.input_dims.at(layer))
    )
    kinds, kind_of_cast = np.unique(texts, axis=1, return_inverse=True)
    is_parameter = [
        MISSING not in kind and _is_parameter(events, *kind) for kind in kinds.T.tolist()
    ]
    return np.sort(call[np.array(is_parameter, dtype=np.bool_)[kind_of_cast.reshape(-1)]])


def _is_parameter(events: EventTable, dims: int, types: int, layer_dims: int) -> bool:
    """Return whether a cast tensor is a float32 parameter.

    All are numbers of names of JSON texts.
    """
    shapes, layer_shapes = json.loads(events.names[dims]), json.loads(events.names[layer_dims])
    is_float = json.loads(events.names[types])[:1] == ["float"]
    return is_float and shapes[0] in layer_shapes[1:3] and shapes[0] != layer_shapes[0]
