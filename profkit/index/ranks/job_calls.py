"""The collectives of all ranks of a job in one table, rank by rank."""

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
    "n_in",
    "n_out",
    "seq",
    "issued_ns",
    "launched_ns",
    "start_ns",
    "end_ns",
    "idle_ns",
    "data_wait_ns",
    "step",
    *_FLAGS,
)


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
        """Combine the ranks, of which one at a time need be in memory.

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

        for rank in ranks:
            calls = rank.calls
            members.append(JobRank(rank.rank, rank.host))
            sizes.append(len(calls))
            kind.add(kinds.of(calls.kind))
            group.add(np.append(groups.of(calls.groups), 0)[calls.group])
            element_type.add(types.of_texts(calls.element_type))
            comms_id.add(ids.of_texts(calls.comms_id))
            for peer_column, peer in zip((source, target), _find_peers(rank), strict=True):
                peer_column.add(peer)
            for name, column in columns.items():
                column.add(getattr(calls, name))

        for column in columns.values():
            column.end()

        return cls(
            tuple(members),
            np.repeat(np.arange(len(members), dtype=np.int32), sizes),
            kind.values,
            group.values,
            element_type.values,
            comms_id.values,
            _stack_peers(source.values, target.values),
            columns,
            tuple(kinds),
            tuple(groups),
            tuple(types),
        )

    def __len__(self) -> int:
        return len(self.member)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of :class:`CollectiveCalls` over all ranks, unpacked. Shape ``(n,)``."""
        return self.columns[name].values

    def is_kind(self, kinds: Sequence[str]) -> Mask:
        """Return which calls are of some kinds. Shape ``(n,)``."""
        return np.array([kind in kinds for kind in self.kinds], dtype=np.bool_)[self.kind]

    @property
    def is_pair(self) -> Mask:
        """Return which calls are sends or receives whose other rank is known. Shape ``(n,)``."""
        return np.asarray(self.peers[0] != MISSING)

    @cached_property
    def first(self) -> Rows:
        """Return where the calls of each rank begin, and the number of all calls.

        Shape ``(ranks + 1,)``.
        """
        return np.searchsorted(self.member, np.arange(len(self.ranks) + 1))

    @cached_property
    def clock(self) -> Int32s:
        """Return the number of each rank's clock. Shape ``(ranks,)``."""
        # Processes of one machine read the same clock.
        hosts: dict[object, int] = {}
        keys = (rank.rank if rank.host is None else rank.host for rank in self.ranks)
        return np.array([hosts.setdefault(key, len(hosts)) for key in keys], dtype=np.int32)

    @cached_property
    def n_expected(self) -> Int32s:
        """Return the number of recorded ranks of each call, or 0 if unknown. Shape ``(n,)``.

        A send or receive has 2 if the peer was recorded.
        """
        seen = {rank.rank for rank in self.ranks}
        of_group = [
            0 if group.ranks is None else len(seen.intersection(group.ranks))
            for group in self.groups
        ]
        n_expected = np.array([*of_group, 0], dtype=np.int32)[self.group]

        pairs = np.flatnonzero(self.is_pair)
        recorded = np.isin(self.peers[:, pairs], np.array(sorted(seen), dtype=np.int64))
        n_expected[pairs] = recorded.sum(axis=0)
        return n_expected


class _Column:
    """A column that grows in place, as concatenating its parts would need twice the memory."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._buffer, self._dtype = bytearray(), np.dtype(dtype)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append some values."""
        self._buffer += np.ascontiguousarray(values, dtype=self._dtype).data

    @property
    def values(self) -> npt.NDArray[Any]:
        """Return all values, after which nothing can be appended. Shape ``(n,)``."""
        return np.frombuffer(self._buffer, dtype=self._dtype)


class _PackedColumn:
    """A column that is compressed as it grows, and kept so."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._packer, self._dtype = zlib.compressobj(1), np.dtype(dtype)
        self._packed, self._n_bytes = bytearray(), 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append some values."""
        data = np.ascontiguousarray(values, dtype=self._dtype).data
        self._n_bytes += data.nbytes
        self._packed += self._packer.compress(data)

    def end(self) -> None:
        """Flush the column, after which nothing can be appended."""
        self._packed += self._packer.flush()

    @property
    def values(self) -> npt.NDArray[Any]:
        """Return all values of a flushed column. Shape ``(n,)``."""
        unpacked = zlib.decompress(self._packed, bufsize=max(1, self._n_bytes))
        return np.frombuffer(unpacked, dtype=self._dtype)


class _Numbers(dict[K, int]):
    """Consecutive numbers of distinct keys, in the order in which they come."""

    def of(self, keys: Iterable[K]) -> Int32s:
        """Return the number of each key. Shape ``(k,)``."""
        return np.array([self.setdefault(key, len(self)) for key in keys], dtype=np.int32)

    def of_texts(self, texts: Iterable[K]) -> Int32s:
        """Return the number of each text, :data:`NO_TEXT` if empty. Shape ``(k,)``."""
        numbers = [self.setdefault(text, len(self)) if text else NO_TEXT for text in texts]
        return np.array(numbers, dtype=np.int32)


def _find_peers(rank: RankCalls) -> tuple[Int64s, Int64s]:
    """Return both rows of ``peers`` of :class:`JobCalls` for one rank. Shape ``(k,)`` each."""
    calls = rank.calls
    send, receive = POINT_TO_POINT
    kind = np.array(calls.kind, dtype=np.str_)
    is_send = (kind == send) & (calls.target != MISSING)
    is_receive = (kind == receive) & (calls.source != MISSING)
    source = np.where(is_send, rank.rank, np.where(is_receive, calls.source, MISSING))
    target = np.where(is_send, calls.target, np.where(is_receive, rank.rank, MISSING))
    return source, target


def _stack_peers(source: Int64s, target: Int64s) -> Int64s:
    """Stack both rows, without memory in jobs that neither send nor receive."""
    if (source == MISSING).all():
        return np.broadcast_to(np.int64(MISSING), (2, len(source)))
    return np.stack([source, target])
