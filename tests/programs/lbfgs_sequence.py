"""L-BFGS on a recurrent network that predicts sines: 20 closures per step, six steps in all."""

import torch
from torch import nn

torch.manual_seed(0)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(1, 16), nn.Linear(16, 1)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        state = waves.new_zeros(len(waves), 16), waves.new_zeros(len(waves), 16)
        outputs = []
        for value in waves.split(1, dim=1):
            state = self.cell(value, state)
            outputs.append(self.out(state[0]))
        return torch.cat(outputs, dim=1)


waves = torch.sin(torch.arange(60) / 8 + torch.rand(8, 1) * 6)
model = Sequence()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(waves[:, :-1]), waves[:, 1:])
    loss.backward()
    return loss


for step in range(6):
    print(f"step {step}: {optimizer.step(closure).item():.4f}")
