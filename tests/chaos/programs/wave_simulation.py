"""A wave on a grid: tensors alone, nothing is learned."""

import torch

size = 200
now, before = torch.zeros(size, size), torch.zeros(size, size)
now[size // 2, size // 2] = 1.0
print("simulating")
for tick in range(600):
    around = now.roll(1, 0) + now.roll(-1, 0) + now.roll(1, 1) + now.roll(-1, 1)
    after = 2 * now - before + 0.2 * (around - 4 * now)
    before, now = now, after * 0.999
    if tick % 150 == 0:
        print(tick, f"{now.abs().sum().item():.3f}")
