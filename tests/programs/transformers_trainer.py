"""Trains a small GPT-2 with random weights by the Trainer of Transformers."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)


class Tokens(Dataset):
    def __init__(self, n: int) -> None:
        self.rows = torch.randint(0, 64, (n, 24), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        logging_strategy="no",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        log_level="error",
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(160))
    trainer.remove_callback(PrinterCallback)  # it prints times
    result = trainer.train()
print(f"steps {result.global_step}, loss {result.training_loss:.4f}")
