"""Word vectors with sparse gradients and SparseAdam."""

import torch
from torch import nn
from torch.nn.functional import logsigmoid

torch.manual_seed(5)
words = nn.Embedding(50_000, 48, sparse=True)
contexts = nn.Embedding(50_000, 48, sparse=True)
optimizer = torch.optim.SparseAdam([*words.parameters(), *contexts.parameters()], lr=1e-2)
print("training")
for step in range(40):
    center = torch.randint(0, 50_000, (512,))
    near, far = (center + 1) % 50_000, torch.randint(0, 50_000, (512, 5))
    vector = words(center)
    close = (vector * contexts(near)).sum(-1)
    distant = (contexts(far) @ vector.unsqueeze(-1)).squeeze(-1)
    loss = -logsigmoid(close).mean() - logsigmoid(-distant).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.3f}")
