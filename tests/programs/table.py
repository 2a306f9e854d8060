"""What is true of each program: its steps, and the rules that hold for it."""

from dataclasses import dataclass, field
from typing import Final

SMALL_BATCHES: Final = "the main process collates small batches, which is a part of each step"
ANYWHERE: Final = {
    "unfused-optimizer": "optimizers update one parameter after the other on a CPU by default",
}
"""Rules that are true of any program with enough parameters for its computation."""
SHARED_CORES: Final = "two ranks share the cores, and gloo transfers gradients in their processes"


@dataclass(frozen=True)
class Expected:
    """What ``profkit run`` must find in a program.

    Attributes:
        steps: Number of its steps, or of calls of its model in threads; None without either.
        definition: The report's words for what its steps are.
        may: Rules that are true on some machines, with the reason. Any other is a false alarm.
        args: The program's arguments.
        how: How it is started: a file beside this one, or a module.
        needs: Packages that it imports, beside torch.
    """

    steps: int | None
    definition: str = ""
    may: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    how: str = "script"
    needs: tuple[str, ...] = ()


def _steps(n: int, *needs: str, loader: str = "", args: tuple[str, ...] = ()) -> Expected:
    """Return a program with steps of an optimizer.

    Args:
        loader: Why ``starved-by-loader`` may be.
    """
    return Expected(
        n,
        "optimizer steps",
        may={"starved-by-loader": loader} if loader else {},
        args=args,
        needs=needs,
    )


PROGRAMS: Final[dict[str, Expected]] = {
    "accelerate_loop": _steps(48, "accelerate", loader=SMALL_BATCHES),
    "actor_critic": _steps(60, "gymnasium"),
    "amp_bfloat16": Expected(
        40,
        "optimizer steps",
        may={
            "slow-convolutions": "the processor may have no instructions for bfloat16",
            "half-products": "the same",
        },
    ),
    "asyncio_service": Expected(300),
    "botorch_search": Expected(None, needs=("botorch",)),
    "checkpointed_blocks": _steps(24),
    "compiled_model": _steps(60),
    "ddp_two_ranks": Expected(
        20,
        "optimizer steps",
        may={"exposed-communication": SHARED_CORES, "straggling-rank": SHARED_CORES},
    ),
    "diffusers_unet": Expected(
        16,
        "optimizer steps",
        needs=("diffusers",),
    ),
    "einops_vit": _steps(30, "einops"),
    "exported_and_scripted": Expected(
        1,
        may={
            "compile-in-window": "the scripted model is compiled at its third call",
        },
    ),
    "fastai_tabular": Expected(
        86,
        "iterations of the loader",
        may={
            "starved-by-loader": SMALL_BATCHES,
        },
        needs=("fastai",),
    ),
    "fastapi_service": Expected(
        300, needs=("fastapi", "httpx")
    ),
    "flask_service": Expected(
        300,
        may={"host-function": "flask's test client takes most of a request"},
        needs=("flask",),
    ),
    "forward_mode": Expected(100),
    "gan": _steps(120),
    "gpytorch_regression": _steps(40, "gpytorch"),
    "ignite_engine": _steps(80, "ignite", loader=SMALL_BATCHES),
    "iris_tutorial": _steps(8000, "sklearn"),
    "joblib_workers": Expected(
        None, needs=("joblib",)
    ),
    "kornia_augmentation": _steps(16, "kornia", loader=SMALL_BATCHES),
    "lbfgs_sequence": _steps(6),
    "lightning_fit": _steps(60, "lightning", loader=SMALL_BATCHES),
    "loader_workers_fork": _steps(24, loader="two workers take 32 ms per batch", args=("fork",)),
    "loader_workers_spawn": _steps(24, loader="two workers take 32 ms per batch", args=("spawn",)),
    "monai_segmentation": _steps(24, "monai", loader=SMALL_BATCHES),
    "optuna_search": _steps(600, "optuna"),
    "own_function": _steps(50),
    "parametrized_and_pruned": _steps(60),
    "peft_lora": _steps(30, "peft"),
    "pyg_gat": _steps(60, "torch_geometric"),
    "pyro_svi": _steps(200, "pyro"),
    "quantized_inference": Expected(
        100,
        "iterations of the loader",
        may={"starved-by-loader": SMALL_BATCHES},
    ),
    "reinforce": _steps(60, "gymnasium"),
    "rnn_sine": _steps(200),
    "sb3_ppo": _steps(96, "stable_baselines3"),
    "sentence_embeddings": Expected(39, needs=("sentence_transformers",)),
    "skorch_grid": _steps(48, "skorch", loader=SMALL_BATCHES),
    "spawned_workers": Expected(50, "optimizer steps"),
    "threads_train": Expected(None),
    "torchmetrics_evaluation": Expected(
        100, "iterations of the loader", may={"starved-by-loader": SMALL_BATCHES},
        needs=("torchmetrics",),
    ),
    "torchrl_rollouts": _steps(25, "torchrl"),
    "transformers_trainer": _steps(40, "transformers", loader=SMALL_BATCHES),
    "vae": _steps(90, loader=SMALL_BATCHES),
    "x_transformers_lm": _steps(24, "x_transformers"),
}  # fmt: skip
