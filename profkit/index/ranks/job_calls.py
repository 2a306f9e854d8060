"""The collectives of all ranks of a job in one table, put together rank by rank."""

import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.ranks.calls import POINT_TO_POINT, CollectiveCalls
from profkit.model.events import MISSING, Int32s, Int64s, Mask, Rows
from profkit.model.process_group import ProcessGroup

K = TypeVar("K", bound=Hashable)

NO_TEXT: Final = -1
_FLAGS: Final = ("on_device",)
_COLUMNS: Final = (
    "n_in", "n_out", "seq", "issued_ns", "launched_ns", "start_ns", "end_ns", "idle_ns",
    "data_wait_ns", "step", *_FLAGS,
)  # fmt: skip


@dataclass(frozen=True)
class JobRank:
    """A rank of a job.

    Attributes:
        rank: Its number in the job.
        host: The machine, or None where it is not known: then its clock is taken for its own.
    """

    rank: int
    host: str | None


@dataclass(frozen=True)
class RankCalls(JobRank):
    """The collectives of one rank.

    Attributes:
        calls: Its collectives.
    """

    calls: CollectiveCalls


@dataclass(frozen=True)
class JobCalls:
    """The collectives of all ranks, rank by rank. Columns of shape ``(n,)``.

    Attributes:
        ranks: The ranks, ascending.
        member: Index of its rank in ``ranks``.
        kind: Index into ``kinds``.
        group: Index into ``groups``.
        element_type: Index into ``element_types``, or :data:`NO_TEXT`.
        comms_id: The same number for the same id, or :data:`NO_TEXT`.
        peers: The sending and the receiving rank of each send or receive, or :data:`MISSING`. Shape
            ``(2, n)``.
        columns: Further columns of :class:`~profkit.index.ranks.calls.CollectiveCalls`, compressed:
            most are read once or twice.
        kinds: Kinds of collectives.
        groups: Process groups.
        element_types: Types of elements.
    """

    ranks: tuple[JobRank, ...]
    member: Int32s
    kind: Int32s
    group: Int32s
    element_type: Int32s
    comms_id: Int32s
    peers: Int64s
    columns: "Mapping[str, _PackedColumn]"
    kinds: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    element_types: tuple[str, ...]

    @classmethod
    def of(cls, ranks: Iterable[RankCalls]) -> "JobCalls":
        """Put the ranks together, of which one at a time need be in memory.

        Args:
            ranks: Ascending.
        """
        members: list[JobRank] = []
        sizes: list[int] = []
        kinds, types, ids = _Numbers[str](), _Numbers[str](), _Numbers[str]()
        groups = _Numbers[ProcessGroup]()
        columns = {
            name: _PackedColumn(np.bool_ if name in _FLAGS else np.int64) for name in _COLUMNS
        }
        kind, group, element_type, comms_id = (_Column(np.int32) for _ in range(4))
        source, target = _Column(np.int64), _Column(np.int64)
        for each in ranks:
            own = each.calls
            members.append(JobRank(each.rank, each.host))
            sizes.append(len(own))
            kind.add(kinds.of(own.kind))
            group.add(np.append(groups.of(own.groups), 0)[own.group])
            element_type.add(types.of_texts(own.element_type))
            comms_id.add(ids.of_texts(own.comms_id))
            for column, peer in zip((source, target), _peers(each), strict=True):
                column.add(peer)
            for name, further in columns.items():
                further.add(getattr(own, name))
        for further in columns.values():
            further.end()
        return cls(
            tuple(members),
            np.repeat(np.arange(len(members), dtype=np.int32), sizes),
            kind.values,
            group.values,
            element_type.values,
            comms_id.values,
            _stacked(source.values, target.values),
            columns,
            tuple(kinds),
            tuple(groups),
            tuple(types),
        )

    def __len__(self) -> int:
        return len(self.member)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of :class:`CollectiveCalls` over all ranks, unpacked. Shape ``(n,)``."""
        return self.columns[name].values

    def is_kind(self, kinds: Sequence[str]) -> Mask:
        """Which calls are of some kinds. Shape ``(n,)``."""
        return np.array([kind in kinds for kind in self.kinds], dtype=np.bool_)[self.kind]

    @property
    def is_pair(self) -> Mask:
        """Which calls are sends or receives whose other rank is known. Shape ``(n,)``."""
        return np.asarray(self.peers[0] != MISSING)

    @cached_property
    def first(self) -> Rows:
        """Where the calls of each rank begin, and their number. Shape ``(ranks + 1,)``."""
        return np.searchsorted(self.member, np.arange(len(self.ranks) + 1))

    @cached_property
    def clock(self) -> Int32s:
        """Number of the clock of each rank. Shape ``(ranks,)``."""
        hosts: dict[object, int] = {}
        keys = (each.host if each.host is not None else each.rank for each in self.ranks)
        return np.array([hosts.setdefault(key, len(hosts)) for key in keys], dtype=np.int32)

    @cached_property
    def n_expected(self) -> Int32s:
        """How many recorded ranks run the collective of each call; 0 if not known. Shape ``(n,)``.

        Of a send or receive it is 2 if the other rank was recorded.
        """
        seen = {each.rank for each in self.ranks}
        of_group = [
            0 if group.ranks is None else len(seen.intersection(group.ranks))
            for group in self.groups
        ]
        found = np.array([*of_group, 0], dtype=np.int32)[self.group]
        pairs = np.flatnonzero(self.is_pair)
        recorded = np.isin(self.peers[:, pairs], np.array(sorted(seen), dtype=np.int64))
        found[pairs] = recorded.sum(axis=0)
        return found


class _Column:
    """A column that grows without being copied, as one whose parts are put together would be."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._buffer, self._dtype = bytearray(), np.dtype(dtype)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append some values."""
        self._buffer += np.ascontiguousarray(values, dtype=self._dtype).data

    @property
    def values(self) -> npt.NDArray[Any]:
        """All values; nothing can be appended any more. Shape ``(n,)``."""
        return np.frombuffer(self._buffer, dtype=self._dtype)


