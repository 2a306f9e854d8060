"""What limits each recording, as an expert says by its raw events.

The shares were worked out from the raw events: the union of the device's intervals for its idle
and busy time, the nesting of calls for the host, and a replay of the allocator's history for what
is live at its peak. A report may round, not contradict them.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from profkit.present.diagnosis import cautions, headline_sentences
from profkit.present.labels import cost_share
from profkit.present.limiters import (
    Cause,
    choose,
    choose_window,
    find_candidates,
    find_job_limiter,
)
from tests.corpus.recordings import CORPUS, SNAPSHOTS, needs_corpus, report_on, trace_path

MAX_OFF = 0.02
RANKS = CORPUS / "ranks"
OWN_TRACES = Path(__file__).parents[2] / "traces"


class Judgement(NamedTuple):
    """What an expert says of a recording.

    Attributes:
        share: Of the steps, or of the recording without any, that the cause takes.
        says: A part of what the first two sentences say.
        must_not: What none of them may say.
    """

    cause: Cause
    share: float
    says: str
    must_not: str = ""


JUDGED = {
    "a100-ddp-rank0-of-2": Judgement(
        Cause.IDLE, 0.76, "because the CPU launches its 900 kernels too slowly"
    ),
    "a100-embedding-rank3-of-8": Judgement(
        Cause.DEVICE, 0.84, "mainly with collectives (37% of kernel time)"
    ),
    "b200-eager-inference": Judgement(Cause.IDLE, 0.86, "the CPU launches its kernels too slowly"),
    "b300-graph-decode": Judgement(
        Cause.DEVICE, 0.72, "mostly with matrix products", "No problems found"
    ),
    "bracketed-copies": Judgement(Cause.IDLE, 0.71, "a cause that the recording does not show"),
    "cpu-vae-module-level-frame": Judgement(
        Cause.OPERATORS, 0.90, "The optimizer takes 39% of each 29.9 ms step on the CPU, other"
    ),
    "cpu-vae-one-step": Judgement(Cause.DATA, 0.59, "waits for data", "No problems found"),
    "cpu-vae-windows-3-steps": Judgement(
        Cause.OPERATORS, 0.77, "The optimizer takes 35% of each later 42.9 ms step on the CPU"
    ),
    "cupti-ranges-no-kernels": Judgement(
        Cause.COLD_START, 0.68, "first load code and libraries", "on the CPU"
    ),
    "graph-kernels-missing": Judgement(
        Cause.UNRECORDED, 0.62, "on something that was not recorded"
    ),
    "h100-qwen-inference": Judgement(
        Cause.DEVICE, 0.92, "(39% of kernel time) and matrix products"
    ),
    "inference-with-autograd-on": Judgement(Cause.COLD_START, 0.65, "The GPU is idle 99%"),
    "legacy-autograd-array": Judgement(
        Cause.OPERATORS, 1.00, "mostly aten::cudnn_convolution", "on the CPU"
    ),
    "loader-waits-without-steps": Judgement(Cause.IDLE, 0.67, "47% because it waits for data"),
    "mi300-owlv2-inference": Judgement(Cause.IDLE, 0.70, "because it waits for data"),
    "mi300-resnet-ddp": Judgement(
        Cause.COMMUNICATION, 0.99, "collectives that nothing overlaps (62%)"
    ),
    "mi300-resnet18-allocator-off": Judgement(
        Cause.IDLE, 0.93, "because the host is in `hipFree` at main (train_single_gpu.py)"
    ),
    "mi300-timesformer-inference": Judgement(
        Cause.IDLE, 0.69, "the host runs Python at run_on_input (model.py:40)"
    ),
    "mi300-vit-inference": Judgement(
        Cause.IDLE,
        0.77,
        "step, because the CPU launches its 155 kernels too slowly",
        "No problems found",
    ),
    "mtia-inference": Judgement(
        Cause.DEVICE, 0.95, "mostly with `merge` (62% of kernel time)", "on the CPU"
    ),
    "randn-on-host-then-moved": Judgement(
        Cause.OPERATORS, 0.98, "aten::normal_ (75%)", "on the CPU"
    ),
    "rank0-of-128": Judgement(
        Cause.COMMUNICATION, 0.45, "mainly with collectives that nothing overlaps"
    ),
    "rank1-of-128": Judgement(
        Cause.COMMUNICATION, 0.47, "mainly with collectives that nothing overlaps"
    ),
    "rocm-gemm-no-correlation": Judgement(Cause.DEVICE, 0.94, "nearly all with matrix products"),
    "rocm-vllm-graph": Judgement(Cause.DEVICE, 1.00, "nearly all with matrix products"),
    "sglang-decode": Judgement(Cause.UNRECORDED, 0.98, "worked for 464 ms (98%)"),
    "switch-transformer-inference": Judgement(Cause.DEVICE, 0.81, "waits 14% for launches"),
    "transformer-few-kernels-idle": Judgement(
        Cause.IDLE, 0.83, "later 776 µs step, because the CPU launches its 16 kernels too slowly"
    ),
    "v100-ddp-404-allreduces": Judgement(
        Cause.DEVICE, 0.58, "collectives that nothing overlaps take 21%"
    ),
    "v100-resnet50-loader-0-workers": Judgement(Cause.DEVICE, 0.56, "waits 34% for data"),
    "v100-resnet50-loader-4-workers": Judgement(Cause.DEVICE, 0.72, "waits 26% for launches"),
    "v100-resnet50-no-profiler-steps": Judgement(
        Cause.COLD_START, 0.82, "63% of each later 160 ms step, mostly with convolutions"
    ),
}


OWN = {
    "evaluation_cured": Judgement(Cause.OPERATORS, 0.83, "57% at evaluation_cured.py:22"),
    "evaluation_with_graph": Judgement(Cause.OPERATORS, 0.96, "64% at evaluation_with_graph.py:22"),
    "inference_autocast": Judgement(Cause.OPERATORS, 0.98, "mostly aten::copy_ (64%)"),
    "inference_cured": Judgement(Cause.OPERATORS, 0.63, "62% at inference_cured.py:36"),
    "iris_item_each_epoch": Judgement(Cause.OPERATORS, 0.54, "each later 1.15 ms step on the CPU"),
    "iris_item_every_200": Judgement(
        Cause.PYTHON, 0.58, "the optimizer's included", "No problems found"
    ),
    "iris_losses_kept": Judgement(
        Cause.OTHER_STEPS, 0.78, "One of 3 steps takes 13.3 ms, the others 1.12 ms: 92% at"
    ),
    "iris_no_losses": Judgement(Cause.OPERATORS, 0.52, "each 1.22 ms step on the CPU"),
    "leak_cured": Judgement(Cause.OPERATORS, 0.85, "the longest aten::mm (30%)"),
    "leak_losses_with_graph": Judgement(Cause.OPERATORS, 0.86, "the longest aten::mm (29%)"),
    "starved_loader": Judgement(
        Cause.OPERATORS, 0.71, "loop waits for the data loader at starved_loader.py:84"
    ),
    "starved_loader_cured": Judgement(
        Cause.OPERATORS, 0.90, "the longest aten::convolution_backward (44%)"
    ),
    "zeroed_gradients": Judgement(Cause.OPERATORS, 0.87, "mostly aten::mm (59%)"),
    "zeroed_gradients_cured": Judgement(Cause.OPERATORS, 0.94, "mostly aten::mm (40%)"),
}
"""The traces of this repository."""

RANKS_ALONE = {
    **{
        f"bytedance-AR/rank{rank}": Judgement(
            Cause.COMMUNICATION, busy, f"with collectives that nothing overlaps ({exposed}%)"
        )
        for rank, busy, exposed in (
            (4, 1.00, 59), (8, 1.00, 59), (12, 1.00, 59), (16, 0.97, 56), (20, 1.00, 58),
            (24, 1.00, 58), (28, 1.00, 58), (32, 0.96, 54), (36, 1.00, 58), (40, 1.00, 59),
            (44, 1.00, 59), (48, 0.94, 51),
        )
    },
    **{
        f"bytedance-AR/rank{rank}": Judgement(Cause.DEVICE, 0.51, "and is idle 49%: unknown cause")
        for rank in (52, 56, 60)
    },
    "bytedance-AR/rank0": Judgement(
        Cause.DEVICE, 0.99, "mostly with `backward_compute` (59% of kernel time)"
    ),
    **{
        f"bytedance-ST/rank{rank}": Judgement(
            Cause.COMMUNICATION, 0.98, f"with collectives that nothing overlaps ({exposed}%)"
        )
        for rank, exposed in ((0, 58), (1, 58), (2, 50), (3, 50))
    },
    **{
        f"bytedance-ST/rank{rank}": Judgement(
            Cause.DEVICE, 0.98, f"collectives that nothing overlaps take {exposed}%"
        )
        for rank, exposed in ((4, 44), (5, 44), (6, 33), (7, 33))
    },
    "gloo-a/rank0.pt.trace": Judgement(
        Cause.COMMUNICATION, 0.89, "Collectives that nothing overlaps take 89%"
    ),
    "gloo-a/rank1.pt.trace": Judgement(
        Cause.COMMUNICATION, 0.90, "Collectives that nothing overlaps take 90%"
    ),
    "gloo-a/rank2.pt.trace": Judgement(Cause.PYTHON, 0.71, "mostly slow data (67%)"),
    "gloo-a/rank3.pt.trace": Judgement(
        Cause.COMMUNICATION, 0.94, "Collectives that nothing overlaps take 94%"
    ),
}  # fmt: skip
"""Single ranks of jobs."""

JOBS = {
    # Without rank 0's longer computation the replay of the job's authors takes 23.45 of 46.34 s.
    "bytedance-AR": (
        0.494, "Rank 0 makes the 15 other recorded ranks wait for 23.1 s of each 46.4 s step"
    ),
    "bytedance-ST": (
        0.37, "Stages of the pipeline wait for each other for up to 816 ms of each 2.22 s step"
    ),
    # It sleeps for 40 ms before each step.
    "gloo-a": (
        40 / 63.4, "Rank 2 makes the 3 other ranks wait for 40.9 ms of each 63.4 ms step"
    ),
}  # fmt: skip

SNAPSHOT_CONTENTS = {
    "albi2-dump-snapshot-v4": "Of the 22.0 MiB reserved on cuda:0 13.8 MiB (63%) are free",
    "albi2-dump-snapshot": "Of the 42.0 MiB reserved on cuda:0, the fullest of 2 devices, 33.9 MiB",
    "bcrafton-memory-snapshot": "40% optimizer state (optimizer.py:75, :74), 12% workspaces",
    **{
        f"cornell-sysphotonics-rank{rank}-memory-snapshot": (
            f"cuda:{rank} ran out of memory at loss.py:21: an allocation of 3.91 GiB failed with "
            "3.75 GiB free on the device; PyTorch had enough free memory, but in separate blocks"
        )
        for rank in range(4)
    },
    "facebookresearch-output": "of many lines, the largest 4.4% at foo.py:1483",
    "felixburton7-dump-snapshot-v2": "Of the 44.0 MiB reserved on cuda:0 24.0 MiB (54%) are free",
    "felixburton7-dump-snapshot": "Of the 182 MiB reserved on cuda:0 97.4 MiB (54%) are free",
    "hugepandacoder-cuda-single-step": "49% from 1784485557.py:6 and 49% from 1784485557.py:2",
    "hugepandacoder-inference2-peso-oct": "80% activations (inference2_peso_oct.py:198, :200)",
    "hugepandacoder-my-snapshot-v2": "18.2 GiB peak of cuda:0 is 100% activations (Model_Basic",
    "hugepandacoder-my-snapshot": "13.4 GiB peak of cuda:0 is 100% activations (Model_Basic",
    "jogregoire-my-snapshot": "59% activations (unet.py:134) and 41% parameters",
    "kkaitlyn111-memory-2.7b-forward": "64% from before the recording",
    "kkaitlyn111-memory-ctx128-fullstep-2": "49% optimizer state (optimizers.py:82, :84), 25%",
    "kkaitlyn111-memory-ctx128-fullstep": "49% optimizer state (optimizers.py:82, :84), 25%",
    "kkaitlyn111-memory-ctx256-forward": "60% from before the recording",
    "kkaitlyn111-memory-small-forward": "49% from before the recording",
    "kkaitlyn111-memory-snapshot": "Of the 70.7 GiB reserved on cuda:0 19.4 GiB (27%) are free",
    "magma27-memory-snapshot": "13.0 GiB peak of cuda:0 is 85% activations",
    "maphsge4-snapshot-v2": "43% activations (modeling_bert.py:703, :466) and 56% from before",
    "maphsge4-snapshot-v3": "Of the 5.18 GiB reserved on cuda:1 4.67 GiB (90%) are free",
    "maphsge4-snapshot": "67% from before the recording",
    "muduard-dump-snapshot": "9.98 GiB active on cuda:1, the fullest of 2 devices, are 80% activ",
    "muduard-memory-snapshot": "35% activations (ptp_utils.py:258, :471) and 65% without a stack",
    "silmont2000-mem-snapshot": "83% gradients (trace_peak_memory.py:47) and 17% from trace_peak",
    "silmont2000-memory-forward-fp32-128": "532 MiB peak of cuda:0 is 94% from before the rec",
    "sunnysood80-dump-snapshot": "The snapshot contains no device memory.",
    "wedsonlin-medium-128-inference-memory-snapshot": "98% from before the recording",
    "wedsonlin-medium-128-training-memory-snapshot": "48% optimizer state (optimizer.py:77, :76)",
    "yiyi-philosophy-1.3b-snapshot-2": "772 MiB active on cuda:0 are 99% from pytorch_b",
    "yiyi-philosophy-1.3b-snapshot": "3.61 GiB active on cuda:0 are 100% from pytorch_",
    "zidongliu-memory": "28% parameters (client.py:176), 28% from adam_forward.py:168 and 17%",
    "zijiandu-memory": "Of the 15.1 GiB reserved on cuda:0 7.16 GiB (47%) are free",
}


def paths() -> dict[Path, Judgement]:
    """Return the recordings of single processes with their judgements."""
    judged = {next((OWN_TRACES / name).glob("*.trace.json.gz")): OWN[name] for name in OWN}
    if CORPUS.is_dir():
        judged |= {trace_path(name): judgement for name, judgement in JUDGED.items()}
        judged |= {RANKS / f"{name}.json.gz": judgement for name, judgement in RANKS_ALONE.items()}
    return judged


@pytest.mark.parametrize(
    ("path", "judged"), paths().items(), ids=lambda item: getattr(item, "name", "")
)
def test_the_first_sentences_say_what_limits_the_program(path: Path, judged: Judgement) -> None:
    report = report_on(path)
    limiter = choose(find_candidates(choose_window(report)))[0]
    assert limiter.cause is judged.cause
    assert limiter.share == pytest.approx(judged.share, abs=MAX_OFF)

    sentences = headline_sentences(report)
    assert sentences[0] == limiter.sentence
    assert judged.says in " ".join(sentences[:2])
    assert not judged.must_not or judged.must_not not in " ".join(sentences)
    assert len([said for said in sentences if said not in {*cautions(report)}]) <= 3


@needs_corpus
@pytest.mark.parametrize("name", JOBS)
def test_the_first_sentence_on_a_job_says_what_its_ranks_wait_for(name: str) -> None:
    report, (share, says) = report_on(RANKS / name), JOBS[name]
    limiter = find_job_limiter(report)
    assert limiter is not None
    assert cost_share(report, limiter) == pytest.approx(share, abs=MAX_OFF)
    sentences = headline_sentences(report)
    assert sentences[0].startswith(says)
    assert len(sentences) <= 3


@needs_corpus
def test_the_first_sentence_on_a_snapshot_says_what_fills_the_device() -> None:
    firsts = {
        path.name.removesuffix(".pickle.gz"): headline_sentences(report_on(path))
        for path in SNAPSHOTS.iterdir()
    }
    assert set(firsts) == set(SNAPSHOT_CONTENTS)
    wrong = {name: said for name, said in firsts.items() if SNAPSHOT_CONTENTS[name] not in said[0]}
    assert wrong == {}
    n_cautions = {"facebookresearch-output": 1}
    assert max(len(said) - n_cautions.get(name, 0) for name, said in firsts.items()) <= 3


@needs_corpus
def test_every_recording_is_judged() -> None:
    files = {path for folder in ("traces", "ranks") for path in (CORPUS / folder).rglob("*.gz")}
    # Without any event there is nothing to say but that.
    unjudged = {path.name for path in files - set(paths())}
    assert unjudged == {"nothing-recorded.json.gz"}
