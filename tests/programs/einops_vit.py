"""A small vision transformer whose layers are written with einops."""

import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(dim), nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(part, "b n (h d) -> b h n d", h=self.heads) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(rearrange(mixed, "b h n d -> b n (h d)"))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 64)
        )
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.blocks = nn.Sequential(Attention(64, 4), Attention(64, 4))
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images)
        token = repeat(self.token, "1 n d -> b n d", b=len(patches))
        return self.head(self.blocks(torch.cat([token, patches], dim=1))[:, 0])


model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
for step in range(30):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: {loss.item():.3f}")
