"""Gradients per sample with torch.func, and an update by hand."""

import torch
from torch.func import grad, vmap

torch.manual_seed(0)
weights = {"hidden": torch.randn(8, 16) / 3, "out": torch.randn(16) / 4}


def loss_of(weights, sample, target):
    predicted = torch.tanh(sample @ weights["hidden"]) @ weights["out"]
    return (predicted - target) ** 2


per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
print("training")
for step in range(60):
    samples = torch.randn(32, 8)
    targets = samples[:, 0] * samples[:, 1]
    gradients = per_sample(weights, samples, targets)
    norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    scale = (1 / norms).clamp(max=1)
    for name, g in gradients.items():
        clipped = (g * scale.reshape(-1, *[1] * (g.dim() - 1))).mean(0)
        weights[name] = weights[name] - 0.1 * clipped
    if step % 20 == 0:
        print(step, f"{norms.mean().item():.4f}")
