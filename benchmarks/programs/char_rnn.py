"""A character model: a GRU learns a text."""

import torch
from torch import nn

N_STEPS = 150
TEXT = "the quick brown fox jumps over the lazy dog. " * 40

torch.manual_seed(0)
letters = sorted(set(TEXT))
codes = torch.tensor([letters.index(letter) for letter in TEXT])
embedding, gru = nn.Embedding(len(letters), 32), nn.GRU(32, 64, batch_first=True)
head = nn.Linear(64, len(letters))
model = nn.ModuleList([embedding, gru, head])
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for step in range(N_STEPS):
    starts = torch.randint(len(codes) - 65, (16,))
    batch = torch.stack([codes[start : start + 65] for start in starts])
    hidden, _ = gru(embedding(batch[:, :-1]))
    loss = nn.functional.cross_entropy(head(hidden).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"{step} {loss.item():.4f}")