class _PackedColumn:
    """A column that is compressed as it grows, and kept so."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._packer, self._dtype = zlib.compressobj(1), np.dtype(dtype)
        self._packed, self._n_bytes = bytearray(), 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append some values."""
        own = np.ascontiguousarray(values, dtype=self._dtype).data
        self._n_bytes += own.nbytes
        self._packed += self._packer.compress(own)

    def end(self) -> None:
        """Nothing more will be appended."""
        self._packed += self._packer.flush()

    @property
    def values(self) -> npt.NDArray[Any]:
        """All values, after the end. Shape ``(n,)``."""
        unpacked = zlib.decompress(self._packed, bufsize=max(1, self._n_bytes))
        return np.frombuffer(unpacked, dtype=self._dtype)


class _Numbers(dict[K, int]):
    """Numbers of things, in the order in which they come."""

    def of(self, things: Iterable[K]) -> Int32s:
        """The number of each. Shape ``(k,)``."""
        return np.array([self.setdefault(each, len(self)) for each in things], dtype=np.int32)

    def of_texts(self, texts: Iterable[K]) -> Int32s:
        """The same, :data:`NO_TEXT` for empty ones."""
        found = [self.setdefault(text, len(self)) if text else NO_TEXT for text in texts]
        return np.array(found, dtype=np.int32)


def _peers(rank: RankCalls) -> tuple[Int64s, Int64s]:
    """As in :class:`JobCalls`, of one rank. Shape ``(k,)`` each."""
    calls = rank.calls
    send, receive = POINT_TO_POINT
    kind = np.array(calls.kind, dtype=np.str_)
    is_send = (kind == send) & (calls.target != MISSING)
    is_receive = (kind == receive) & (calls.source != MISSING)
    source = np.where(is_send, rank.rank, np.where(is_receive, calls.source, MISSING))
    target = np.where(is_send, calls.target, np.where(is_receive, rank.rank, MISSING))
    return source, target


def _stacked(source: Int64s, target: Int64s) -> Int64s:
    """Both as rows of a table, which takes no memory in jobs without sends and receives."""
    if (source == MISSING).all():
        return np.broadcast_to(np.int64(MISSING), (2, len(source)))
    return np.stack([source, target])
