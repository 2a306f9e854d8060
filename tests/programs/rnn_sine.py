"""A recurrent network that learns a sine wave, with the hidden state carried and detached."""

import torch
from torch import nn

torch.manual_seed(0)
network, head = nn.RNN(1, 32, batch_first=True), nn.Linear(32, 1)
optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=1e-2)
state = None
history = []
for step in range(200):
    times = torch.linspace(step, step + 1, 21) * 3.1416
    wave = times.sin().view(1, -1, 1)
    outputs, state = network(wave[:, :-1], state)
    state = state.detach()
    loss = nn.functional.mse_loss(head(outputs), wave[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
print(f"first {history[0]:.4f}, last {history[-1]:.4f}")
