"""Logistic regression without modules and without an optimizer."""

import torch

torch.manual_seed(0)
inputs = torch.randn(2000, 40)
labels = (inputs[:, :3].sum(1) > 0).float()
weight, bias = torch.zeros(40, requires_grad=True), torch.zeros(1, requires_grad=True)
print("training")
for step in range(200):
    scores = inputs @ weight + bias
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    loss.backward()
    with torch.no_grad():
        weight -= 0.5 * weight.grad
        bias -= 0.5 * bias.grad
        weight.grad = bias.grad = None
    if step % 50 == 0:
        print(step, f"{loss.item():.4f}")
