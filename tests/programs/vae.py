"""A variational autoencoder on random pictures, evaluated after every epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ReLU())
        self.mean, self.spread = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 144), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread


def loss_of(model: VAE, x: torch.Tensor) -> torch.Tensor:
    again, mean, spread = model(x)
    kept = nn.functional.binary_cross_entropy(again, x, reduction="sum")
    return kept - 0.5 * (1 + spread - mean.square() - spread.exp()).sum()


torch.manual_seed(0)
data = TensorDataset(torch.rand(960, 144))
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for (pictures,) in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(model, pictures)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        total = sum(loss_of(model, pictures).item() for (pictures,) in DataLoader(data, 96))
    print(f"epoch {epoch}: {total / len(data):.3f}")
