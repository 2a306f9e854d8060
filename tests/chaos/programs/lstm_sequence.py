"""An LSTM that predicts the next value of a sine."""

import torch
from torch import nn

torch.manual_seed(0)


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 64, num_layers=2, batch_first=True)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.out(states)


model = Forecast()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
print("training")
for step in range(30):
    phase = torch.rand(16, 1) * 6
    wave = torch.sin(phase + torch.arange(61) / 5).unsqueeze(-1)
    loss = nn.functional.mse_loss(model(wave[:, :-1]), wave[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 9:
        print(step, f"{loss.item():.4f}")
