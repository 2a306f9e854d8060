"""What limits each real recording, as an expert says by its raw events.

The shares were worked out from the raw events: the union of the device's intervals for its idle
and busy time, and the nesting of calls for the host. A report may round, not contradict them.
"""

from typing import NamedTuple

import pytest

from profkit.present.diagnosis import headline_sentences
from profkit.present.limiters import Cause, choose, choose_window, find_candidates
from tests.corpus.recordings import needs_corpus, report_on, trace_path

MAX_OFF = 0.02

pytestmark = needs_corpus


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
    "cpu-vae-module-level-frame": Judgement(Cause.OPERATORS, 0.90, "each 29.9 ms step on the CPU"),
    "cpu-vae-one-step": Judgement(Cause.DATA, 0.59, "waits for data", "No problems found"),
    "cpu-vae-windows-3-steps": Judgement(Cause.OPERATORS, 0.77, "77% of each later 42.9 ms step"),
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
        Cause.IDLE, 0.91, "because the host is in `hipFree` at main (train_single_gpu.py)"
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
    "mtia-inference": Judgement(Cause.DEVICE, 0.95, "The device is busy 95%", "on the CPU"),
    "randn-on-host-then-moved": Judgement(Cause.OPERATORS, 0.98, "aten::normal_", "on the CPU"),
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
        Cause.IDLE, 0.86, "step, because the CPU launches its 16 kernels too slowly"
    ),
    "v100-ddp-404-allreduces": Judgement(
        Cause.DEVICE, 0.58, "Collectives that nothing overlaps take 21%"
    ),
    "v100-resnet50-loader-0-workers": Judgement(Cause.DEVICE, 0.56, "waits 34% for data"),
    "v100-resnet50-loader-4-workers": Judgement(Cause.DEVICE, 0.72, "waits 26% for launches"),
    "v100-resnet50-no-profiler-steps": Judgement(
        Cause.COLD_START, 0.82, "63% of each later 160 ms step, mostly with convolutions"
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_the_first_sentences_say_what_limits_the_program(name: str) -> None:
    report, judged = report_on(trace_path(name)), JUDGED[name]
    limiter = choose(find_candidates(choose_window(report)))[0]
    assert limiter.cause is judged.cause
    assert limiter.share == pytest.approx(judged.share, abs=MAX_OFF)

    sentences = headline_sentences(report)
    assert sentences[0] == limiter.sentence
    assert judged.says in " ".join(sentences[:2])
    assert not judged.must_not or judged.must_not not in " ".join(sentences)
