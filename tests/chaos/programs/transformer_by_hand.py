"""A language model with attention written by hand: steps of a few tenths of a second."""

import math

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        x = x + self.out(scores.masked_fill(mask, float("-inf")).softmax(-1) @ v)
        return x + self.mlp(x)


embed, head = nn.Embedding(96, 192), nn.Linear(192, 96)
model = nn.Sequential(embed, *(Block(192) for _ in range(3)), head)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
print("training")
total = 0
for step in range(14):
    text = torch.randint(0, 96, (24, 97))
    loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = total + loss / 14
    if step % 5 == 0:
        print(step, f"{loss.item():.3f}")
print(f"{float(total):.3f}")
