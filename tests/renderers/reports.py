"""Synthetic reports: a GPU run, a CPU run, memory, and hostile names."""

from profkit.model.critical_path import (
    BlockingCall,
    CriticalPathSummary,
    PathEntry,
    PathKindName,
    PathLine,
    PathPart,
)
from profkit.model.device_summary import DeviceSummary, IdleTime
from profkit.model.finding import Cost, Finding, Unchecked
from profkit.model.growth import Growth
from profkit.model.location import Frame, Location
from profkit.model.memory_summary import (
    AllocationSite,
    FragmentationSite,
    MemoryPoint,
    MemorySummary,
    OomSummary,
    PeakMemory,
    RegionMemory,
    SnapshotDevice,
    StepMemory,
)
from profkit.model.report import Report, Source, Summary
from profkit.model.step_summary import Breakdown, StepSummary, TimePart
from profkit.model.sync_summary import CopySummary, SyncSummary
from profkit.model.trace import RecordedWith
from profkit.model.work_summary import KernelSummary, OpSummary, RegionSummary

MS = 1_000_000

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "[red]markup[/red]",
    "[/]",
    "a\nb\r\tc",
    "\x9b2J\x07",
    "right\u202eto left",
    "zero\u200bwidth",
    "line\u2028end",
    "面白いテンソル",
    "emoji :smile: 🔥",
    "<script>alert(1)</script>",
    "pipe | `tick` **bold** _under_ [link](x)",
    "lone \udcff surrogate",
    "",
    "x" * 5000,
    "\\x1b \\n",
    "%s {0} {name}",
)
VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3>)"
)


