"""Builds traces from a program's actions: launches, blocking copies, allocations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import msgspec

from profkit.dataclass import dataclass
from profkit.model.capture_info import CaptureInfo
from profkit.model.torch_names import DATA_LOADER, MEMORY, STEP_PREFIX
from profkit.testing import trace_file
from profkit.testing.event_recorder import DEFAULT_STREAM, Event, EventRecorder
from profkit.testing.trace_format import Format

CALL_NS: Final = 4_000
"""The duration of a call that does not block."""

_FIRST_ADDRESS: Final = 0x7F00_0000_0000
_DEVICE_TYPES: Final = {"cuda": 1, "hip": 1}
"""PyTorch built for ROCm writes the ``Device Type`` of CUDA."""


@dataclass
class TraceBuilder(EventRecorder):
    """Builds a Kineto trace.

    Host events advance the host's clock. Device work starts when its launch has ended and the
    stream is free. A blocking call lasts until the stream has finished. So a ten-line program has
    realistic gaps and waits.

    Attributes:
        stacks: Written as ``with_stack``.
        memory: Written as ``profile_memory``.
        shapes: Written as ``record_shapes``.
        device_names: The names in ``deviceProperties``.
        absolute: Timestamps since 1970, as older versions of torch write them.
        first_step: Number of the first ``ProfilerStep#``.
        capture: The metadata of a trace that profkit recorded; None for other traces.
        head: More top-level keys, such as ``distributedInfo`` or ``WARNING``.
    """

    stacks: bool = False
    memory: bool = False
    shapes: bool = False
    device_names: Sequence[str] = ("NVIDIA H200",)
    absolute: bool = False
    first_step: int = 0
    capture: CaptureInfo | None = None
    head: dict[str, Any] = field(default_factory=dict)
    _blocks: dict[int, tuple[int, int | None]] = field(default_factory=dict, repr=False)
    _allocated: dict[int | None, int] = field(default_factory=dict, repr=False)
    _n_steps: int = field(default=0, repr=False)
    _n_blocks: int = field(default=0, repr=False)

    @contextmanager
    def step(self, name: str | None = None) -> Iterator[Event]:
        """Record a step around a block: ``ProfilerStep#0``, ``ProfilerStep#1`` and so on."""
        number, self._n_steps = self.first_step + self._n_steps, self._n_steps + 1
        with self.annotation(name or f"{STEP_PREFIX}{number}") as event:
            yield event

    def stop_within(self, *events: Event) -> None:
        """Let operators or annotations be open when the profiler stops, which closes them.

        Source: torch's exporter, which writes ``finished`` on these events alone.
        """
        for event in events:
            event.args = {**(event.args or {}), "finished": False}

    def compute(self, name: str, dur_ns: int, **inputs: Any) -> None:  # noqa: ANN401  (of several types)
        """Record an operator without device work; inputs as :meth:`op` takes them."""
        with self.op(name, self_ns=dur_ns, **inputs):
            pass

    def load(self, dur_ns: int, *, workers: bool = False) -> None:
        """Record the wait for the next batch, as ``torch.utils.data.DataLoader`` does."""
        kind = "MultiProcessing" if workers else "SingleProcess"
        with self.annotation(f"{DATA_LOADER}#_{kind}DataLoaderIter.__next__"):
            self.advance(dur_ns)

    def launch(
        self,
        op: str,
        *,
        kernel: str,
        host_ns: int,
        device_ns: int,
        device: int = 0,
        stream: int = DEFAULT_STREAM,
        **inputs: Any,  # noqa: ANN401  (passed on)
    ) -> Event:
        """Record an operator that launches one kernel.

        Args:
            host_ns: Duration of the operator, whose last ``CALL_NS`` (or all, if it is shorter)
                are the launch.
            device_ns: Duration of the kernel.
            device: The device's ordinal.
            inputs: ``dims``, ``types`` and ``values`` as in :meth:`EventRecorder.op`.
        """
        # The launch is last, as in an operator that first checks its inputs and allocates.
        call_ns = min(CALL_NS, host_ns)
        with self.op(op, self_ns=host_ns - call_ns, **inputs):
            ident = self.call("LaunchKernel", call_ns)
            return self.kernel(kernel, device_ns, correlation=ident, device=device, stream=stream)

    def kernel(self, name: str, dur_ns: int, **place: Any) -> Event:  # noqa: ANN401  (passed on)
        """Record a kernel; ``place`` as in :meth:`EventRecorder.work`."""
        return self.work("kernel", name, dur_ns, **place)

    def graph_launch(
        self,
        kernels: Sequence[tuple[str, int]],
        *,
        host_ns: int = CALL_NS,
        stream: int = DEFAULT_STREAM,
    ) -> int:
        """Record the launch of a CUDA graph: kernels ``(name, dur_ns)`` with one correlation."""
        # CUPTI gives all nodes of a graph the correlation id of their launch.
        ident = self.call("GraphLaunch", host_ns)
        for node, (name, dur_ns) in enumerate(kernels):
            ids = {"graph id": 1, "graph node id": node}
            self.kernel(name, dur_ns, correlation=ident, stream=stream, **ids)
        return ident

    def copy(
        self,
        kind: str,
        n_bytes: int,
        dur_ns: int,
        *,
        blocking: bool,
        stream: int = DEFAULT_STREAM,
        device: int = 0,
    ) -> Event:
        """Record a copy and its call.

        Args:
            kind: ``HtoD (Pageable -> Device)``, ``DtoH (Device -> Pinned)`` and so on.
            dur_ns: Duration on the device.
            blocking: The call returns when the copy has ended; otherwise after ``CALL_NS``.
            device: The device's ordinal.
        """
        # The copy is placed before its call, since a blocking call ends with it.
        start_ns = self.now_ns
        ident = self._next_id()
        self.now_ns += CALL_NS
        event = self.work(
            "gpu_memcpy",
            f"Memcpy {kind}",
            dur_ns,
            correlation=ident,
            device=device,
            stream=stream,
            bytes=n_bytes,
        )

        end_ns = max(self.now_ns, event.ts_ns + dur_ns) if blocking else self.now_ns
        self.call("MemcpyAsync", end_ns - start_ns, at_ns=start_ns, correlation=ident)
        self.now_ns = end_ns
        return event

    def peer_copy(self, n_bytes: int, dur_ns: int, *, source: int = 0, target: int = 1) -> Event:
        """Record a copy between two devices within an operator, as ``tensor.to("cuda:1")`` does.

        Source: ``CUpti_ActivityMemcpyPtoP`` in ``libkineto/src/CuptiActivity.cpp``, which writes
        both devices instead of ``device``; the stream is one of the source.
        """
        with self.op("aten::to"), self.op("aten::_to_copy"), self.op("aten::copy_"):
            ident = self.call("MemcpyAsync", CALL_NS)
            devices = {"fromDevice": source, "inDevice": source, "toDevice": target}
            event = self.work(
                "gpu_memcpy",
                "Memcpy PtoP (Device -> Device)",
                dur_ns,
                correlation=ident,
                device=source,
                bytes=n_bytes,
                **devices,
            )
            del (event.args or {})["device"]
            return event

    def fill(self, n_bytes: int, dur_ns: int) -> Event:
        """Record a fill of device memory and its call."""
        ident = self.call("MemsetAsync", CALL_NS)
        return self.work("gpu_memset", "Memset (Device)", dur_ns, correlation=ident, bytes=n_bytes)

    def record_event(self, *, stream: int = DEFAULT_STREAM, device: int = 0) -> int:
        """Record ``cuda.Event.record``; returns when the stream's work so far has ended, in ns."""
        self.call("EventRecord", CALL_NS)
        return self.free_at_ns(device, stream)

    def wait_for_event(
        self, event_ns: int, *, stream: int = DEFAULT_STREAM, device: int = 0
    ) -> None:
        """Record ``cuda.Stream.wait_event``: later work of the stream starts after an event.

        Args:
            event_ns: The time that :meth:`record_event` returned.
            device: The device's ordinal.
        """
        self.call("StreamWaitEvent", CALL_NS)
        lane = (device, stream)
        self._stream_free_ns[lane] = max(self._stream_free_ns.get(lane, 0), event_ns)

    def synchronize(
        self,
        call: str = "DeviceSynchronize",
        *,
        device: int = 0,
        stream: int | None = None,
        event_ns: int | None = None,
    ) -> int:
        """Record a call that blocks until the device is idle.

        Args:
            call: ``DeviceSynchronize``, ``StreamSynchronize`` or ``EventSynchronize``.
            device: The device's ordinal.
            stream: Wait for this stream only.
            event_ns: Wait for this event only, which :meth:`record_event` returned.

        Returns:
            The duration of the call in nanoseconds.
        """
        # A call with nothing to wait for takes as long as any other call.
        until_ns = self.free_at_ns(device, stream) if event_ns is None else event_ns
        wait_ns = max(CALL_NS, until_ns - self.now_ns)
        self.call(call, wait_ns)
        return wait_ns

    def item(self, *, copy_ns: int = 1_000, on_device: bool = True) -> None:
        """Record ``tensor.item()``: for a tensor on a device a copy that the host waits for.

        Args:
            copy_ns: Duration of the copy.
            on_device: Whether the tensor is on a device.

        Source: ``aten/src/ATen/native/cuda/CUDAScalar.cu``: the number is copied into pinned
        memory and the stream synchronized.
        """
        with self.op("aten::item"), self.op("aten::_local_scalar_dense", self_ns=1_000):
            if on_device:
                self.copy("DtoH (Device -> Pinned)", 4, copy_ns, blocking=False)
                self.call("StreamSynchronize", max(CALL_NS, self.free_at_ns() - self.now_ns))

    def to_host(self, n_bytes: int, copy_ns: int, *, pinned: bool = False) -> None:
        """Record ``tensor.cpu()``, or with ``pinned`` a non-blocking copy into pinned memory."""
        kind = "Pinned" if pinned else "Pageable"
        self._convert(f"DtoH (Device -> {kind})", n_bytes, copy_ns, blocking=not pinned)

    def to_device(self, n_bytes: int, copy_ns: int, *, pinned: bool = False) -> None:
        """Record ``tensor.to("cuda")``, or with ``pinned`` one with ``non_blocking=True``."""
        kind = "Pinned" if pinned else "Pageable"
        self._convert(f"HtoD ({kind} -> Device)", n_bytes, copy_ns, blocking=not pinned)

    def _convert(self, kind: str, n_bytes: int, copy_ns: int, *, blocking: bool) -> None:
        """Record the operators and calls of ``Tensor.to`` between the host and a device."""
        with self.op("aten::to"), self.op("aten::_to_copy"), self.op("aten::copy_"):
            self.copy(kind, n_bytes, copy_ns, blocking=blocking)
            # torch synchronizes the stream after each copy that may not be asynchronous.
            if blocking:
                self.call("StreamSynchronize", CALL_NS)

    def overhead(self, name: str, dur_ns: int) -> None:
        """Record overhead of the profiler, such as ``Buffer Flush``."""
        with self._span("overhead", name, {}):
            self.advance(dur_ns)

    def alloc(self, n_bytes: int, *, device: int | None = 0) -> int:
        """Record the ``[memory]`` event of an allocation, on the host if ``device`` is None.

        Returns:
            The block's address, for :meth:`free`.
        """
        self._n_blocks += 1
        address = _FIRST_ADDRESS + self._n_blocks * 0x1000_0000
        self._blocks[address] = (n_bytes, device)
        self._memory_event(address, n_bytes, device)
        return address

    def free(self, address: int) -> None:
        """Record the ``[memory]`` event of a free."""
        n_bytes, device = self._blocks.pop(address)
        self._memory_event(address, -n_bytes, device)

    def free_earlier(self, n_bytes: int, *, device: int | None = 0) -> None:
        """Record the free of a block that was allocated before recording."""
        self._n_blocks += 1
        address = _FIRST_ADDRESS + self._n_blocks * 0x1000_0000
        self._memory_event(address, -n_bytes, device)

    def _memory_event(self, address: int, n_bytes: int, device: int | None) -> None:
        # The frees of blocks from before the recording can lower the sum below zero.
        total = self._allocated[device] = self._allocated.get(device, 0) + n_bytes
        args = {
            "Total Reserved": max(total, 0) if device is not None else 0,
            "Total Allocated": max(total, 0),
            "Bytes": n_bytes,
            "Addr": address,
            "Device Id": -1 if device is None else device,
            "Device Type": 0 if device is None else _DEVICE_TYPES[self.runtime],
        }
        self.events.append(
            Event("i", MEMORY, "cpu_instant_event", self.pid, self.tid, self.now_ns, None, args)
        )

    def _head(self) -> Mapping[str, object]:
        flags = {
            "with_stack": self.stacks,
            "profile_memory": self.memory,
            "record_shapes": self.shapes,
        }
        head: dict[str, object] = {
            "deviceProperties": [
                {"id": index, "name": name} for index, name in enumerate(self.device_names)
            ],
            **{key: 1 for key, wanted in flags.items() if wanted},
        }
        if self.capture is not None:
            head["profkit"] = self.capture
        return head | self.head

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as ``json.load`` does, with times as floats of microseconds.

        Floats of absolute times lose their nanoseconds; :meth:`to_bytes` is exact.
        """
        trace: dict[str, Any] = msgspec.json.decode(self.to_bytes())
        return trace

    def to_bytes(self, form: Format | None = None) -> bytes:
        """Encode the trace as JSON, exact to the nanosecond; by default in torch's format."""
        form = Format(absolute=self.absolute) if form is None else form
        return form.to_bytes(self.events, self._head())

    def write(self, path: str | Path, form: Format | None = None, *, n_members: int = 1) -> Path:
        """Write the trace to a file, compressed according to its name, and return the path.

        Args:
            path: The file: plain, or ``.gz``, ``.zst``, ``.zip``, ``.tar``, ``.tar.gz``.
            form: The format; by default the current torch's.
            n_members: Number of members of a gzip stream.
        """
        target = Path(path)
        trace_file.write(target, self.to_bytes(form), n_members)
        return target
