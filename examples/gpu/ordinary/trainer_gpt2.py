"""Trains a GPT-2 with random weights by the Trainer of Transformers, in bfloat16 on a GPU.

Run: ``python examples/gpu/ordinary/trainer_gpt2.py``
"""

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCABULARY, LENGTH = 8192, 256


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows of random tokens."""

    def __init__(self, n_rows: int) -> None:
        self.rows = torch.randint(VOCABULARY, (n_rows, LENGTH))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    """Train for 120 steps, or 12 smaller ones without a GPU."""
    set_seed(0)
    has_gpu = torch.cuda.is_available()
    width, layers, n_steps, batch = (512, 6, 120, 16) if has_gpu else (64, 2, 12, 2)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=width // 64
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            max_steps=n_steps,
            bf16=has_gpu,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(4096))
        result = trainer.train()
    print(f"steps {result.global_step}, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
