"""Time-sequence prediction: an LSTM cell learns sine waves with L-BFGS, as in pytorch/examples."""

import torch
from torch import Tensor, nn

N_STEPS = 3
N_FUTURE = 60


class Sequence(nn.Module):
    """Two LSTM cells, called for each point of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTMCell(1, 51)
        self.second = nn.LSTMCell(51, 51)
        self.linear = nn.Linear(51, 1)

    def forward(self, series: Tensor) -> Tensor:
        """Return the next value after each point."""
        h1 = c1 = h2 = c2 = torch.zeros(len(series), 51, dtype=series.dtype)
        outputs = []
        for value in series.split(1, dim=1):
            h1, c1 = self.first(value, (h1, c1))
            h2, c2 = self.second(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
starts = torch.randint(-80, 80, (24, 1))
waves = torch.sin((torch.arange(N_FUTURE + 1) + starts) / 20).double()
model = Sequence().double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
for _ in range(N_STEPS):

    def closure() -> Tensor:
        """Evaluate the loss, twenty times per step."""
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(waves[:, :-1]), waves[:, 1:])
        loss.backward()
        return loss

    optimizer.step(closure)
print(f"{closure().item():.6f}")
