"""The layout of ``traceEvents`` for msgspec, with only the fields that are needed.

A number that an event does not have is decoded to :data:`MISSING`, so that a list of values is
directly a column. Kinds of events that are not used are decoded to empty structs.

Source: ``libkineto/src/output_json.cpp``, and the Trace Event Format of Chromium.
"""

from decimal import Decimal
from functools import reduce
from math import nan
from operator import or_
from typing import Annotated, Any, ClassVar, Final

import msgspec

from profkit.model.events import MISSING

_NO_FLOAT: Final = float(MISSING)
_NOTHING: Final = msgspec.Raw()


class Args(msgspec.Struct, gc=False):
    """The ``args`` of complete and instant events.

    The fields are in about the order in which Kineto writes them, which msgspec decodes fastest.
    """

    external_id: int = msgspec.field(default=MISSING, name="External id")
    device: int = MISSING
    stream: int = MISSING
    correlation: int = MISSING
    external_id_before_1_11: int = msgspec.field(default=MISSING, name="external id")
    grid: msgspec.Raw = _NOTHING
    block: msgspec.Raw = _NOTHING
    blocks_per_sm: float = msgspec.field(default=_NO_FLOAT, name="blocks per SM")
    warps_per_sm: float = msgspec.field(default=_NO_FLOAT, name="warps per SM")
    occupancy_percent: float = msgspec.field(default=_NO_FLOAT, name="est. achieved occupancy %")
    n_bytes: int = msgspec.field(default=MISSING, name="bytes")
    concrete_inputs: msgspec.Raw = msgspec.field(default=_NOTHING, name="Concrete Inputs")
    input_types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")
    input_dims: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    sequence: int = msgspec.field(default=MISSING, name="Sequence number")
    forward_thread: int = msgspec.field(default=MISSING, name="Fwd thread id")
    call_stack: str = msgspec.field(default="", name="Call stack")
    sycl_queue: int = msgspec.field(default=MISSING, name="sycl queue")
    wait_type: Any = msgspec.field(default="", name="Type")
    memory_bytes: int = msgspec.field(default=MISSING, name="Bytes")
    memory_address: int = msgspec.field(default=MISSING, name="Addr")
    memory_device_type: int = msgspec.field(default=MISSING, name="Device Type")
    memory_device: int = msgspec.field(default=MISSING, name="Device Id")
    total_allocated: int = msgspec.field(default=MISSING, name="Total Allocated")
    total_reserved: int = msgspec.field(default=MISSING, name="Total Reserved")
    task_type: Any = msgspec.field(default="", name="Task Type")
    cupti_correlation: int = msgspec.field(default=MISSING, name="correlationId")
    from_device: int = msgspec.field(default=MISSING, name="fromDevice")
    to_device: int = msgspec.field(default=MISSING, name="toDevice")
    finished: Any = True


COLLECTIVE: Final = "Collective name"
"""The key that all events of collectives have."""


class NoCollectiveArgs(Args, gc=False):
    """The ``args`` of events in text without collectives, which is decoded faster like this.

    Text with a collective is not valid, which tells at no cost that it needs the other class.
    """

    collective: None = msgspec.field(default=None, name=COLLECTIVE)


NO_ARGS: Final = NoCollectiveArgs()


class CollectiveArgs(Args, gc=False):
    """The ``args`` of events in text with collectives.

    Source: ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp`` and ``torch/csrc/profiler/util.cpp``
    (``saveNcclMeta``), which write them to operators from torch 2.3 on, and to kernels from 2.4 on.
    """

    collective: str = msgspec.field(default="", name=COLLECTIVE)
    element_type: str = msgspec.field(default="", name="dtype")
    n_in: int = msgspec.field(default=MISSING, name="In msg nelems")
    n_out: int = msgspec.field(default=MISSING, name="Out msg nelems")
    group_size: int = msgspec.field(default=MISSING, name="Group size")
    group_name: str = msgspec.field(default="", name="Process Group Name")
    group_description: str = msgspec.field(default="", name="Process Group Description")
    group_ranks: msgspec.Raw = msgspec.field(default=_NOTHING, name="Process Group Ranks")
    source_rank: int = msgspec.field(default=MISSING, name="Src Rank")
    target_rank: int = msgspec.field(default=MISSING, name="Dst Rank")
    collective_seq: int = msgspec.field(default=MISSING, name="Seq")
    comms_id: msgspec.Raw = msgspec.field(default=_NOTHING, name="Comms Id")


NO_COLLECTIVE: Final = CollectiveArgs()
EventArgs = NoCollectiveArgs | CollectiveArgs
"""The ``args`` of events of any kind but instants."""
_FIELDS: Final = msgspec.structs.fields(CollectiveArgs)
OF_COLLECTIVES: Final = tuple(
    field.name for field in _FIELDS if field.name not in Args.__struct_fields__
)
"""The fields of ``args`` that only events of collectives have."""
TEXTS: Final = frozenset(field.name for field in _FIELDS if field.type is str)
RAW_TEXTS: Final = frozenset(field.name for field in _FIELDS if field.type is msgspec.Raw)
"""The fields of ``args`` that are kept as JSON text."""
RAW_ARGS: Final = frozenset(field.encode_name for field in _FIELDS if field.name in RAW_TEXTS)
"""Their keys as the file has them."""


