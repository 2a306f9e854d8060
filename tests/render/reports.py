"""Reports made by hand: a GPU run, a CPU run, and the odd ones that renderers must survive."""

from profkit.model.finding import Cost, Finding, Unchecked
from profkit.model.memory_summary import MemorySummary, PeakMemory
from profkit.model.report import (
    Breakdown,
    CopySummary,
    DeviceSummary,
    IdleTime,
    KernelSummary,
    OpSummary,
    RegionSummary,
    Report,
    Source,
    StepSummary,
    Summary,
    SyncSummary,
    TimePart,
)
from profkit.model.trace import RecordedWith
from profkit.model.where import Location

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
    """A breakdown whose parts are given by kind, with underscores for dashes."""
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


def source(**changes: object) -> Source:
    """Where a report came from."""
    facts: dict[str, object] = {
        "path": "/home/me/project/traces/train/host_1.1700000000000.pt.trace.json.gz",
        "kind": "trace",
        "n_events": 46_018,
        "torch": "2.13.0",
        "devices": ("NVIDIA H200",),
        "rank": None,
        "world_size": None,
        "recorded_with": RecordedWith(stacks=True, shapes=True, memory=True),
        "steps_are": "iterations of the loader",
    }
    return Source(**(facts | changes))  # type: ignore[arg-type]


def starved() -> Finding:
    """A finding that costs time on every step."""
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
        claims=((0, 65 * MS),),
    )


def leak() -> Finding:
    """A finding that costs memory."""
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


def no_stacks() -> Finding:
    """A fault of the recording."""
    return Finding(
        rule="PRF001",
        name="no-warm-up",
        severity="note",
        confidence="high",
        title="The first step was recorded",
        message="The first step takes 1.80 times as long as the others.",
        fix="Record with warmup=1.",
    )


def gpu_report() -> Report:
    """Six steps on a GPU that the loader starves."""
    return Report(
        profkit="0.1.0",
        source=source(),
        summary=Summary(
            window_ns=1100 * MS,
            devices=(
                DeviceSummary(
                    "cuda:0", "NVIDIA H200", 1044 * MS, 640 * MS, 404 * MS, 610 * MS, 0, 0, 30 * MS,
                    7800, 12, 600, (IdleTime("data", 390 * MS), IdleTime("host", 14 * MS)),
                ),
            ),
            steps=tuple(
                StepSummary(f"ProfilerStep#{n}", n * 174 * MS, (171 + n) * MS, 107 * MS, 67 * MS,
                            65 * MS, 2 * MS)
                for n in range(6)
            ),
            top_kernels=(
                KernelSummary("volta_sgemm_64x64_nt", 120, 210 * MS, 1750_000, 0.34, "aten::mm",
                              None, Location("/home/me/project/lib/model.py", 12, "forward")),
                KernelSummary(VECTORIZED, 960, 120 * MS, 125_000, 0.2, "aten::add_"),
                KernelSummary("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage"
                              "<4096ul>)", 6, 60 * MS, 10 * MS, 0.1),
            ),
            top_ops=(
                OpSummary("aten::conv2d", 318, 190 * MS, 4 * MS, 0),
                OpSummary("aten::cudnn_convolution", 318, 140 * MS, 130 * MS, 280 * MS,
                          Location("/home/me/project/lib/model.py", 12, "forward")),
                OpSummary("aten::mm", 120, 40 * MS, 38 * MS, 210 * MS),
            ),
            regions=(RegionSummary("forward", 6, 600 * MS, 300 * MS),),
            syncs=(SyncSummary("cudaStreamSynchronize", 12, 12 * MS),),
            copies=(CopySummary("Memcpy HtoD (Pageable -> Device)", 12, 30 * MS, 462_422_016),),
            n_gpu_events_without_launch=4,
            memory=MemorySummary(1200, 40, 4 << 20, 12, (PeakMemory("cuda:0", 3 << 30),)),
            breakdown=breakdown(
                6, on_device=True, compute=610 * MS, copy=30 * MS, idle_data=390 * MS,
                idle_host=12 * MS, idle_launch=2 * MS,
            ),
            claimed_ns=390 * MS,
        ),
        findings=(starved(), leak()),
        unchecked=(
            Unchecked("SYN001", "The recording has no stacks.", "Record with stacks=True."),
            Unchecked("DAT003", "The recording has no stacks.", "Record with stacks=True."),
            Unchecked("MEM002", "The recording has no memory events.", "Record with memory=True."),
        ),
        health=(no_stacks(),),
    )  # fmt: skip


def cpu_report() -> Report:
    """Three steps on a CPU."""
    return Report(
        profkit="0.1.0",
        source=source(devices=(), stretch_share=0.8, lines_from="window"),
        summary=Summary(
            window_ns=40 * MS,
            steps=tuple(
                StepSummary(f"step {n}", n * 12 * MS, 12 * MS, None, None, 3 * MS, 0)
                for n in range(3)
            ),
            top_ops=(OpSummary("aten::addmm", 30, 9 * MS, 8 * MS, 0),),
            memory=MemorySummary(20, 3, 1 << 20, 0, (PeakMemory("cpu", 30 << 20),)),
            breakdown=breakdown(
                3, on_device=False, operators=12 * MS, backward=9 * MS, optimizer=3 * MS,
                data=9 * MS, python=3 * MS,
            ),
        ),
        findings=(leak(),),
    )  # fmt: skip


def empty_report() -> Report:
    """A recording that holds nothing, and rules that found nothing."""
    return Report("0.1.0", source(path="", kind="live", devices=(), torch=None), Summary(0))


def unchecked_report() -> Report:
    """A recording that no rule could look at."""
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
    report = gpu_report()
    return Report(report.profkit, report.source, report.summary, (starved(), leak()) * 5000)


def hostile_report(text: str) -> Report:
    """A report in which every name and every sentence is one hostile text."""
    where = Location(text, 1, text, text, text, text)
    finding = Finding(
        rule=text, name=text, severity="warning", confidence="low", title=text, message=text,
        fix=text, locations=(where, where), cost=Cost(ns=MS), holders=((text, text),),
        evidence={text or "empty": text, "list": [text], "nan": float("nan")},
    )  # fmt: skip
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
            memory=MemorySummary(1, 1, 1, 1, (PeakMemory(text, 1),)),
            breakdown=breakdown(1, on_device=True, compute=8 * MS, idle_host=2 * MS),
        ),
        findings=(finding,),
        unchecked=(Unchecked(text, text, text),),
        health=(finding,),
    )
