"""What is true of each program: its steps, its end, and what a signal does to it."""

import signal
from dataclasses import dataclass
from typing import Final

MIN_STEPS: Final = 10
"""A program with this many steps must have a whole one in its report."""


@dataclass(frozen=True)
class Ending:
    """How a signal ends a program.

    Attributes:
        code: Exit code, negative for a signal.
        output: What the program prints because of the signal, at the end of its output.
    """

    code: int
    output: str = ""


TERMINATED: Final = Ending(-signal.SIGTERM)
INTERRUPTED: Final = Ending(-signal.SIGINT)


@dataclass(frozen=True)
class Program:
    """A program and what must be true of it.

    Attributes:
        n_steps: Number of steps of its main thread or of each rank; None where it has none that
            are told by an optimizer, a loader or the call of a module.
        code: Exit code without signals.
        on_term: How SIGTERM ends it; None if it is not sent.
        on_int: How SIGINT ends it; None if it is not sent.
        handles_alarms: Whether SIGALRM may be sent once it has printed its first line.
        leaves_report: Whether it ends so that profkit can report.
        ranks: Number of processes that torchrun starts, or 0 without torchrun.
    """

    n_steps: int | None
    code: int = 0
    on_term: Ending | None = TERMINATED
    on_int: Ending | None = INTERRUPTED
    handles_alarms: bool = False
    leaves_report: bool = True
    ranks: int = 0

    @property
    def has_whole_step(self) -> bool:
        """Return whether its report must have a complete step."""
        return self.leaves_report and self.n_steps is not None and self.n_steps >= MIN_STEPS


PROGRAMS: Final[dict[str, Program]] = {
    "actor_critic": Program(20),
    "adam_embedding": Program(25),
    "alarm_kilohertz": Program(40, handles_alarms=True),
    "alarm_timeout": Program(20),
    "amp_bfloat16": Program(30),
    "asyncio_service": Program(200),
    "checkpointed": Program(20),
    "cnn_loader": Program(25),
    "compiled_blocks": Program(25),
    "custom_operator": Program(40),
    # Whether the parent waits for its ranks after an interrupt is a race within torch.
    "ddp_spawned": Program(20, on_int=None),
    "ddp_torchrun": Program(24, on_term=None, on_int=None, ranks=2),
    "deep_recursion": Program(20),
    "dispatch_mode": Program(30),
    "double_backward": Program(40),
    "early_break": Program(36),
    "ema_average": Program(50),
    "exec_loop": Program(40),
    "exits_at_once": Program(20, code=5, leaves_report=False),
    "exits_with_three": Program(31, code=3),
    "forks_inside": Program(30),
    "from_scratch": Program(None),
    "func_vmap": Program(None),
    "gan_two_optimizers": Program(60),
    "gc_callbacks": Program(50),
    "gc_each_step": Program(25),
    "generator_loop": Program(40),
    "gradient_accumulation": Program(20),
    "inference_loader": Program(40),
    "inference_modules": Program(300),
    "lbfgs_closure": Program(14),
    "loader_in_mode": Program(20),
    "loader_two_workers": Program(24),
    "lr_schedulers": Program(60),
    "lstm_sequence": Program(30),
    "many_groups": Program(30),
    "maml": Program(15),
    "module_hooks": Program(40),
    "nested_modules": Program(30),
    "numpy_preparation": Program(20),
    "own_annotations": Program(40),
    "own_cprofile": Program(30),
    "own_function": Program(60),
    "own_optimizer": Program(40),
    "own_setprofile": Program(30),
    "own_sigint": Program(200, on_int=Ending(7, "interrupted\n")),
    "own_sigterm": Program(200, on_term=Ending(0, "stopped by SIGTERM\n")),
    "own_torch_profiler": Program(50),
    "pool_inference": Program(None),
    "queue_of_batches": Program(40),
    "raises_at_20": Program(20, code=1),
    "reinforce": Program(25),
    "repr_runs_operators": Program(40),
    "scripted_after_calls": Program(30),
    "scripted_model": Program(40),
    "short_epochs": Program(60),
    "sleeping_steps": Program(30),
    "slow_linalg": Program(12),
    "sparse_adam": Program(40),
    "starts_subprocesses": Program(20),
    "step_in_backward": Program(40),
    "tensor_parallel": Program(30, on_term=None, on_int=None, ranks=2),
    # An interrupt leaves its threads running, and how Python ends then is a race.
    "threads_train": Program(None, on_int=None),
    "tiny_modules": Program(3000),
    "transformer_by_hand": Program(14),
    "two_models": Program(40),
    "validation_epochs": Program(40),
    "wave_simulation": Program(None),
    "weakref_callbacks": Program(60),
}
