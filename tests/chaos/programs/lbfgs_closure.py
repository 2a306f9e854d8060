"""L-BFGS calls the model many times in each step."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-3, 3, 300).unsqueeze(1)
y = torch.sin(2 * x) * torch.exp(-(x**2) / 4)
model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=8)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


print("training")
for step in range(14):
    loss = optimizer.step(closure)
    if step % 4 == 0:
        print(step, f"{loss.item():.3f}")