def breakdown(n_steps: int, *, on_device: bool, **parts_ns: int) -> Breakdown:
    """Return a breakdown with parts by kind, with underscores for dashes."""
    total = sum(parts_ns.values())
    parts = tuple(
        TimePart(
            kind.replace("_", "-"),
            ns,
            ns // n_steps if n_steps else None,
            ns / total if total else 0,
        )
        for kind, ns in parts_ns.items()
    )
    return Breakdown(n_steps, total, total // n_steps if n_steps else None, on_device, parts)


def find_critical_path(
    n_steps: int,
    parts_ns: dict[PathKindName, int],
    where: Location,
    name: str = "aten::mm",
    unexplained_ns: int = 0,
) -> CriticalPathSummary:
    """Find a critical path with one line and one name for each kind, all at one source line."""
    total = sum(parts_ns.values())
    times = {
        kind: (ns, ns // n_steps if n_steps else None, ns / total) for kind, ns in parts_ns.items()
    }

    return CriticalPathSummary(
        n_steps,
        total,
        total // n_steps if n_steps else None,
        tuple(PathPart(kind, *time) for kind, time in times.items()),
        tuple(
            PathLine(kind, where, *time, 40, 30, name, time[2] / 2) for kind, time in times.items()
        ),
        tuple(PathEntry(kind, name, where, *time, 40) for kind, time in times.items()),
        (BlockingCall("cudaStreamSynchronize", where, *next(iter(times.values())), 6),),
        unexplained_ns,
        unexplained_ns / total,
        unexplained_ns <= total // 20,
    )


def source(**changes: object) -> Source:
    """Return the source of a report."""
    facts: dict[str, object] = {
        "path": "/home/me/project/traces/train/host_1.1700000000000.pt.trace.json.gz",
        "kind": "trace",
        "n_events": 46_018,
        "torch": "2.13.0",
        "devices": ("NVIDIA H200",),
        "rank": None,
        "world_size": None,
        "recorded_with": RecordedWith(stacks=True, shapes=True, memory=True),
        "step_definition": "iterations of the loader",
    }
    return Source(**(facts | changes))  # type: ignore[arg-type]


def build_starved() -> Finding:
    """Build a finding that costs time on every step."""
    return Finding(
        rule="DAT001",
        name="starved-by-loader",
        severity="warning",
        confidence="high",
        title="The loader starves the GPU",
        message="The loop waits 65.1 ms of each 174 ms step for the next batch, and the GPU has "
        "nothing to do meanwhile.",
        fix="Give the DataLoader workers: DataLoader(train_set, num_workers=4, pin_memory=True).",
        locations=(Location("/home/me/project/train.py", 31, "main", "enumerate(DataLoader)"),),
        n=6,
        cost=Cost(ns=390 * MS, per_step_ns=65 * MS, basis="upper-bound"),
        evidence={"data_wait_ns": [63 * MS, 67 * MS], "n_workers": 0},
        spans=((0, 65 * MS),),
    )


def build_leak() -> Finding:
    """Build a finding that costs memory."""
    return Finding(
        rule="MEM001",
        name="unfreed-tensors",
        severity="error",
        confidence="medium",
        title="Tensors are never freed",
        message="Every step leaves 1.50 MiB behind that the next one does not free.",
        fix="Keep loss.item() or loss.detach() in losses instead of loss.",
        locations=(
            Location("/home/me/project/train.py", 44, "main", "aten::mse_loss"),
            Location("/home/me/project/lib/model.py", 7, "forward", None, precision="function"),
        ),
        n=12,
        cost=Cost(bytes=9 << 20, per_step_bytes=3 << 19),
        holders=(("__main__.losses", "[17]"),),
    )


def bare() -> Finding:
    """Return a finding without source line, holder, cost and fix."""
    return Finding(
        rule="SYN099",
        name="bare",
        severity="note",
        confidence="low",
        title="Something happens",
        message="Something happens somewhere.",
        fix="",
    )


def no_stacks() -> Finding:
    """Return a fault of the recording."""
    return Finding(
        rule="PRF001",
        name="no-warm-up",
        severity="note",
        confidence="high",
        title="The first step was recorded",
        message="The first step takes 1.80 times as long as the others.",
        fix="Record with warmup=1.",
    )


def build_gpu_report() -> Report:
    """Six steps on a GPU that the loader starves."""
    return Report(
        profkit="0.1.0",
        source=source(),
        summary=Summary(
            window_ns=1100 * MS,
            devices=(
                DeviceSummary(
                    "cuda:0",
                    "NVIDIA H200",
                    1044 * MS,
                    640 * MS,
                    404 * MS,
                    610 * MS,
                    0,
                    0,
                    30 * MS,
                    7800,
                    12,
                    600,
                    (IdleTime("data", 390 * MS), IdleTime("host", 14 * MS)),
                ),
            ),
            steps=tuple(
                StepSummary(
                    f"ProfilerStep#{n}",
                    n * 174 * MS,
                    (171 + n) * MS,
                    107 * MS,
                    67 * MS,
                    65 * MS,
                    2 * MS,
                )
                for n in range(6)
            ),
            top_kernels=(
                KernelSummary(
                    "volta_sgemm_64x64_nt",
                    120,
                    210 * MS,
                    1750_000,
                    0.34,
                    "aten::mm",
                    None,
                    Location("/home/me/project/lib/model.py", 12, "forward"),
                    per_step_ns=35 * MS,
                ),
                KernelSummary(
                    VECTORIZED, 960, 120 * MS, 125_000, 0.2, "aten::add_", per_step_ns=20 * MS
                ),
                KernelSummary(
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    6,
                    60 * MS,
                    10 * MS,
                    0.1,
                    per_step_ns=8 * MS,
                ),
            ),
            top_ops=(
                OpSummary(
                    "aten::conv2d", 318, 190 * MS, 4 * MS, 0, None, None, 30 * MS, 600_000, 0
                ),
                OpSummary(
                    "aten::cudnn_convolution",
                    318,
                    140 * MS,
                    130 * MS,
                    280 * MS,
                    Location("/home/me/project/lib/model.py", 12, "forward"),
                    None,
                    23 * MS,
                    21 * MS,
                    45 * MS,
                ),
                OpSummary(
                    "aten::mm", 120, 40 * MS, 38 * MS, 210 * MS, None, None, 6 * MS, 5 * MS, 35 * MS
                ),
            ),
            regions=(RegionSummary("forward", 6, 600 * MS, 300 * MS),),
            syncs=(SyncSummary("cudaStreamSynchronize", 12, 12 * MS),),
            copies=(CopySummary("Memcpy HtoD (Pageable -> Device)", 12, 30 * MS, 462_422_016),),
            n_gpu_events_without_launch=4,
            memory=MemorySummary(1200, 40, 4 << 20, 12, (PeakMemory("cuda:0", 3 << 30),)),
            breakdown=breakdown(
                6,
                on_device=True,
                compute=610 * MS,
                copy=30 * MS,
                idle_data=390 * MS,
                idle_host=12 * MS,
                idle_launch=2 * MS,
            ),
            recoverable_ns=390 * MS,
            critical_path=find_critical_path(
                6,
                {"kernel": 520 * MS, "data-wait": 390 * MS, "operator": 128 * MS, "gap": 6 * MS},
                Location("/home/me/project/lib/model.py", 12, "forward"),
                VECTORIZED,
            ),
        ),
        findings=(build_starved(), build_leak()),
        unchecked=(
            Unchecked("SYN001", "The recording has no stacks.", "Record with stacks=True."),
            Unchecked("DAT003", "The recording has no stacks.", "Record with stacks=True."),
            Unchecked("MEM002", "The recording has no memory events.", "Record with memory=True."),
        ),
        health=(no_stacks(),),
    )


def build_cpu_report() -> Report:
    """Three steps on a CPU."""
    return Report(
        profkit="0.1.0",
        source=source(devices=(), overhead_ratio=0.8, lines_from="window"),
        summary=Summary(
            window_ns=40 * MS,
            steps=tuple(
                StepSummary(f"step {n}", n * 12 * MS, 12 * MS, None, None, 3 * MS, 0)
                for n in range(3)
            ),
            top_ops=(OpSummary("aten::addmm", 30, 9 * MS, 8 * MS, 0),),
            memory=MemorySummary(20, 3, 1 << 20, 0, (PeakMemory("cpu", 30 << 20),)),
            breakdown=breakdown(
                3,
                on_device=False,
                operators=12 * MS,
                backward=9 * MS,
                optimizer=3 * MS,
                data=9 * MS,
                python=3 * MS,
            ),
            critical_path=find_critical_path(
                3,
                {"operator": 24 * MS, "data-wait": 9 * MS, "python": 3 * MS},
                Location(),
                unexplained_ns=2 * MS,
            ),
        ),
        findings=(build_leak(),),
    )


MIB = 1 << 20


def build_grown() -> Finding:
    """Build a finding on a live object, without a source line."""
    return Finding(
        rule="MEM004",
        name="growing-container",
        severity="warning",
        confidence="medium",
        title="Tensors pile up with every step",
        message="Host memory grows by 2.00 MiB per step (steps 1 to 300): 300 tensors, retained by "
        "`history` in main at train.py:12 (list, 300 entries).",
        fix="Empty `history` once its tensors are used.",
        n=300,
        cost=Cost(bytes=600 * MIB, per_step_bytes=2 * MIB, basis="estimate"),
        holders=(
            ("history", "[17]", " in main at train.py:12"),
            ("__main__", ".trainer", ".log", "['step 17']"),
            ("functools.lru_cache of positional",),
        ),
        evidence={"container_len": 300},
        growth=Growth((1, 150, 300), (0, 300 * MIB, 600 * MIB), (0, 150, 300)),
    )


def watched_memory(n_leaks: int | None = 1) -> MemorySummary:
    """Three hundred steps of a program in which host memory and tensors grow."""
    return MemorySummary(
        steps=tuple(
            StepMemory(step, (400 + 2 * step) * MIB, 2 * step * MIB, step << 10, 0, None)
            for step in range(1, 301, 23)
        ),
        n_monitored_steps=300,
        n_evaluated_steps=300 if n_leaks is not None else 0,
        n_leaks=n_leaks,
        not_measured=("Steps 3 to 5 were recorded and not sampled.",),
        monitoring_ns=24 * MS,
        monitoring_share=0.004,
    )


def watched_report() -> Report:
    """Return a monitored program whose memory grows, without a trace."""
    return Report(
        profkit="0.1.0",
        source=source(path="", kind="live", n_events=0, step_definition="optimizer steps"),
        summary=Summary(0, memory=watched_memory()),
        findings=(build_grown(),),
        unchecked=(Unchecked("SYN001", "There is no trace.", "Record one."),),
    )


def sites_of(*mib: int) -> tuple[AllocationSite, ...]:
    """Allocation sites of the given sizes in MiB."""
    uses = ("activation", "optimizer-state", "unknown")
    return tuple(
        AllocationSite(
            Location("/home/me/project/lib/model.py", 10 + n, "forward"),
            (Frame("/home/me/project/lib/model.py", 10 + n, "forward"),),
            n + 1,
            size * MIB,
            uses[n % len(uses)],
        )
        for n, size in enumerate(mib)
    )


def build_snapshot_report(n_devices: int = 1) -> Report:
    """Build a snapshot of devices that ran out of memory."""
    line = Location("/home/me/project/train.py", 21, "main")
    earlier = AllocationSite(
        Location(), (), 40, 3000 * MIB, "unknown", "large", is_before_recording=True
    )
    devices = tuple(
        SnapshotDevice(
            f"cuda:{n}",
            284,
            900,
            (35_000 + n) * MIB,
            34_000 * MIB,
            34_000 * MIB,
            1000 * MIB,
            112 * MIB,
            3274,
            34_500 * MIB,
            35_000 * MIB,
            600,
            31_000 * MIB,
            12,
            top_sites=(*sites_of(14_000, 1002), earlier),
            peak_sites=(*sites_of(14_336, 1002, 1), earlier),
            oom=(
                OomSummary(
                    4004 * MIB,
                    3840 * MIB,
                    line,
                    "fragmentation",
                    164 * MIB,
                    35_000 * MIB,
                    34_000 * MIB,
                    112 * MIB,
                    (*sites_of(14_300, 1002), earlier),
                ),
            ),
            releasable_bytes=200 * MIB,
            unreleasable_bytes=800 * MIB,
            fragmentation_sites=(FragmentationSite(line, 3, 64 * MIB, 500 * MIB),),
            timeline=tuple(
                MemoryPoint(100 * k, 5 * k, k * 860 * MIB, k * 875 * MIB) for k in range(1, 41)
            ),
            regions=(RegionMemory("forward", 2, 30_000 * MIB, -5 * MIB),),
        )
        for n in range(n_devices)
    )

    return Report(
        profkit="0.1.0",
        source=source(path="/home/me/project/oom.pickle", kind="snapshot", torch=None, devices=()),
        summary=Summary(0, memory=MemorySummary(devices=devices)),
        unchecked=(Unchecked("SYN001", "There is no trace.", "Record one."),),
    )


def empty_report() -> Report:
    """Return an empty recording without findings."""
    return Report("0.1.0", source(path="", kind="live", devices=(), torch=None), Summary(0))


def unchecked_report() -> Report:
    """Return a recording for which every check was skipped."""
    return Report(
        "0.1.0",
        source(),
        Summary(5 * MS),
        unchecked=tuple(
            Unchecked(f"SYN{n:03}", "There are no operators.", "Record with ops=True.")
            for n in range(13)
        ),
    )


def many_findings() -> Report:
    """Ten thousand findings."""
    report = build_gpu_report()
    return Report(
        report.profkit, report.source, report.summary, (build_starved(), build_leak()) * 5000
    )


def build_hostile_memory(text: str) -> MemorySummary:
    """Memory in which every name is a hostile text."""
    where = Location(text, 1, text)
    sites = (AllocationSite(where, (Frame(text, 1, text),), 1, 1, text),)
    nowhere = (AllocationSite(Location(function=text), (), 1, 1, text),)
    device = SnapshotDevice(
        text,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        top_sites=sites,
        peak_sites=nowhere,
        oom=(OomSummary(1, 1, where, text, sites=sites),),
        fragmentation_sites=(FragmentationSite(where, 1, 1, 1),),
        regions=(RegionMemory(text, 1, 1, 1),),
        timeline=(MemoryPoint(1, 1, 1, 1), MemoryPoint(2, 1, 1, 1)),
    )

    return MemorySummary(
        1, 1, 1, 1, (PeakMemory(text, 1),), (device,), watched_memory().steps, 1, 1, 1, (text,)
    )


def build_hostile_report(text: str) -> Report:
    """Build a report in which every name and sentence is a hostile text."""
    where = Location(text, 1, text, text, text, text)
    finding = Finding(
        rule=text,
        name=text,
        severity="warning",
        confidence="low",
        title=text,
        message=text,
        fix=text,
        locations=(where, where),
        cost=Cost(ns=MS),
        holders=((text, text),),
        evidence={text or "empty": text, "list": [text], "nan": float("nan")},
    )

    return Report(
        profkit="0.1.0",
        source=source(path=text, devices=(text,), torch=text),
        summary=Summary(
            window_ns=10 * MS,
            devices=(DeviceSummary(text, text, 9 * MS, 8 * MS, MS, 8 * MS, MS, 0, 0, 1, 0, 0),),
            steps=(StepSummary(text, 0, 10 * MS, 8 * MS, 2 * MS, 0, 0),),
            top_kernels=(KernelSummary(text, 1, MS, MS, 1.0, text, text, where),),
            top_ops=(OpSummary(text, 1, MS, MS, MS, where),),
            regions=(RegionSummary(text, 1, MS, MS),),
            syncs=(SyncSummary(text, 1, MS),),
            copies=(CopySummary(text, 1, MS, None),),
            memory=build_hostile_memory(text),
            breakdown=breakdown(1, on_device=True, compute=8 * MS, idle_host=2 * MS),
            critical_path=find_critical_path(1, {"kernel": 8 * MS, "python": 2 * MS}, where, text),
        ),
        findings=(finding,),
        unchecked=(Unchecked(text, text, text),),
        health=(finding,),
    )