class NameArgs(msgspec.Struct, gc=False):
    """The ``args`` of a metadata event that names a process or a thread."""

    name: Any = ""


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """A complete event. ``ts`` and ``dur`` are microseconds."""

    ts: float
    dur: float = nan  # without one the event's length is not known
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None
    keeps_collectives: ClassVar[bool] = False
    """Whether ``args``, where an event has any, are :class:`CollectiveArgs`."""


class Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """An instant event; those named ``[memory]`` are allocations and frees."""

    ts: float | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


class OldInstant(Instant, tag_field="ph", tag="I", gc=False):
    """An instant event with the older phase letter."""


class BeginEnd(msgspec.Struct, gc=False):
    """The begin or the end of an event that is written as two events."""

    ts: float
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None
    keeps_collectives: ClassVar[bool] = False
    """Whether ``args``, where an event has any, are :class:`CollectiveArgs`."""

    @property
    def begins(self) -> bool:
        """Return whether this is a begin event."""
        return isinstance(self, Begin)


class Begin(BeginEnd, tag_field="ph", tag="B", gc=False):
    """A begin event."""


class End(BeginEnd, tag_field="ph", tag="E", gc=False):
    """The end of the last event that began on its thread. Its name may be missing."""


class Naming(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """A metadata event, such as the name of a process or a thread."""

    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: NameArgs | None = None


def _empty(tag: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        f"Phase_{ord(tag)}", [], bases=(msgspec.Struct,), tag_field="ph", tag=tag, gc=False
    )


def _kind(base: Any, *changed: Any, collectives: bool = False) -> Any:  # noqa: ANN401  (types made at run time have no type)
    """Return a kind of event with some fields changed, as :func:`msgspec.defstruct` takes them."""
    names = [name for name, *_ in changed]
    return msgspec.defstruct(
        "".join((base.__name__, *map(str.capitalize, names))),
        changed,
        bases=(base,),
        namespace={"keeps_collectives": collectives},
        gc=False,
    )


_TS: Final = ("ts", Decimal)
_OPTIONAL_TS: Final = ("ts", Decimal | None, None)
# The letters are phases that are not read, such as flows, counters and asynchronous events.
_OTHERS: Final = (Naming, *map(_empty, "stfbenCPNODSTpFvRc()ag"))


def _event(*, exact: bool, collectives: bool) -> Any:  # noqa: ANN401  (a union made at run time)
    """Return the union of all kinds of events.

    Args:
        exact: Keep all digits of times, which can be more than a float has.
        collectives: Keep the arguments of collectives.
    """
    args = ("args", (CollectiveArgs if collectives else NoCollectiveArgs) | None, None)
    times, optional = ([_TS], [_OPTIONAL_TS]) if exact else ([], [])
    timed = [_kind(kind, *times, args, collectives=collectives) for kind in (Complete, Begin, End)]
    return reduce(or_, (*timed, *(_kind(i, *optional) for i in (Instant, OldInstant)), *_OTHERS))


EVENTS: Final = {
    (exact, collectives): _event(exact=exact, collectives=collectives)
    for exact in (False, True)
    for collectives in (False, True)
}
"""The type of an event, by whether it keeps all digits of times, and the arguments of collectives.
"""
BATCHES: Final = {
    key: msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]
    for key, kind in EVENTS.items()
}
"""Decoders of lists of events. Not strict, because ROCm writes the bytes of copies as strings."""


class CategoryOnly(msgspec.Struct, gc=False):
    """An event of any kind, decoded only for its category."""

    cat: Any = ""


CATEGORIES_ONLY: Final = msgspec.json.Decoder(list[CategoryOnly])


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer of the metadata: JSON has larger ones, which no figure and no report can have."""


class DeviceProperties(msgspec.Struct):
    """An entry of ``deviceProperties``."""

    id: Int64 = 0
    name: str = ""
    total_bytes: Int64 | None = msgspec.field(default=None, name="totalGlobalMem")
    n_sms: Int64 | None = msgspec.field(default=None, name="numSms")
    max_threads_per_sm: Int64 | None = msgspec.field(
        default=None, name="maxThreadsPerMultiprocessor"
    )
    major: Int64 | None = msgspec.field(default=None, name="computeMajor")
    minor: Int64 | None = msgspec.field(default=None, name="computeMinor")


class DistributedInfo(msgspec.Struct):
    """``distributedInfo``."""

    rank: Int64 | None = None
    world_size: Int64 | None = None
    groups: Any = msgspec.field(default=None, name="pg_config")


class GroupConfig(msgspec.Struct):
    """An entry of ``pg_config``: a process group. On-demand traces write its ranks as a string."""

    name: str = msgspec.field(default="", name="pg_name")
    ranks: Any = None
