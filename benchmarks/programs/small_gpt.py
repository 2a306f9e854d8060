"""A small GPT that is trained on bytes, in the shape of nanoGPT."""

import torch
from torch import Tensor, nn

N_STEPS = 60
CONTEXT = 48
WIDTH = 96


class Block(nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of one layer."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the scores of the next byte."""
        return self.head(self.blocks(self.letters(codes) + self.places.weight))


torch.manual_seed(0)
codes = torch.tensor(list(b"To be, or not to be, that is the question. " * 50))
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(N_STEPS):
    starts = torch.randint(len(codes) - CONTEXT - 1, (12,))
    batch = torch.stack([codes[start : start + CONTEXT + 1] for start in starts])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"{step} {loss.item():.4f}")
