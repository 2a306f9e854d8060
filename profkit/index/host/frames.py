"""Python frames in a trace: file, line, and whether they are user code."""

import re
import sys
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.capture_info import CaptureInfo
from profkit.model.location import Frame
from profkit.patterns import regex

_FRAME: Final = regex(r"^(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)$", re.DOTALL)
_LIBRARY_FOLDER: Final = regex(
    r"(^|[/\\])(site-packages|dist-packages)[/\\]"
    r"|[/\\]lib[/\\]python3?(\.\d+)?[/\\]"
    r"|[/\\]Python3\d+[/\\]Lib[/\\]",
    re.IGNORECASE,
)
_TORCH: Final = regex(r"(^|[/\\])(torch|functorch|torchgen)[/\\]|^<built-in \w+ .*\btorch\b")
_GENERATED: Final = regex(
    r"^<(?!ipython-input)|(^|[/\\])torchinductor_|[/\\]torch_compile_debug[/\\]|\.fxgraph"
)
_ALWAYS_LIBRARIES: Final = frozenset(
    {
        "torch", "functorch", "torchgen", "torchvision", "torchaudio", "torch_tb_profiler",
        "numpy", "pandas", "scipy", "sklearn", "PIL", "triton", "profkit", "tqdm", "accelerate",
        "transformers", "datasets", "lightning", "pytorch_lightning", "lightning_fabric",
        "deepspeed", "megatron", "apex", "timm", "einops", "click", "ray", "ignite", "fastai",
        "debugpy", "pydevd", "_pytest", "pluggy", "ipykernel", "IPython", "traitlets", "tornado",
        "matplotlib", "seaborn", "plotly", "rich", "loguru", "tensorboard", "tensorboardX", "wandb",
        "mlflow", "neptune", "comet_ml", "clearml", "safetensors", "tokenizers", "huggingface_hub",
        "peft", "trl", "diffusers", "torchmetrics", "torcheval", "cv2", "joblib", "numba", "h5py",
    }
)  # fmt: skip
"""First path components that are libraries even where torch removed the preceding path.

Source: ``torch/profiler/python_tracer.py`` (``_prefix_regex``): every prefix on ``sys.path``,
including ``site-packages``, is removed from the file names in a trace.
"""


_OF_TENSORS: Final = regex(
    r"(^|[/\\\\])torch[/\\\\](_tensor|_tensor_str|functional|_jit_internal|_ops|overrides"
    r"|utils[/\\\\]_contextlib|(cuda|xpu|accelerator)[/\\\\](__init__|streams))\.py$"
)
"""Python code of torch that runs as a part of a tensor's method, function or decorator, or of a
call that synchronizes with a device."""


def is_library_function(file: str, function: str) -> bool:
    """Return whether a function that is not the user's is more than a tensor's method.

    Methods of tensors of a class of their own run in ``__torch_function__``.
    """
    return function != "__torch_function__" and _OF_TENSORS.search(file) is None


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Frame | None:
    """Parse ``train.py(12): train_step``; None for builtins and modules.

    The line is where the function is defined: torch writes no other.

    Source: ``torch/csrc/profiler/collection.cpp`` (``Result::name``).
    """
    match = _FRAME.match(name)
    if match is None:
        return None
    return Frame(
        file=match["file"],
        line=int(match["line"]),
        function=match["function"],
        precision="function",
    )


@dataclass(frozen=True)
class Ownership:
    """Which files are user code.

    Attributes:
        paths: The user's files by their shortened paths.
        libraries: First components of shortened paths of installed packages.
        is_known: Whether both were recorded; otherwise they are guessed from the paths.
    """

    paths: Mapping[str, str]
    libraries: Collection[str]
    is_known: bool

    def is_user(self, file: str) -> bool:
        """Return whether a file is not a library, the standard library or generated code."""
        if file in self.paths:
            return True
        if _GENERATED.search(file) or _LIBRARY_FOLDER.search(file):
            return False

        # torch removes the folder of an installed package, so its name comes first.
        first = re.split(r"[/\\]", file, maxsplit=1)[0]
        stem = first.removesuffix(".py")
        if stem in _ALWAYS_LIBRARIES or stem in self.libraries:
            return False
        return self.is_known or stem not in sys.stdlib_module_names

    def path(self, file: str) -> str:
        """Return the full path of a shortened path, where it was recorded."""
        return self.paths.get(file, file)


def ownership_of(capture: CaptureInfo | None) -> Ownership:
    """Return which files of a recording are user code, by what profkit recorded about paths."""
    return Ownership(
        paths=capture.paths if capture else {},
        libraries=frozenset(capture.libraries if capture else ()),
        is_known=capture is not None and bool(capture.paths),
    )


CodeOwner = Literal["own", "torch", "library"]
"""Whose Python code a call runs: the user's, PyTorch's, or another library's, which includes
the standard library and built-in functions."""


def owner_of_call(name: str, ownership: Ownership) -> CodeOwner:
    """Return whose code a Python call runs.

    Args:
        name: A file, or the name of an event, which may be a built-in function.
    """
    frame = parse_frame(name)
    file = name if frame is None else frame.file
    if not file.startswith("<built-in") and ownership.is_user(file):
        return "own"
    return "torch" if _TORCH.search(file) else "library"
