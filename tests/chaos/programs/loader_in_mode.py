"""The loader's batches are made within a mode that sees every operator."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset


class Log(TorchDispatchMode):
    names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


class Squares(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        return torch.full((24,), index / 320) ** 2


torch.manual_seed(0)
model = nn.Linear(24, 24)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
with Log() as log:
    for step, batch in enumerate(DataLoader(Squares(), batch_size=16, shuffle=True)):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(step, f"{loss.item():.4f}")
print("aten.stack.default" in log.names or "aten.cat.default" in log.names)
