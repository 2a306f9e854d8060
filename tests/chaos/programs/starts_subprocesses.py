"""Other programs are started during the training."""

import subprocess
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(30, 30)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(20):
    x = torch.randn(16, 30)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        command = [sys.executable, "-S", "-c", f"print({step} * 2)"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        print(step, answer.stdout.strip(), f"{loss.item():.4f}")
