"""Records single events with the clock, threads, streams and ids that the profiler would write.

What a program does (an operator that launches a kernel, a copy that blocks the host) is built on
:class:`EventRecorder` in :mod:`profkit.testing.trace_builder`.

Source: field names and their spelling follow ``libkineto/src/output_json.cpp`` of pytorch/kineto
and traces written by torch 2.13.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Any, Final

from profkit.dataclass import dataclass
from profkit.model.torch_names import BUILTIN_PREFIX, MODULE_PREFIX

DEFAULT_STREAM: Final = 7
"""CUPTI's number of a context's default stream."""

MAIN_THREAD: Final = 1000


@dataclass
class Event:
    """One entry of ``traceEvents``, with times in nanoseconds.

    Attributes:
        ph: The phase: ``X`` complete, ``i`` instant, ``M`` metadata.
        cat: The category as written, or None.
        pid: Process, or a device's ordinal.
        tid: Thread, or a stream.
        ts_ns: Start, from the trace's start.
        dur_ns: Duration; None for an instant.
        args: The ``args`` object, or None.
    """

    ph: str
    name: str
    cat: str | None
    pid: int | str
    tid: int | str
    ts_ns: int
    dur_ns: int | None = None
    args: dict[str, Any] | None = None


@dataclass
class EventRecorder:
    """A list of events, and the state that determines times and ids of the next one.

    Times are integer nanoseconds from the trace's start. A method with ``at_ns`` places its event
    there and does not change the clock; without it the event starts now, and host events advance
    the clock to their end.

    Attributes:
        now_ns: The host's clock.
        pid: The process's id.
        tid: The thread of host events.
        runtime: Prefix of the runtime's calls: ``cuda`` or ``hip``.
        latency_ns: From the end of a launch to the earliest start of its device work.
        events: The events recorded so far.
    """

    now_ns: int = 0
    pid: int = MAIN_THREAD
    tid: int = MAIN_THREAD
    runtime: str = "cuda"
    latency_ns: int = 0
    events: list[Event] = field(default_factory=list)
    _stream_free_ns: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    _open_ops: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _open_calls: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _last_id: int = field(default=0, repr=False)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def advance(self, ns: int) -> None:
        """Advance the host's clock without an event."""
        self.now_ns += ns

    @contextmanager
    def thread(self, tid: int) -> Iterator[None]:
        """Record the host events of the block on another thread, with the same clock."""
        before, self.tid = self.tid, tid
        try:
            yield
        finally:
            self.tid = before

    @contextmanager
    def _span(self, cat: str, name: str, args: dict[str, Any]) -> Iterator[Event]:
        """Record a host event around a block."""
        event = Event("X", name, cat, self.pid, self.tid, self.now_ns, 0, args)
        self.events.append(event)
        try:
            yield event
        finally:
            event.dur_ns = self.now_ns - event.ts_ns

    @contextmanager
    def op(
        self,
        name: str,
        *,
        self_ns: int = 0,
        sequence: int | None = None,
        **inputs: Any,  # noqa: ANN401  (of several types)
    ) -> Iterator[Event]:
        """Record an operator around a block.

        Args:
            name: Such as ``aten::linear``.
            self_ns: Its host time before the block.
            sequence: ``Sequence number``, which joins it to its backward operator.
            inputs: As ``record_shapes`` records them: ``dims``, the shapes (``Input Dims``);
                ``types``, by default ``float`` for each (``Input type``); and ``values``, of those
                that are not tensors, as text (``Concrete Inputs``).
        """
        ident = self._next_id()
        args: dict[str, Any] = {"External id": ident}
        if sequence is not None:
            args["Sequence number"] = sequence
        if (dims := inputs.get("dims")) is not None:
            types = inputs.get("types") or ["float"] * len(dims)
            args |= {"Input Dims": dims, "Input type": types}
        if "values" in inputs:
            args["Concrete Inputs"] = inputs["values"]

        # Calls within the block have the id of the innermost operator of their thread.
        open_ops = self._open_ops.setdefault(self.tid, [])
        open_ops.append(ident)
        try:
            with self._span("cpu_op", name, args) as event:
                self.advance(self_ns)
                yield event
        finally:
            open_ops.pop()

    def annotation(self, name: str) -> AbstractContextManager[Event]:
        """Record a ``user_annotation`` around a block, as ``record_function`` does."""
        return self._span("user_annotation", name, {"External id": self._next_id()})

    @contextmanager
    def _python_call(self, name: str, extra: dict[str, Any]) -> Iterator[Event]:
        # Each call names its caller, so that a viewer does not depend on times.
        ident = self._next_id()
        callers = self._open_calls.setdefault(self.tid, [])
        args = {"Python parent id": callers[-1] if callers else None, "Python id": ident, **extra}
        callers.append(ident)
        try:
            with self._span("python_function", name, args) as event:
                yield event
        finally:
            callers.pop()

    def frame(self, file: str, line: int, function: str) -> AbstractContextManager[Event]:
        """Record a call of a Python function around a block.

        Args:
            file: The path as recorded.
            line: The function's first line, as in torch's stacks.
        """
        return self._python_call(f"{file}({line}): {function}", {})

    def builtin(self, name: str) -> AbstractContextManager[Event]:
        """Record a call of a builtin around a block, such as ``method item of Tensor object``."""
        return self._python_call(f"{BUILTIN_PREFIX}{name}>", {})

    def module(self, name: str, ident: int = 0) -> AbstractContextManager[Event]:
        """Record a call of an ``nn.Module`` around a block: ``nn.Module: Linear_0``."""
        extra = {"Python module id": ident}
        return self._python_call(f"{MODULE_PREFIX}{name}_{ident}", extra)

    def _external_id(self) -> dict[str, int]:
        open_ops = self._open_ops.get(self.tid)
        return {"External id": open_ops[-1]} if open_ops else {}

    def call(
        self,
        name: str,
        dur_ns: int,
        *,
        at_ns: int | None = None,
        correlation: int | None = None,
        cat: str = "cuda_runtime",
    ) -> int:
        """Record a call of the runtime or the driver.

        Args:
            name: The runtime's prefix is added if it begins with a capital: ``LaunchKernel``.
            at_ns: Its start; by default now.
            correlation: Its correlation id; by default a new one.
            cat: ``cuda_runtime`` or ``cuda_driver``.

        Returns:
            The correlation id, which joins device work to this call.
        """
        full_name = f"{self.runtime}{name}" if name[:1].isupper() else name
        ident = self._next_id() if correlation is None else correlation
        args: dict[str, Any] = {**self._external_id(), "correlation": ident}
        start_ns = self.now_ns if at_ns is None else at_ns
        self.events.append(Event("X", full_name, cat, self.pid, self.tid, start_ns, dur_ns, args))
        if at_ns is None:
            self.advance(dur_ns)
        return ident

    def work(
        self,
        cat: str,
        name: str,
        dur_ns: int,
        *,
        at_ns: int | None = None,
        correlation: int | None = None,
        device: int = 0,
        stream: int = DEFAULT_STREAM,
        **args: object,
    ) -> Event:
        """Record device work: a kernel, a copy or a fill.

        Args:
            cat: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``.
            at_ns: Its start. By default it starts when its launch has ended (plus ``latency_ns``)
                and the stream is free.
            correlation: The launch's correlation id. By default a new id without a launch: work
                that was launched before recording began.
            device: The device's ordinal.
            args: More ``args``, such as ``bytes``.
        """
        # A stream runs its work in the order of the launches, one piece after the other.
        lane = (device, stream)
        free_ns = self._stream_free_ns.get(lane, 0)
        start_ns = max(self.now_ns + self.latency_ns, free_ns) if at_ns is None else at_ns
        self._stream_free_ns[lane] = max(free_ns, start_ns + dur_ns)

        operator_id = {} if correlation is None else self._external_id()
        ident = self._next_id() if correlation is None else correlation
        ids = {"device": device, "context": 1, "stream": stream, "correlation": ident}
        fields = {**operator_id, **ids, **args}
        event = Event("X", name, cat, device, stream, start_ns, dur_ns, fields)
        self.events.append(event)
        return event

    def free_at_ns(self, device: int = 0, stream: int | None = None) -> int:
        """Return when a stream, or without one the whole device, has finished all work so far."""
        ends_ns = [
            end_ns
            for (lane_device, lane_stream), end_ns in self._stream_free_ns.items()
            if lane_device == device and stream in (None, lane_stream)
        ]
        return max(ends_ns, default=0)
